// A run's files reveal nothing of the machine and its owner.
#include "base/env.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "tests/base/variable.h"

namespace tandem::base {
namespace {

TEST(Redaction, HidesTheHomeDirectory) {
  const Redaction redaction("/users/ann", {});
  EXPECT_EQ(redaction.apply("saved /users/ann/run and '/users/ann'"), "saved ~/run and '~'");
  EXPECT_EQ(redaction.apply("/users/anna/run /users/ann-2 /users/ann.old /mnt/users/ann/x"),
            "/users/anna/run /users/ann-2 /users/ann.old /mnt/users/ann/x");
  EXPECT_EQ(redaction.apply("/users/ann/a:/users/ann/b"), "~/a:~/b");
  EXPECT_EQ(Redaction("", {}).apply("/users/ann"), "/users/ann");
}

TEST(Redaction, HidesSecrets) {
  const Redaction redaction("/users/ann", {{"HF_TOKEN", "hf_12345678"}, {"API_KEY", "12345678"}});
  EXPECT_EQ(redaction.apply("curl -H hf_12345678 key=12345678 /users/ann/x"), "curl -H [HF_TOKEN] key=[API_KEY] ~/x");
  EXPECT_EQ(redaction.hide_secrets("/users/ann hf_12345678"), "/users/ann [HF_TOKEN]");
}

TEST(Redaction, KnowsTheEnvironment) {
  const std::pair<const char*, const char*> variables[] = {{"HOME", "/users/canary/"},
                                                           {"HF_TOKEN", "hf_canary_token"},
                                                           {"wandb_api_key", "canary-in-small-letters"},
                                                           {"SHORT_TOKEN", "word"},
                                                           {"NOT_ONE_KEYS", "stays-where-it-is"}};
  for (const auto& [name, value] : variables) setenv(name, value, 1);
  EXPECT_EQ(home_directory(), "/users/canary");
  EXPECT_EQ(Redaction().apply("hf_canary_token canary-in-small-letters word stays-where-it-is /users/canary/x"),
            "[HF_TOKEN] [wandb_api_key] word stays-where-it-is ~/x");
  for (const char* home : {"", "/", "relative/home"}) {
    setenv("HOME", home, 1);
    EXPECT_EQ(home_directory(), "") << home;
  }
}

TEST(CacheDirectory, NeedsNeitherAHomeNorTmpdir) {
  const Variable cache("XDG_CACHE_HOME", nullptr), home("HOME", nullptr), temporary("TMPDIR", "/none");
  EXPECT_EQ(cache_directory(), "/tmp");
}

TEST(HomeDirectory, IsShortenedAndExpandedAtTheStartOfAPath) {
  EXPECT_EQ(shorten_home("/users/ann/x", "/users/ann"), "~/x");
  EXPECT_EQ(shorten_home("/users/ann", "/users/ann"), "~");
  EXPECT_EQ(shorten_home("/users/anna", "/users/ann"), "/users/anna");
  EXPECT_EQ(shorten_home("x/users/ann", "/users/ann"), "x/users/ann");
  EXPECT_EQ(expand_home("~/x", "/users/ann"), "/users/ann/x");
  EXPECT_EQ(expand_home("~", "/users/ann"), "/users/ann");
  EXPECT_EQ(expand_home("~ann/x", "/users/ann"), "~ann/x");
  EXPECT_EQ(expand_home("~/x", ""), "~/x");
}

}  // namespace
}  // namespace tandem::base
