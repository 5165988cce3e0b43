// Checks a model that is spread over devices: engine and trainer agree to the bit, how many replicas there are does not
// change results, and the whole model is written, from which any number of devices can resume.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/files.h"
#include "tests/base/soak.h"
#include "tests/cli/ranks/rank_processes.h"
#include "tests/cli/ranks/rank_runs.h"

namespace tandem::cli {
namespace {

// Returns arguments of two rollouts of two optimizer steps, each of several micro-batches.
Arguments arguments(const base::TemporaryDirectory& folder, const std::string& name, int tensor, int ranks,
                    const Arguments& more = {}) {
  Arguments result = with_custom_reward(
      train_arguments(folder / name, {"--max-tokens-per-gpu", "64", "--save-interval", "1"}), write_reward(folder));
  result = with_flag(with_flag(result, "--num-rollout", "2"), "--dtype", "bfloat16");
  result = with_flag(result, "--tensor-model-parallel-size", std::to_string(tensor));
  for (size_t i = 0; i + 1 < more.size(); i += 2) result = with_flag(result, more[i], more[i + 1]);
  return with_ranks(result, ranks);
}

// Returns |engine's log-probs - trainer's| of each rollout's first optimizer step, whose weights sampled it.
std::vector<double> differences(const std::string& run) {
  std::vector<double> result;
  std::istringstream lines(base::read_file(run + "/metrics.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    const base::Json record = base::parse_json(line, run);
    if (!record.contains("train/step") || record.at("train/step").get<int64_t>() % 2 == 1) continue;
    for (const char* name : {"train/train_rollout_logprob_abs_diff", "train/recomputed_logprob_abs_diff"}) {
      if (record.contains(name)) result.push_back(record.at(name).get<double>());
    }
  }
  return result;
}

base::Json first_step(const std::string& run) {
  for (base::Json& record : json_lines(run + "/metrics.jsonl")) {
    if (record.contains("train/step") && record.at("train/step") == 0) return std::move(record);
  }
  return {};
}

// Returns bytes by tag in the train phase of rank 0's last step. `which` is "most" (the high-water mark) or "planned".
base::Json train_memory(const std::string& run, const char* which) {
  base::Json last;
  for (base::Json& line : json_lines(run + "/memory_timeline.jsonl"))
    if (line["event"] == "step") last = std::move(line);
  return last["phases"]["train"][which];
}

class TensorParallel : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new base::TemporaryDirectory();
    Arguments words = arguments(*folder_, "one", 2, 2);
    words.push_back("--get-mismatch-metrics");
    const Captured one = run_program(words);
    ASSERT_EQ(one.code, 0) << one.err;
  }
  static void TearDownTestSuite() { delete folder_; }

