// Checks that rollout workers do not change results: how many there are, who joins, leaves or dies, and whether there
// are any, changes no byte of weights, masters, moments, metrics and samples.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <csignal>
#include <map>
#include <random>

#include "tests/base/soak.h"
#include "tests/cli/ranks/rank_processes.h"
#include "tests/cli/workers/worker_runs.h"

namespace tandem::cli {
namespace {

using RolloutWorkers = WorkerRuns;

TEST_F(RolloutWorkers, SeparateIsTheSameRunAsColocated) {
  for (const auto& [trainers, workers] : {std::pair{1, 1}, {1, 2}, {2, 1}, {2, 3}}) {
    if (!base::soaking() && trainers + workers != 3) continue;
    const std::string name = fmt::format("{}+{}", trainers, workers);
    const Captured result = run_program(with_workers(run_arguments(name), trainers, workers));
    ASSERT_EQ(result.code, 0) << name << ": " << result.err;
    expect_same(name);
    EXPECT_NE(base::read_file(path(name) + "/metrics.jsonl").find("perf/update_weights_time"), std::string::npos);
  }
}

// The run has small pieces, an adapter and a whole embedding over a base in four bits, a filter, and evaluations.
TEST_F(RolloutWorkers, AnAdapterAFilterAndEvaluationsToo) {
  const Arguments mix = run_arguments("mix", {"--lora-rank", "2", "--modules-to-save", "embed_tokens", "--dtype", "nf4",
                                              "--dynamic-sampling-filter-path", "nonzero_std", "--eval-interval", "1",
                                              "--update-weight-buffer-size", "1000"});
  Arguments with_eval = mix;
  with_eval.insert(with_eval.end(), {"--eval-prompt-data", "held", kPrompts});
  const Captured colocated = run(with_eval);
  ASSERT_EQ(colocated.code, 0) << colocated.err;
  const Captured separate = run_program(with_workers(with_flag(with_eval, "--save", path("mix_1+1")), 1, 1));
  ASSERT_EQ(separate.code, 0) << separate.err;
  const std::string got = path("mix_1+1"), want = path("mix");
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
    Program program(with_workers(run_arguments(name), 1, 2));
    const std::map<int, pid_t> processes = processes_of(program.pid(), 3);
    ASSERT_EQ(processes.size(), 3U);
    if (i % 2 == 0) wait_for_rollout(name, 0);
    usleep(static_cast<useconds_t>(random() % 1'000'000));
    kill(processes.at(1 + static_cast<int>(random() % 2)), SIGKILL);
    ASSERT_TRUE(program.wait_for(120.0)) << "kill " << i;
    EXPECT_EQ(program.wait(), 0);
    expect_same(name);
  }
}

// The only worker dies; another joins by hand, is asked to leave, and a third brings the run to its end.
TEST_F(RolloutWorkers, OthersJoinAndLeaveARunThatGoesOn) {
  const Arguments words = with_workers(run_arguments("joined"), 1, 1);
  Program program(words);
  const std::map<int, pid_t> processes = processes_of(program.pid(), 2);
  ASSERT_EQ(processes.size(), 2U);
  wait_for_steps("joined", 1);
  kill(processes.at(1), SIGKILL);
  Program second(joining(words), 0, path("second.err"));
  wait_for_text(path("second.err"), "samples for the run");
  second.signal(SIGTERM);
  EXPECT_TRUE(second.wait_for(30.0));
  Program third(joining(words));
  ASSERT_TRUE(program.wait_for(120.0));
  EXPECT_EQ(program.wait(), 0);
  EXPECT_TRUE(third.wait_for(30.0));
  EXPECT_EQ(third.wait(), 0) << "it ends with the run";
  expect_same("joined");
}

// Processes that sample groups have the function's processes, and the others have no grader.
TEST_F(RolloutWorkers, TheUsersCodeRunsInWorkersAlone) {
  const std::string functions = "tests/cli/generate/turns.py";
  Arguments words =
      run_arguments("turns", {"--custom-rm-path", functions + ":reward", "--rollout-max-response-len", "16"});
  words.insert(words.end(), {"--custom-generate-function-path", functions + ":turns"});
  const Captured colocated = run(words);
  ASSERT_EQ(colocated.code, 0) << colocated.err;
  Program program(with_workers(with_flag(words, "--save", path("turns_1+2")), 1, 2));
  const std::map<int, pid_t> processes = processes_of(program.pid(), 3);
  ASSERT_EQ(processes.size(), 3U);
  wait_for_steps("turns_1+2", 1);
  EXPECT_EQ(num_graders(processes.at(0)), 0);
  EXPECT_GT(num_graders(processes.at(1)) + num_graders(processes.at(2)), 0);
  ASSERT_TRUE(program.wait_for(120.0));
  EXPECT_EQ(program.wait(), 0);
  expect_same("turns_1+2", Results(path("turns")));
}

TEST_F(RolloutWorkers, OneWithOtherFlagsIsRefused) {
  const Arguments words = with_workers(run_arguments("refusing"), 1, 1);
  Program program(words);
  const Captured refused = run_program(joining(with_flag(words, "--lr", "2e-3")));
  EXPECT_EQ(refused.code, 2);
  EXPECT_NE(refused.err.find("--lr"), std::string::npos) << refused.err;
  EXPECT_TRUE(program.wait_for(120.0));
  EXPECT_EQ(program.wait(), 0);
  expect_same("refusing");
}

TEST_F(RolloutWorkers, ATrainerThatDiesEndsAllAndTheRunGoesOn) {
  const Arguments words = going_on(with_workers(run_arguments("ended"), 1, 2), path("ended"));
  {
    Program program(words);
    const std::map<int, pid_t> processes = processes_of(program.pid(), 3);
    ASSERT_EQ(processes.size(), 3U);
    wait_for_rollout("ended", 0);
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
  const Arguments words = going_on(with_workers(run_arguments("stopped"), 1, 1), path("stopped"));
  {
    Program program(words);
    wait_for_rollout("stopped", 0);
    program.signal(SIGINT);
    EXPECT_TRUE(program.wait_for(60.0));
    EXPECT_EQ(program.wait(), 130);
  }
  ASSERT_EQ(run_program(words).code, 0);
  expect_same("stopped");
}

}  // namespace
}  // namespace tandem::cli
