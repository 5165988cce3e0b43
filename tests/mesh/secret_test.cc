// Tests that a secret which others can read or guess is refused.
#include "mesh/secret.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "base/files.h"
#include "tests/base/temporary_directory.h"
#include "tests/base/thrown.h"

namespace tandem::mesh {
namespace {

using testing::HasSubstr;

std::string refusal(const std::string& path) {
  return base::thrown_by([&] { read_secret(path); });
}

TEST(Secret, IsTheBytesOfItsFile) {
  const base::TemporaryDirectory folder;
  const std::string bytes("with \0, thirty-two bytes and a line end\n", 40);
  base::write_file_durably(folder / "secret", bytes);
  chmod((folder / "secret").c_str(), 0600);
  EXPECT_EQ(read_secret(folder / "secret"), bytes);
}

TEST(Secret, IsRefusedWhereOthersCanReadOrGuessIt) {
  const base::TemporaryDirectory folder;
  const std::string path = folder / "secret";
  EXPECT_THAT(refusal(path), HasSubstr("TANDEM_SECRET_FILE=" + path + ": No such file"));
  EXPECT_EQ(refusal(folder.path()), "TANDEM_SECRET_FILE=" + folder.path() +
                                        ": is a directory; name a file in it, or make a random one: (umask 077; "
                                        "openssl rand -hex 32 > FILE), the same for all machines");
  base::write_file_durably(path, "thirty-two different letters: ok");
  for (const mode_t mode : {0640, 0604, 0620, 0777}) {
    chmod(path.c_str(), mode);
    EXPECT_THAT(refusal(path), HasSubstr("others than its owner may read")) << mode;
  }
  chmod(path.c_str(), 0600);
  EXPECT_EQ(refusal(path), "");
  base::write_file_durably(path, "thirty-two different letters: ok");
  chmod(path.c_str(), 0600);
  EXPECT_EQ(refusal(path), "");
  base::write_file_durably(path, "thirty-one different letters:no");
  chmod(path.c_str(), 0600);
  EXPECT_EQ(
      refusal(path),
      "TANDEM_SECRET_FILE=" + path +
          ": has 31 bytes, and can be guessed; 32 are the least: make a random one: (umask 077; openssl rand -hex "
          "32 > FILE), the same for all machines");
  base::write_file_durably(path, "abcdefgabcdefgabcdefgabcdefgabcdefg");
  chmod(path.c_str(), 0600);
  EXPECT_THAT(refusal(path), HasSubstr("has 7 different bytes, and can be guessed; make a random one"));
}

TEST(Secret, IsForgotten) {
  std::string secret = "thirty-two letters of one secret";
  const char* const bytes = secret.data();
  forget(secret);
  EXPECT_EQ(secret, "");
  EXPECT_EQ(std::string(bytes + 1, 31), std::string(31, '\0')) << "the string keeps its memory";
}

TEST(Secret, RandomDigitsAreOthersEachTime) {
  const std::string digits = random_digits();
  EXPECT_EQ(digits.size(), 32);
  EXPECT_EQ(digits.find_first_not_of("0123456789abcdef"), std::string::npos);
  EXPECT_NE(digits, random_digits());
}

}  // namespace
}  // namespace tandem::mesh
