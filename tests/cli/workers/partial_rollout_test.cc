// Checks --partial-rollout through the whole program: completions go on with newer weights, and a run has the same bits
// on any number of devices, together or apart, however often it is killed.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/files.h"
#include "tests/base/soak.h"
#include "tests/cli/ranks/rank_processes.h"
#include "tests/cli/workers/worker_runs.h"

namespace tandem::cli {
namespace {

// Sixteen tokens at most, of which a phase gives five.
Arguments in_phases(Arguments words) {
  words =
      with_flag(with_flag(with_drawn_lengths(std::move(words)), "--num-rollout", "4"), "--rollout-phase-tokens", "5");
  words.push_back("--partial-rollout");
  return words;
}

std::vector<base::Json> records(const std::string& run, const std::string& of) {
  std::vector<base::Json> result;
  for (const base::Json& record : json_lines(run + "/metrics.jsonl")) {
    if (record.contains(of)) result.push_back(record);
  }
  return result;
}

class PartialRollout : public WorkerRuns {
 protected:
  static void SetUpTestSuite() {
    WorkerRuns::SetUpTestSuite();
    const Captured alone = run(in_phases(run_arguments("alone")));
    ASSERT_EQ(alone.code, 0) << alone.err;
    own_ = new Results(path("alone"));
  }
};

TEST_F(PartialRollout, CompletionsGoOnWithNewerWeights) {
  const std::string run = path("alone");
  double num_partial = 0.0;
  for (const base::Json& record : records(run, "rollout/step")) {
    EXPECT_LE(record["rollout/staleness/mean"], record["rollout/staleness/max"]);
    EXPECT_LE(record["rollout/in_flight"], 3.0) << "six groups less those that were taken";
    EXPECT_GE(record["rollout/in_flight"], record["rollout/waiting_groups"]);
    EXPECT_GE(record["rollout/phases"], 1.0);
    double tokens = 0.0;
    for (const auto& [name, value] : record.items())
      tokens += name.starts_with("rollout/staleness_hist/") ? value.get<double>() : 0.0;
    EXPECT_EQ(tokens, record["rollout/response_len/mean"].get<double>() * 12.0) << "each token has an age";
    num_partial += record["rollout/partial_ratio"].get<double>();
  }
  EXPECT_GT(num_partial, 0.0) << "nothing was tested";
  // The newest tokens have the log-probs of the weights that are trained, to the bit.
  bool has_older = false;
  for (const base::Json& record : records(run, "train/step")) {
    const double share = record.value("train/on_policy_token_share", 1.0);
    has_older |= share < 1.0;
    if (record["train/step"].get<int64_t>() % 2 == 0 && share > 0.0) {
      EXPECT_EQ(record.value("train/on_policy_logprob_abs_diff", 0.0), 0.0);
    }
  }
  EXPECT_TRUE(has_older);
  EXPECT_NE(base::read_file(run + "/log.txt").find("  age "), std::string::npos);
}

TEST_F(PartialRollout, AnyNumberOfRanksTogetherAndApartGiveTheSameRun) {
  for (const int ranks : {2, 4}) {
    const std::string name = "together" + std::to_string(ranks);
    const Captured result = run_program(with_ranks(in_phases(run_arguments(name)), ranks));
    ASSERT_EQ(result.code, 0) << result.err;
    expect_same(name);
  }
  for (const auto& [trainers, workers] : {std::pair(1, 1), {2, 2}}) {
    const std::string name = "apart" + std::to_string(workers);
    const Captured result = run_program(with_workers(in_phases(run_arguments(name)), trainers, workers));
    ASSERT_EQ(result.code, 0) << result.err;
    expect_same(name);
  }
}

TEST_F(PartialRollout, AWorkerThatIsKilledIsMissedByNobody) {
  const std::string name = "killed_worker";
  Arguments words = in_phases(run_arguments(name, graded_slowly()));
  Program program(with_workers(words, 1, 2));
  const std::map<int, pid_t> processes = processes_of(program.pid(), 3);
  ASSERT_EQ(processes.size(), 3U);
  wait_for_rollout(name, 0);
  kill(processes.at(1), SIGKILL);
  EXPECT_EQ(program.wait(), 0);
  expect_same(name);
}

TEST_F(PartialRollout, AKilledRunGoesOnToTheSameBits) {
  // Killed after each rollout, and in the middle of some: while it samples, and while a checkpoint is written.
  const std::string name = "killed";
  const Arguments words = going_on(in_phases(run_arguments(name, graded_slowly(0.05))), path(name));
  int64_t kills = 0;
  for (int64_t late = 0; kills < 8; late += 20'000) {
    Program program(words);
    const int64_t rollout = std::min<int64_t>(kills / 2, 3);
    for (int tries = 0; tries < 3'000 && count_in_file(samples_of(name, rollout), "\n") == 0; ++tries) {
      if (program.wait_for(0.01)) break;
    }
    usleep(static_cast<useconds_t>(late));
    program.signal(SIGKILL);
    const int code = program.wait();
    ASSERT_TRUE(code == 0 || code == -SIGKILL) << code;
    ++kills;
    if (code == 0) break;
  }
  EXPECT_GE(kills, 3);
  const Captured rest = run(words);
  ASSERT_EQ(rest.code, 0) << rest.err;
  expect_same(name);
}

// Whole programs: one to three ranks that train and sample, or one that trains and one to three that sample, other ones
// after each death, and killed, stopped, or robbed of a worker at random times.
TEST_F(PartialRollout, DrawnDeathsChangeNoBit) {
  constexpr int64_t kDeathsOfARun = 5;  // then it may end, however slow the machine is
  constexpr int kStoppedBeforeItBegan = 128 + SIGTERM;
  const unsigned seed = std::random_device()();
  std::mt19937 random(seed);
  const auto draw = [&](uint64_t count) { return static_cast<int64_t>(random() % count); };
  const int64_t num_wanted = base::short_or_full(3, 200);
  int64_t num_killed = 0, num_stopped = 0, num_robbed = 0, num_runs = 0;
  const auto num_deaths = [&] { return num_killed + num_stopped + num_robbed; };
  while (num_deaths() < num_wanted) {
    const std::string name = fmt::format("drawn_{}", num_runs++);
    SCOPED_TRACE(fmt::format("seed {}, {}", seed, name));
    const Arguments words = going_on(in_phases(run_arguments(name, graded_slowly(0.05))), path(name));
    const int64_t last_death = std::min(num_deaths() + kDeathsOfARun, num_wanted);
    for (bool is_over = false; !is_over;) {
      const bool is_apart = draw(2) == 0;
      const int count = 1 + static_cast<int>(draw(3));
      Program program(is_apart ? with_workers(words, 1, count) : with_ranks(words, count));
      is_over = num_deaths() >= last_death || program.wait_for(0.5 + 0.001 * static_cast<double>(draw(3'000)));
      if (!is_over && is_apart && count > 1 && draw(2) == 0) {  // the other workers go on
        const std::map<int, pid_t> processes = processes_of(program.pid(), 1 + count);
        const auto worker = processes.find(1 + static_cast<int>(draw(static_cast<uint64_t>(count))));
        if (worker != processes.end()) kill(worker->second, SIGKILL);
        ++num_robbed;
        is_over = true;
      } else if (!is_over) {
        const bool is_killed = draw(4) > 0;
        program.signal(is_killed ? SIGKILL : SIGTERM);
        ++(is_killed ? num_killed : num_stopped);
      }
      const int code = program.wait();
      ASSERT_TRUE(code == 0 || (!is_over && (code == -SIGKILL || code == -SIGTERM || code == kStoppedBeforeItBegan)))
          << code;
    }
    expect_same(name);
    std::filesystem::remove_all(path(name));
  }
  std::printf("seed %u: %ld runs; %ld killed, %ld stopped, %ld lost a worker\n", seed, num_runs, num_killed,
              num_stopped, num_robbed);
}

TEST_F(PartialRollout, ASignalSavesTheGroupsInFlight) {
  const std::string name = "stopped";
  const Arguments words = going_on(in_phases(run_arguments(name, graded_slowly())), path(name));
  Program program(words);
  wait_for_rollout(name, 1);
  program.signal(SIGTERM);
  ASSERT_EQ(program.wait(), 0);
  const Captured rest = run_program(with_ranks(words, 2));
  ASSERT_EQ(rest.code, 0) << rest.err;
  expect_same(name);
}

TEST_F(PartialRollout, WithAFilterAnAdapterAReferenceAndEvaluationsToo) {
  const auto words = [&](const std::string& name) {
    Arguments result = in_phases(run_arguments(name, {"--rollout-top-p", "0.9"}));
    result.insert(result.end(), {"--dynamic-sampling-filter-path", "nonzero_std", "--lora-rank", "4", "--use-kl-loss",
                                 "--kl-loss-coef", "0.01", "--eval-prompt-data", "held_out", kPrompts + "@[0:6]",
                                 "--eval-interval", "2", "--save-best", "eval/held_out"});
    return result;
  };
  ASSERT_EQ(run(words("all_alone")).code, 0);
  const auto adapter = [](const std::string& name) {
    const std::string file = "/adapter_model.safetensors", best = path(name) + "/hf/best" + file;
    // There is none where no evaluation was better than the one before training.
    return base::read_file(path(name) + "/hf/latest" + file) + (base::file_exists(best) ? base::read_file(best) : "") +
           metrics_of(path(name));
  };
  const Captured two = run_program(with_ranks(words("all_two"), 2));
  ASSERT_EQ(two.code, 0) << two.err;
  EXPECT_EQ(adapter("all_two"), adapter("all_alone"));
  const Captured apart = run_program(with_workers(words("all_apart"), 1, 2));
  ASSERT_EQ(apart.code, 0) << apart.err;
  EXPECT_EQ(adapter("all_apart"), adapter("all_alone"));
}

TEST_F(PartialRollout, AModelOverTwoDevicesToo) {
  const Captured result =
      run_program(with_flag(with_ranks(in_phases(run_arguments("spread")), 2), "--tensor-model-parallel-size", "2"));
  ASSERT_EQ(result.code, 0) << result.err;
  bool has_partial = false;
  for (const base::Json& record : records(path("spread"), "rollout/step"))
    has_partial |= record["rollout/partial_ratio"].get<double>() > 0.0;
  EXPECT_TRUE(has_partial);
  for (const base::Json& record : records(path("spread"), "train/step")) {
    if (record["train/step"].get<int64_t>() % 2 == 0 && record.value("train/on_policy_token_share", 1.0) > 0.0) {
      EXPECT_EQ(record.value("train/on_policy_logprob_abs_diff", 0.0), 0.0);
    }
  }
}

TEST_F(PartialRollout, ABoundHoldsAndZeroIsOnPolicy) {
  for (const int64_t bound : {0, 1}) {
    const std::string name = "bound" + std::to_string(bound);
    const Captured result =
        run(with_flag(in_phases(run_arguments(name)), "--max-weight-staleness", std::to_string(bound)));
    ASSERT_EQ(result.code, 0) << result.err;
    for (const base::Json& record : records(path(name), "rollout/step"))
      EXPECT_LE(record["rollout/staleness/max"], static_cast<double>(bound));
  }
  for (const base::Json& record : records(path("bound0"), "train/step"))
    EXPECT_EQ(record.value("train/on_policy_token_share", 1.0), 1.0);
}

// Tokens that an older policy sampled leave the loss mask, and the rest is trained on.
TEST_F(PartialRollout, TheMaskChangesWhatIsTrained) {
  Arguments words = in_phases(run_arguments("masked"));
  words.push_back("--mask-offpolicy-in-partial-rollout");
  const Captured result = run(words);
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_NE(weights_of(path("masked")), weights_of(path("alone")));
  bool has_older = false;
  for (const base::Json& record : records(path("masked"), "rollout/step"))
    has_older |= record["rollout/response_len/mean"].get<double>() < record["rollout/response_lengths"].get<double>();
  EXPECT_TRUE(has_older) << "nothing was masked";
  for (const base::Json& record : records(path("masked"), "train/step"))
    EXPECT_FALSE(record.contains("train/on_policy_token_share")) << "all that is left is on policy";
}

TEST_F(PartialRollout, WhatCannotBeIsRefused) {
  struct Row {
    Arguments more;
    std::string says;
  };
  Arguments phases = in_phases(run_arguments("refused"));
  const Arguments whole = run_arguments("refused");
  const auto with = [](Arguments words, const Arguments& more) {
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  base::write_file_durably(path("turns.py"), "async def generate(args, sample, sampling_params):\n    return sample\n");
  for (const Row& row : std::vector<Row>{
           {with(whole, {"--rollout-phase-tokens", "5"}), "--rollout-phase-tokens 5: needs --partial-rollout"},
           {with(whole, {"--max-weight-staleness", "2"}), "--max-weight-staleness 2 with --colocate"},
           {with(whole, {"--over-sampling-batch-size", "4"}),
            "--over-sampling-batch-size 4: needs --dynamic-sampling-filter-path or --partial-rollout"},
           {with(whole, {"--mask-offpolicy-in-partial-rollout"}),
            "--mask-offpolicy-in-partial-rollout: needs --partial-rollout"},
           {with_flag(phases, "--rollout-phase-tokens", "0"), "--rollout-phase-tokens: must be at least 1"},
           {with(phases, {"--over-sampling-batch-size", "2"}), "--over-sampling-batch-size 2: a rollout needs"},
           {with(phases, {"--over-sampling-batch-size", "7", "--max-weight-staleness", "1"}),
            "at most 6 groups can be in flight"},
           {with(phases, {"--pg-loss-type", "reinforce"}), "has no trust region"},
           {with(phases, {"--old-logprobs", "proximal"}), "without --use-tis nothing corrects"},
           {with(phases, {"--custom-generate-function-path", path("turns.py:generate")}),
            "--partial-rollout and --custom-generate-function-path"},
           {with(phases, {"--load-debug-rollout-data", path("{rollout_id}.jsonl")}),
            "--partial-rollout and --load-debug-rollout-data"},
       }) {
    expect_one_line_failure(run(row.more), 2, row.says);
  }
}

// The groups in flight belong to the flags that they were sampled with.
TEST_F(PartialRollout, ARunThatGoesOnOtherwiseIsTold) {
  const std::string name = "changed";
  Arguments words = with_flag(in_phases(run_arguments(name)), "--num-rollout", "2");
  ASSERT_EQ(run(words).code, 0);
  words = with_flag(with_flag(words, "--num-rollout", "3"), "--load", path(name));
  expect_one_line_failure(run(with_flag(words, "--over-sampling-batch-size", "4")), 2, "over-sampling-batch-size");
  expect_one_line_failure(run(with_flag(words, "--rollout-phase-tokens", "6")), 2, "rollout-phase-tokens");
  Arguments whole = words;
  std::erase(whole, "--partial-rollout");
  const auto tokens = std::ranges::find(whole, "--rollout-phase-tokens");
  whole.erase(tokens, tokens + 2);
  expect_one_line_failure(run(whole), 2, "partial-rollout");
  // The remedy that the refusal of other flags names.
  Arguments shorter_words = with_flag(words, "--rollout-max-response-len", "1");
  shorter_words.push_back("--allow-changed-config");
  const Captured shorter = run(shorter_words);
  EXPECT_EQ(shorter.code, 2);
  EXPECT_NE(shorter.err.find("or leave out --partial-rollout and --max-weight-staleness"), std::string::npos)
      << shorter.err;
  whole = with_flag(whole, "--rollout-max-response-len", "1");
  whole.push_back("--allow-changed-config");
  const Captured dropped = run(whole);
  EXPECT_EQ(dropped.code, 0) << dropped.err;
  EXPECT_NE(dropped.err.find("that had begun are dropped"), std::string::npos) << dropped.err;
}

}  // namespace
}  // namespace tandem::cli