  static inline base::TemporaryDirectory* folder_ = nullptr;
};

TEST_F(TensorParallel, EngineAndTrainerAgreeToTheBit) {
  const std::vector<double> all = differences(*folder_ / "one");
  ASSERT_EQ(all.size(), 4U);
  for (const double difference : all) EXPECT_EQ(difference, 0.0);
}

TEST_F(TensorParallel, AnyNumberOfReplicasGivesTheSameRun) {
  Arguments words = arguments(*folder_, "two", 2, 4);
  words.push_back("--get-mismatch-metrics");
  const Captured two = run_program(words);
  ASSERT_EQ(two.code, 0) << two.err;
  expect_equal(Results(*folder_ / "two"), Results(*folder_ / "one"), "two replicas");
}

// The model is saved as it was read, in the very file that one device writes.
TEST_F(TensorParallel, WhatIsNotTrainedIsExportedAsOneDeviceDoes) {
  const Arguments still = {"--lr", "0", "--weight-decay", "0", "--num-rollout", "1"};
  const Captured whole = run_program(arguments(*folder_, "whole", 1, 1, still));
  ASSERT_EQ(whole.code, 0) << whole.err;
  const Captured spread = run_program(arguments(*folder_, "spread", 2, 2, still));
  ASSERT_EQ(spread.code, 0) << spread.err;
  EXPECT_TRUE(weights_of(*folder_ / "spread") == weights_of(*folder_ / "whole"));
}

// Masters and moments are the same numbers wherever they lie; the steps after that are computed in another order.
TEST_F(TensorParallel, ARunGoesOnSpreadOverAnotherNumber) {
  const std::string run = *folder_ / "one", state = optimizer_state(run);
  const Arguments next = {"--load", run, "--save", *folder_ / "whole_again", "--num-rollout", "2"};
  Arguments words = arguments(*folder_, "whole_again", 1, 1, next);
  const Captured refused = cli::run(words);
  EXPECT_EQ(refused.code, 2);
  EXPECT_NE(refused.err.find("--tensor-model-parallel-size"), std::string::npos) << refused.err;
  words.push_back("--allow-changed-config");
  const Captured whole = cli::run(words);
  ASSERT_EQ(whole.code, 0) << whole.err;
  EXPECT_TRUE(weights_of(*folder_ / "whole_again") == weights_of(run)) << "nothing was left to do";
  Arguments back = arguments(*folder_, "spread_again", 2, 4,
                             {"--load", *folder_ / "whole_again", "--save", *folder_ / "spread_again"});
  back = with_flag(back, "--num-rollout", "3");
  back.push_back("--allow-changed-config");
  const Captured spread = run_program(back);
  ASSERT_EQ(spread.code, 0) << spread.err;
  for (const double difference : differences(*folder_ / "spread_again")) EXPECT_EQ(difference, 0.0);
}

// With --sequence-parallel the devices of a tensor-parallel group share the rows between products. The inputs of a
// forward stay the same, so samples, log-probs and those of a reference do too; a backward needs less memory.
TEST_F(TensorParallel, SharedRowsChangeNoLogprobAndTakeLessMemory) {
  const auto run = [&](const std::string& name, int ranks) {
    Arguments words = arguments(*folder_, name, 2, ranks, {"--kl-loss-coef", "0.01"});
    words.insert(words.end(), {"--get-mismatch-metrics", "--use-kl-loss", "--offload-train", "--sequence-parallel"});
    const Captured result = run_program(words);
    ASSERT_EQ(result.code, 0) << result.err;
  };
  run("rows", 2);
  const std::string rows = *folder_ / "rows", one = *folder_ / "one";
  const std::vector<double> all = differences(rows);
  ASSERT_EQ(all.size(), 4U);
  for (const double difference : all) EXPECT_EQ(difference, 0.0);
  EXPECT_EQ(first_step(rows).at("train/kl_loss"), 0.0) << "the reference is the policy, whose log-probs are known";
  const std::string first = "/samples/" + base::list_directory(one + "/samples").front();
  EXPECT_EQ(base::read_file(rows + first), base::read_file(one + first));
  const base::Json most = train_memory(rows, "most"), planned = train_memory(rows, "planned");
  for (const auto& [tag, bytes] : most.items()) {
    if (tag == "overhead") continue;  // a sanitizer's own memory is none of ours
    EXPECT_LE(bytes, planned.at(tag)) << tag;
  }
  for (const char* which : {"most", "planned"}) {
    const base::Json shared = train_memory(rows, which), whole = train_memory(one, which);
    for (const char* tag : {"block_inputs", "block_graphs"}) {
      EXPECT_LT(shared.at(tag).get<int64_t>(), whole.at(tag).get<int64_t>()) << tag << ", " << which;
    }
  }
  run("rows_two", 4);
  expect_equal(Results(*folder_ / "rows_two"), Results(rows), "two replicas");
}

TEST_F(TensorParallel, SharedRowsAreExportedAsOneDeviceDoesAndComparedOnResume) {
  const Arguments still = {"--lr", "0", "--weight-decay", "0", "--num-rollout", "1"};
  Arguments words = arguments(*folder_, "rows_still", 2, 2, still);
  words.push_back("--sequence-parallel");
  const Captured spread = run_program(words);
  ASSERT_EQ(spread.code, 0) << spread.err;
  Arguments alone = arguments(*folder_, "rows_of_one", 1, 1, still);
  alone.push_back("--sequence-parallel");
  const Captured one = run(alone);
  ASSERT_EQ(one.code, 0) << "one device has nobody to share with: " << one.err;
  EXPECT_TRUE(weights_of(*folder_ / "rows_still") == weights_of(*folder_ / "rows_of_one"));
  const Captured refused =
      run_program(with_flag(arguments(*folder_, "other", 2, 2, still), "--load", *folder_ / "rows_still"));
  EXPECT_EQ(refused.code, 2);
  EXPECT_NE(refused.err.find("--sequence-parallel"), std::string::npos) << refused.err;
}

TEST_F(TensorParallel, WithAReferenceEpochsAndOffloadToo) {
  if (!base::soaking()) GTEST_SKIP() << "two runs of a minute, so it runs with --soak only (make soak)";
  const Arguments mix = {"--kl-loss-coef", "0.01", "--num-epochs-per-rollout", "2", "--dtype", "float32"};
  const auto run = [&](const std::string& name, int ranks) {
    Arguments words = arguments(*folder_, name, 2, ranks, mix);
    words.insert(words.end(), {"--use-kl-loss", "--rollout-shuffle", "--offload-train"});
    const Captured result = run_program(words);
    EXPECT_EQ(result.code, 0) << result.err;
  };
  run("mix_2", 2);
  run("mix_4", 4);
  expect_equal(Results(*folder_ / "mix_4"), Results(*folder_ / "mix_2"), "two replicas");
}

TEST_F(TensorParallel, TheFirstRankOfAReplicaAloneStartsGraders) {
  Program program(arguments(*folder_, "graders", 2, 2));
  const std::map<int, pid_t> processes = processes_of(program.pid(), 2);
  ASSERT_EQ(processes.size(), 2U);
  const std::string metrics = *folder_ / "graders" + "/metrics.jsonl";
  int64_t of_first = 0,
          of_second = 0;  // most at any time after the first rollout; each tries the reward out before
  for (int tries = 0; tries < 12'000 && !program.wait_for(0.01); ++tries) {
    if (!base::file_exists(metrics) || base::read_file(metrics).empty()) continue;
    of_first = std::max(of_first, num_graders(processes.at(0)));
    of_second = std::max(of_second, num_graders(processes.at(1)));
  }
  EXPECT_EQ(program.wait(), 0);
  EXPECT_GT(of_first, 0);
  EXPECT_EQ(of_second, 0);
}

TEST_F(TensorParallel, WhatCannotBeSpreadIsRefusedByNumber) {
  const Captured result = run_program(arguments(*folder_, "refused", 4, 4));
  EXPECT_EQ(result.code, 2);
  EXPECT_NE(result.err.find("does not divide the model's 2 key-value heads"), std::string::npos) << result.err;
  EXPECT_FALSE(base::directory_exists(*folder_ / "refused"));
}

}  // namespace
}  // namespace tandem::cli
