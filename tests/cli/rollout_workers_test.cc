// Processes that only sample are not an input of the results: how many there are, who joins, leaves or dies, and that
// there are any, changes no byte of weights, masters, moments, metrics and samples.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <map>
#include <random>

#include "tandem/error.h"
#include "tests/base/soak.h"
#include "tests/cli/rank_runs.h"
#include "tests/cli/tiny_run.h"

namespace tandem::cli {
namespace {

Arguments arguments(const base::TemporaryDirectory& folder, const std::string& name, const Arguments& more = {}) {
  Arguments result =
      with_custom_reward(train_arguments(folder / name, {"--max-tokens-per-gpu", "64", "--save-interval", "1",
                                                         "--dtype", "float32", "--num-threads", "1"}),
                         write_reward(folder));
  for (size_t i = 0; i + 1 < more.size(); i += 2) result = with_flag(result, more[i], more[i + 1]);
  return result;
}

// The same run with processes that only sample.
Arguments with_workers(Arguments words, int trainers, int workers) {
  std::erase(words, "--colocate");
  words = with_flag(words, "--rollout-num-gpus", std::to_string(workers));
  return with_flag(words, "--actor-num-gpus-per-node", std::to_string(trainers));
}

Arguments going_on(Arguments words, const std::string& run) {
  words = with_flag(words, "--load", run);
  words.push_back("--allow-fresh-start");
  return words;
}

Arguments joining(Arguments words) {
  words.push_back("--rollout-join");
  return words;
}

std::string proc_file(pid_t pid, const char* name) {
  try {
    return base::read_file(fmt::format("/proc/{}/{}", pid, name));
  } catch (const UserError&) {
    return "";
  }
}

// The processes that a launcher started, by rank.
std::map<int, pid_t> processes_of(pid_t launcher, size_t count) {
  const std::string parent = fmt::format("\nPPid:\t{}\n", launcher), key = std::string("\0RANK=", 6);
  std::map<int, pid_t> found;
  for (int tries = 0; tries < 1000 && found.size() < count; ++tries, usleep(10'000)) {
    for (const std::string& name : base::list_directory("/proc")) {
      const pid_t pid = std::atoi(name.c_str());
      if (pid == 0 || proc_file(pid, "status").find(parent) == std::string::npos) continue;
      const std::string environment = '\0' + proc_file(pid, "environ");
      if (const size_t at = environment.find(key); at != std::string::npos)
        found[std::atoi(environment.c_str() + at + key.size())] = pid;
    }
  }
  return found;
}

bool is_running(pid_t pid) {
  const std::string stat = proc_file(pid, "stat");
  return !stat.empty() && stat.find(") Z ") == std::string::npos;
}

// Waits for the first rollout's samples.
void wait_for_rollout(const std::string& run, int rollout) {
  const std::string file = fmt::format("{}/samples/rollout_{:06}.jsonl", run, rollout);
  for (int tries = 0; tries < 6000 && !base::file_exists(file); ++tries) usleep(10'000);
  EXPECT_TRUE(base::file_exists(file));
}

class RolloutWorkers : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new base::TemporaryDirectory();
    const Captured alone = run_program(arguments(*folder_, "colocated"));
    ASSERT_EQ(alone.code, 0) << alone.err;
    colocated_ = new Results(*folder_ / "colocated");
  }
  static void TearDownTestSuite() {
    delete colocated_;
    delete folder_;
  }
  // But for what is counted of processes that were lost.
  static Results results(const std::string& name) {
    Results of_run(*folder_ / name);
    std::string text;
    std::istringstream lines(of_run.metrics);
    for (std::string line; std::getline(lines, line);) {
      base::Json record = base::parse_json(line, name);
      record.erase("fault/lost_workers");
      text += base::dump_json(record) + "\n";
    }
    of_run.metrics = text;
    return of_run;
  }
  static void expect_same(const std::string& name) { expect_equal(results(name), *colocated_, name); }

  static inline base::TemporaryDirectory* folder_ = nullptr;
  static inline Results* colocated_ = nullptr;
};

TEST_F(RolloutWorkers, SeparateIsTheSameRunAsColocated) {
  for (const auto& [trainers, workers] : {std::pair{1, 1}, {1, 2}, {2, 1}, {2, 3}}) {
    if (!base::soaking() && trainers + workers != 3) continue;
    const std::string name = fmt::format("{}+{}", trainers, workers);
    const Captured result = run_program(with_workers(arguments(*folder_, name), trainers, workers));
    ASSERT_EQ(result.code, 0) << name << ": " << result.err;
    expect_same(name);
    EXPECT_NE(base::read_file(*folder_ / name + "/metrics.jsonl").find("perf/update_weights_time"), std::string::npos);
  }
}

// Small pieces, an adapter beside its base, a filter, and evaluations.
TEST_F(RolloutWorkers, AnAdapterAFilterAndEvaluationsToo) {
  const Arguments mix = arguments(*folder_, "mix",
                                  {"--lora-rank", "2", "--dynamic-sampling-filter-path", "nonzero_std",
                                   "--eval-interval", "1", "--update-weight-buffer-size", "1000"});
  Arguments with_eval = mix;
  with_eval.insert(with_eval.end(), {"--eval-prompt-data", "held", kPrompts});
  const Captured colocated = run_program(with_eval);
  ASSERT_EQ(colocated.code, 0) << colocated.err;
  const Captured separate = run_program(with_workers(with_flag(with_eval, "--save", *folder_ / "mix_1+1"), 1, 1));
  ASSERT_EQ(separate.code, 0) << separate.err;
  const std::string got = *folder_ / "mix_1+1", want = *folder_ / "mix";
  EXPECT_EQ(metrics_of(got), metrics_of(want));
  EXPECT_TRUE(optimizer_state(got) == optimizer_state(want));
  for (const char* file : {"hf/latest/adapter_model.safetensors", "samples/rollout_000001.jsonl",
                           "samples/eval_held_000000.jsonl", "samples/eval_held_000002.jsonl"}) {
    EXPECT_TRUE(base::read_file(got + "/" + file) == base::read_file(want + "/" + file)) << file;
  }
}

TEST_F(RolloutWorkers, OneThatIsKilledIsMissedByNobody) {
  std::mt19937_64 random(7);
  for (int64_t i = 0; i < base::short_or_full(1, 50); ++i) {
    const std::string name = fmt::format("killed_{}", i);
    Program program(with_workers(arguments(*folder_, name), 1, 2));
    const std::map<int, pid_t> processes = processes_of(program.pid(), 3);
    ASSERT_EQ(processes.size(), 3U);
    if (i % 2 == 0) wait_for_rollout(*folder_ / name, 0);
    usleep(static_cast<useconds_t>(random() % 1'000'000));
    kill(processes.at(1 + static_cast<int>(random() % 2)), SIGKILL);
    ASSERT_TRUE(program.wait_for(120.0)) << "kill " << i;
    EXPECT_EQ(program.wait(), 0);
    expect_same(name);
  }
}

// The only one dies; another joins by hand, is asked to leave, and a third brings the run to its end.
TEST_F(RolloutWorkers, OthersJoinAndLeaveARunThatGoesOn) {
  const Arguments words = with_workers(arguments(*folder_, "joined"), 1, 1);
  Program program(words);
  const std::map<int, pid_t> processes = processes_of(program.pid(), 2);
  ASSERT_EQ(processes.size(), 2U);
  wait_for_rollout(*folder_ / "joined", 0);
  kill(processes.at(1), SIGKILL);
  Program second(joining(words));
  usleep(500'000);
  second.signal(SIGTERM);
  EXPECT_TRUE(second.wait_for(30.0));
  Program third(joining(words));
  ASSERT_TRUE(program.wait_for(120.0));
  EXPECT_EQ(program.wait(), 0);
  EXPECT_TRUE(third.wait_for(30.0));
  EXPECT_EQ(third.wait(), 0) << "it ends with the run";
  expect_same("joined");
}

TEST_F(RolloutWorkers, OneWithOtherFlagsIsRefused) {
  const Arguments words = with_workers(arguments(*folder_, "refusing"), 1, 1);
  Program program(words);
  const Captured refused = run_program(joining(with_flag(words, "--lr", "2e-3")));
  EXPECT_EQ(refused.code, 2);
  EXPECT_NE(refused.err.find("--lr"), std::string::npos) << refused.err;
  EXPECT_TRUE(program.wait_for(120.0));
  EXPECT_EQ(program.wait(), 0);
  expect_same("refusing");
}

TEST_F(RolloutWorkers, ATrainerThatDiesEndsAllAndTheRunGoesOn) {
  const Arguments words = going_on(with_workers(arguments(*folder_, "ended"), 1, 2), *folder_ / "ended");
  {
    Program program(words);
    const std::map<int, pid_t> processes = processes_of(program.pid(), 3);
    ASSERT_EQ(processes.size(), 3U);
    wait_for_rollout(*folder_ / "ended", 0);
    kill(processes.at(0), SIGKILL);
    EXPECT_TRUE(program.wait_for(10.0));
    EXPECT_EQ(program.wait(), 3);
    for (const auto& [rank, pid] : processes) EXPECT_FALSE(is_running(pid)) << "rank " << rank;
  }
  const Captured result = run_program(words);
  ASSERT_EQ(result.code, 0) << result.err;
  expect_same("ended");
}

TEST_F(RolloutWorkers, CtrlCSavesWhatIsFinished) {
  const Arguments words = going_on(with_workers(arguments(*folder_, "stopped"), 1, 1), *folder_ / "stopped");
  {
    Program program(words);
    wait_for_rollout(*folder_ / "stopped", 0);
    program.signal(SIGINT);
    EXPECT_TRUE(program.wait_for(60.0));
    EXPECT_EQ(program.wait(), 130);
  }
  ASSERT_EQ(run_program(words).code, 0);
  expect_same("stopped");
}

TEST_F(RolloutWorkers, FlagsThatContradictEachOtherAreNamed) {
  const auto refusal = [&](const Arguments& words) {
    const Captured result = run_program(words);
    EXPECT_EQ(result.code, 2) << result.err;
    return result.err;
  };
  const Arguments colocated = arguments(*folder_, "contradicting");
  Arguments neither = colocated;
  std::erase(neither, "--colocate");
  EXPECT_NE(refusal(neither).find("--rollout-num-gpus"), std::string::npos);
  EXPECT_NE(refusal(with_flag(colocated, "--rollout-num-gpus", "2")).find("leave one"), std::string::npos);
  EXPECT_NE(refusal(joining(colocated)).find("--rollout-join"), std::string::npos);
}

}  // namespace
}  // namespace tandem::cli
