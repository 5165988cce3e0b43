// Checks --use-wandb as it is typed, without a network: what a run leaves, and how it resumes. The package must be
// there (tools/setup.sh wandb).
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "base/files.h"
#include "tests/cli/tiny_run.h"

namespace tandem::cli {
namespace {

Arguments offline(const std::string& save, const Arguments& more = {}) {
  Arguments arguments =
      with_flag(train_arguments(save, {"--use-wandb", "--wandb-mode", "offline", "--wandb-project", "tests"}),
                "--num-rollout", "1");
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

size_t num_offline_runs(const std::string& folder, const std::string& id) {
  size_t num = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    if (name.starts_with("offline-run-") && name.ends_with("-" + id)) ++num;
  }
  return num;
}

std::string id_of(const std::string& run_path) {
  std::string id = base::read_file(run_path + "/wandb_run_id");
  EXPECT_TRUE(id.ends_with('\n'));
  id.pop_back();
  return id;
}

TEST(Wandb, ARunKeepsItsIdOverAResumeAndLosesItWhenReplaced) {
  const base::TemporaryDirectory folder;
  const std::string path = folder / "run";
  const Captured first = run(offline(path));
  ASSERT_EQ(first.code, 0) << first.err;
  const std::string id = id_of(path);
  EXPECT_EQ(id.size(), 8U);
  EXPECT_EQ(num_offline_runs(path + "/wandb", id), 1U);
  const Captured resumed = run(with_flag(offline(path, {"--load", path}), "--num-rollout", "2"));
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_EQ(id_of(path), id);
  const Captured replaced = run(with_flag(train_arguments(path, {"--overwrite"}), "--num-rollout", "1"));
  ASSERT_EQ(replaced.code, 0) << replaced.err;
  EXPECT_FALSE(base::directory_exists(path + "/wandb"));
  EXPECT_FALSE(base::file_exists(path + "/wandb_run_id"));
}

TEST(Wandb, IdFolderAndNameAreTakenFromTheirFlags) {
  const base::TemporaryDirectory folder;
  const Captured trained = run(offline(folder / "run", {"--wandb-run-id", "my-run_1", "--wandb-dir", folder / "files",
                                                        "--wandb-group", "sums", "--wandb-team", "us", "--wandb-host",
                                                        "https://wandb.example", "--disable-wandb-random-suffix"}));
  ASSERT_EQ(trained.code, 0) << trained.err;
  EXPECT_EQ(id_of(folder / "run"), "my-run_1");
  EXPECT_EQ(num_offline_runs(folder / "files/wandb", "my-run_1"), 1U);
  EXPECT_FALSE(base::directory_exists(folder / "run/wandb"));
}

TEST(Wandb, RefusesInOneLineBeforeARunBegins) {
  const base::TemporaryDirectory folder;
  struct Case {
    Arguments more;
    int code;
    std::string says;
  };
  for (const Case& each : std::vector<Case>{
           {{"--wandb-key", "canary-0123456789"}, 2, "--wandb-key: not supported: a key on a command line is seen by"},
           {{"--wandb-always-use-train-step"}, 2, "--wandb-always-use-train-step: not supported"},
           {{"--wandb-mode", "sometimes"}, 2, "--wandb-mode: 'sometimes' is none of online, offline, disabled"},
           {{"--wandb-run-id", "a b"}, 2, "--wandb-run-id: expects up to 64 letters, digits"}}) {
    const Captured refused = run(offline(folder / "run", each.more));
    EXPECT_EQ(refused.code, each.code) << refused.err;
    EXPECT_NE(refused.err.find(each.says), std::string::npos) << refused.err;
    EXPECT_EQ((refused.out + refused.err).find("canary-0123456789"), std::string::npos) << "a key is not repeated";
    EXPECT_FALSE(base::directory_exists(folder / "run"));
  }
  // The error is the machine's: it has no key for what it is asked to send.
  const std::string home = std::getenv("HOME") == nullptr ? "" : std::getenv("HOME");
  ::setenv("HOME", folder.path().c_str(), 1);
  ::unsetenv("WANDB_API_KEY");
  const Captured keyless = run(with_flag(offline(folder / "run"), "--wandb-mode", "online"));
  ::setenv("HOME", home.c_str(), 1);
  EXPECT_EQ(keyless.code, 3) << keyless.err;
  EXPECT_NE(keyless.err.find("set WANDB_API_KEY"), std::string::npos) << keyless.err;
  EXPECT_FALSE(base::directory_exists(folder / "run"));
}

}  // namespace
}  // namespace tandem::cli
