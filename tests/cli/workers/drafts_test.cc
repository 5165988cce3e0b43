// Tests that guessed tokens change no byte of a run, as a user types it: in one process, and in a model over two whose
// completions go on from rollout to rollout.
#include <gtest/gtest.h>

#include <string>

#include "tests/cli/ranks/rank_runs.h"

namespace tandem::cli {
namespace {

// A model of random weights repeats itself where hardly anything is left to chance.
Arguments arguments(const base::TemporaryDirectory& folder, const std::string& name, const std::string& drafts,
                    const Arguments& more = {}) {
  Arguments words = with_custom_reward(
      train_arguments(folder / name, {"--rollout-temperature", "0.1", "--speculative-num-draft-tokens", drafts}),
      write_reward(folder));
  words = with_flag(with_flag(words, "--rollout-batch-size", "1"), "--global-batch-size", "4");
  words = with_flag(words, "--rollout-max-response-len", "100");
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

double right_drafts(const std::string& run) {
  double most = 0.0;
  for (const base::Json& record : json_lines(run + "/metrics.jsonl")) {
    for (const char* engine : {"rollout/", "perf/"})
      most = std::max(most, record.value(engine + std::string("spec_accept_rate"), 0.0));
  }
  return most;
}

TEST(Drafts, ChangeNoByteOfARun) {
  const base::TemporaryDirectory folder;
  for (const char* drafts : {"0", "15"}) {
    const Arguments dump = {"--save-debug-rollout-data", folder / drafts + "_{rollout_id}.jsonl"};
    const Captured result = run_program(arguments(folder, drafts, drafts, dump));
    ASSERT_EQ(result.code, 0) << result.err;
  }
  expect_equal(Results(folder / "15"), Results(folder / "0"), "guessed");
  for (const char* rollout : {"_0.jsonl", "_1.jsonl"}) {
    EXPECT_EQ(base::read_file(folder / (std::string("15") + rollout)),
              base::read_file(folder / (std::string("0") + rollout)));
  }
  EXPECT_GT(right_drafts(folder / "15"), 0.0);
  EXPECT_EQ(right_drafts(folder / "0"), 0.0);
}

TEST(Drafts, ChangeNoByteOfPartialRolloutsOfAModelOverTwoDevices) {
  const base::TemporaryDirectory folder;
  for (const char* drafts : {"0", "7"}) {
    const Arguments words = with_ranks(
        arguments(folder, drafts, drafts,
                  {"--tensor-model-parallel-size", "2", "--partial-rollout", "--rollout-phase-tokens", "30"}),
        2);
    const Captured result = run_program(words);
    ASSERT_EQ(result.code, 0) << result.err;
  }
  expect_equal(Results(folder / "7"), Results(folder / "0"), "guessed");
  EXPECT_GT(right_drafts(folder / "7"), 0.0);
}

}  // namespace
}  // namespace tandem::cli
