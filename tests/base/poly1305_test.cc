// Poly1305 gives its published answers.
#include "base/poly1305.h"

#include <gtest/gtest.h>

#include <charconv>
#include <string>

namespace tandem::base {
namespace {

std::string from_hex(const std::string& digits) {
  std::string result;
  for (size_t at = 0; at + 1 < digits.size(); at += 2) {
    unsigned byte = 0;
    std::from_chars(digits.data() + at, digits.data() + at + 2, byte, 16);
    result += static_cast<char>(byte);
  }
  return result;
}

std::string zeros(int count) { return std::string(static_cast<size_t>(count) * 2, '0'); }
std::string ones(int count) { return std::string(static_cast<size_t>(count) * 2, 'f'); }

// RFC 8439, 2.5.2 and of A.3 those whose sums carry: 7 to 11.
TEST(Poly1305, GivesThePublishedAnswers) {
  EXPECT_EQ(poly1305(from_hex("85d6be7857556d337f4452fe42d506a80103808afb0db2fd4abff6af4149f51b"),
                     "Cryptographic Forum Research Group"),
            "a8061dc1305136c6c22b8baf0c0127a9");
  std::string fes, ones_and_zeros;
  for (int i = 0; i < 15; ++i) fes += "fe";
  for (int i = 0; i < 16; ++i) ones_and_zeros += "01";
  struct Case {
    std::string r, s, text, tag;
  };
  for (const Case& row : {
           Case{zeros(16), zeros(16), zeros(64), zeros(16)},
           Case{"02" + zeros(15), zeros(16), ones(16), "03" + zeros(15)},
           Case{"02" + zeros(15), ones(16), "02" + zeros(15), "03" + zeros(15)},
           Case{"01" + zeros(15), zeros(16), ones(16) + "f0" + ones(15) + "11" + zeros(15), "05" + zeros(15)},
           Case{"01" + zeros(15), zeros(16), ones(16) + "fb" + fes + ones_and_zeros, zeros(16)},
           Case{"02" + zeros(15), zeros(16), "fd" + ones(15), "fa" + ones(15)},
           Case{"01" + zeros(7) + "04" + zeros(7), zeros(16),
                "e33594d7505e43b900000000000000003394d7505e4379cd01" + zeros(7) + zeros(16) + "01" + zeros(15),
                "14" + zeros(7) + "55" + zeros(7)},
           Case{"01" + zeros(7) + "04" + zeros(7), zeros(16),
                "e33594d7505e43b900000000000000003394d7505e4379cd01" + zeros(7) + zeros(16), "13" + zeros(15)},
       }) {
    EXPECT_EQ(poly1305(from_hex(row.r + row.s), from_hex(row.text)), row.tag) << row.text;
  }
}

// Each length of a last block, and each byte of it.
TEST(Poly1305, AnyOtherTextHasAnotherTag) {
  const std::string key = from_hex("85d6be7857556d337f4452fe42d506a80103808afb0db2fd4abff6af4149f51b");
  std::string text;
  for (int size = 0; size < 40; ++size) {
    const std::string tag = poly1305(key, text);
    EXPECT_EQ(tag, poly1305(key, text));
    EXPECT_NE(tag, poly1305(key, text + '\0'));
    for (char& c : text) {
      c = static_cast<char>(c ^ 1);
      EXPECT_NE(tag, poly1305(key, text)) << size;
      c = static_cast<char>(c ^ 1);
    }
    text += static_cast<char>(size * 37);
  }
}

}  // namespace
}  // namespace tandem::base
