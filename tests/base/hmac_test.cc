// HMAC-SHA256 gives its published answers.
#include "base/hmac.h"

#include <gtest/gtest.h>

namespace tandem::base {
namespace {

// These are test cases 1 to 4, 6 and 7 of RFC 4231 (5 is a truncated one).
TEST(Hmac, GivesThePublishedAnswers) {
  EXPECT_EQ(hmac_sha256(std::string(20, '\x0b'), "Hi There"),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(hmac_sha256("Jefe", "what do ya want for nothing?"),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(hmac_sha256(std::string(20, '\xaa'), std::string(50, '\xdd')),
            "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
  std::string counting;
  for (char c = 1; c <= 25; ++c) counting += c;
  EXPECT_EQ(hmac_sha256(counting, std::string(50, '\xcd')),
            "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b");
  const std::string long_key(131, '\xaa');
  EXPECT_EQ(hmac_sha256(long_key, "Test Using Larger Than Block-Size Key - Hash Key First"),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
  EXPECT_EQ(hmac_sha256(long_key,
                        "This is a test using a larger than block-size key and a larger than block-size data. The key "
                        "needs to be hashed before being used by the HMAC algorithm."),
            "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2");
}

TEST(Hmac, TellsSecretsApart) {
  EXPECT_TRUE(are_equal_secrets("same", "same"));
  EXPECT_FALSE(are_equal_secrets("same", "sama"));
  EXPECT_FALSE(are_equal_secrets("same", "same "));
  EXPECT_TRUE(are_equal_secrets("", ""));
}

}  // namespace
}  // namespace tandem::base
