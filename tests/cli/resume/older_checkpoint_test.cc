// Checks a checkpoint of a version that had fewer flags: the run resumes if the defaults of the new flags changed
// nothing.
#include <gtest/gtest.h>

#include <string>

#include "base/files.h"
#include "base/json.h"
#include "tests/base/temporary_directory.h"
#include "tests/cli/captured.h"
#include "tests/cli/resume/reseal.h"
#include "tests/cli/tiny_run.h"

namespace tandem::cli {
namespace {

Arguments with(Arguments arguments, const Arguments& more) {
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

// Writes the state.json that a version without these flags would have written.
void forget(const std::string& step_path, const std::vector<std::string>& flags) {
  reseal(step_path, [&](base::Json& state) {
    for (const std::string& flag : flags) ASSERT_EQ(state["numbers"].erase(flag), 1U) << flag;
  });
}

TEST(OlderCheckpoint, GoesOnWhereTheDefaultOfANewFlagChangesNothing) {
  const base::TemporaryDirectory folder;
  const std::string whole = folder / "whole", path = folder / "run", step = path + "/checkpoints/step_000001";
  const Arguments arguments = train_arguments(path), load = with(arguments, {"--load", path});
  ASSERT_EQ(run(train_arguments(whole)).code, 0);
  ASSERT_EQ(run(with_flag(arguments, "--num-rollout", "1")).code, 0);
  // The flags are a switch, a number that is off at 0, constants of what is off, a text, and a flag that is unset.
  forget(step, {"mask-truncated-completions", "kl-coef", "overlong-penalty-factor", "num-epochs-per-rollout",
                "system-prompt", "ref-update-interval"});
  expect_one_line_failure(
      run(with(load, {"--num-epochs-per-rollout", "2"})), 2,
      "--load: the run would resume differently: --num-epochs-per-rollout was absent and is 2; give");
  expect_one_line_failure(run(with(load, {"--system-prompt", "Add."})), 2, "--system-prompt was absent and is Add.");
  const Captured allowed = run(with(load, {"--mask-truncated-completions", "--allow-changed-config", "--dry-run"}));
  EXPECT_EQ(allowed.code, 0) << allowed.err;
  EXPECT_NE(allowed.err.find("--mask-truncated-completions was absent and is true"), std::string::npos) << allowed.err;
  // A default that is typed makes no difference.
  const Captured resumed = run(with(load, {"--kl-coef", "0"}));
  EXPECT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_EQ(resumed.err.find("absent"), std::string::npos) << resumed.err;
  EXPECT_EQ(weights_of(path), weights_of(whole));
  EXPECT_EQ(timeless_metrics(path), timeless_metrics(whole));
}

// Before --skip-zero-gradient existed no step was skipped: its default is not what older versions did.
TEST(OlderCheckpoint, IsRefusedWhereTheDefaultOfANewFlagIsNew) {
  const base::TemporaryDirectory folder;
  const std::string path = folder / "run", step = path + "/checkpoints/step_000001";
  const Arguments arguments = train_arguments(path), load = with(arguments, {"--load", path});
  ASSERT_EQ(run(with_flag(arguments, "--num-rollout", "1")).code, 0);
  forget(step, {"skip-zero-gradient"});
  expect_one_line_failure(run(load), 2, "--skip-zero-gradient was absent and is true");
  // A file that the run depends on is no flag with a default.
  reseal(step, [](base::Json& state) {
    state["numbers"]["skip-zero-gradient"] = "true";
    state["numbers"].erase("the file of --prompt-data");
  });
  expect_one_line_failure(run(load), 2, "the file of --prompt-data was absent and is ");
}

// The interpreter of rewards was compared once. Now it is treated like the packages in it, which never were.
TEST(OlderCheckpoint, ThatNamesTheInterpreterOfRewardsGoesOn) {
  const base::TemporaryDirectory folder;
  const std::string path = folder / "run";
  const Arguments arguments = train_arguments(path);
  ASSERT_EQ(run(with_flag(arguments, "--num-rollout", "1")).code, 0);
  reseal(path + "/checkpoints/step_000001",
         [](base::Json& state) { state["numbers"]["rm-python"] = "/usr/bin/python3"; });
  const Captured resumed = run(with(arguments, {"--load", path, "--dry-run"}));
  EXPECT_EQ(resumed.code, 0) << resumed.err;
}

// --use-unbiased-kl was off by default, and the entropy was aggregated as the loss.
TEST(OlderCheckpoint, OfARunWithAKlOrAnEntropyTermIsToldWhatHasChanged) {
  const base::TemporaryDirectory folder;
  const std::string path = folder / "run", step = path + "/checkpoints/step_000001";
  const Arguments kl = {"--use-kl-loss", "--kl-loss-coef", "0.1"};
  const Arguments arguments = with(train_arguments(path), kl);
  ASSERT_EQ(run(with(with_flag(arguments, "--num-rollout", "1"), {"--no-use-unbiased-kl"})).code, 0);
  const Arguments load = with(arguments, {"--load", path, "--dry-run"});
  expect_one_line_failure(run(load), 2, "--use-unbiased-kl was false and is true; give them as they were");
  const Captured resumed = run(with(load, {"--no-use-unbiased-kl"}));
  EXPECT_EQ(resumed.code, 0) << resumed.err;
  reseal(step, [](base::Json& state) { state["numbers"]["entropy-coef"] = "0.01"; });
  expect_one_line_failure(run(with(load, {"--no-use-unbiased-kl", "--entropy-coef", "0.01"})), 2,
                          "the mean of --entropy-coef was absent and is over all tokens");
}

TEST(OlderCheckpoint, OfASupervisedRunGoesOn) {
  const base::TemporaryDirectory folder;
  const std::string path = folder / "run";
  base::write_file_durably(folder / "data.jsonl",
                           "{\"prompt\": \"1 + 7 =\", \"response\": \" 8\"}\n"
                           "{\"prompt\": \"1 + 8 =\", \"response\": \" 9\"}\n");
  const Arguments arguments = {"sft",
                               "--hf-checkpoint",
                               kModel,
                               "--prompt-data",
                               folder / "data.jsonl",
                               "--global-batch-size",
                               "2",
                               "--num-rollout",
                               "1",
                               "--no-use-tensorboard",
                               "--save",
                               path};
  ASSERT_EQ(run(arguments).code, 0);
  forget(path + "/checkpoints/step_000001", {"system-prompt", "append-eos"});
  const Arguments load = with(with_flag(arguments, "--num-rollout", "2"), {"--load", path});
  expect_one_line_failure(run(with(load, {"--no-append-eos"})), 2, "--append-eos was absent and is false");
  const Captured resumed = run(load);
  EXPECT_EQ(resumed.code, 0) << resumed.err;
}

}  // namespace
}  // namespace tandem::cli
