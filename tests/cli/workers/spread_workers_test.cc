// Checks rollout workers of a model that is spread over devices: each engine is several processes, and how many engines
// there are, who joins and who dies changes no bit.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <csignal>
#include <map>
#include <random>

#include "tests/base/soak.h"
#include "tests/cli/memory/planned_memory.h"
#include "tests/cli/ranks/rank_processes.h"
#include "tests/cli/ranks/without_ranks.h"
#include "tests/cli/workers/worker_runs.h"

namespace tandem::cli {
namespace {

class SpreadWorkers : public WorkerRuns {
 protected:
  static void SetUpTestSuite() {
    WorkerRuns::SetUpTestSuite();
    const Captured colocated = run_program(with_flag(spread_arguments("colocated"), "--actor-num-gpus-per-node", "2"));
    ASSERT_EQ(colocated.code, 0) << colocated.err;
    own_ = new Results(path("colocated"));
  }

  // Returns arguments of a run with a tensor-parallel group of two.
  static Arguments spread_arguments(const std::string& name, const Arguments& more = {}) {
    return with_flag(run_arguments(name, more), "--tensor-model-parallel-size", "2");
  }
};

// Pieces are small: each part is sent in many. Rank 0 has copies of the other trainer's.
TEST_F(SpreadWorkers, OneEngineGivesTheRunOfColocated) {
  const Captured result =
      run_program(with_workers(spread_arguments("2+2", {"--update-weight-buffer-size", "1000"}), 2, 2));
  ASSERT_EQ(result.code, 0) << result.err;
  expect_same("2+2");
  const base::Json phases = last_step(path("2+2"))["phases"];
  for (const auto& [tag, most] : phases["train"]["most"].items()) {
    if (tag == "overhead") continue;  // a sanitizer's own memory is none of ours
    EXPECT_LE(most, phases["train"]["planned"][tag]) << tag;
  }
  EXPECT_EQ(bytes(phases["rollout"], "most", "weights"), bytes(phases["rollout"], "planned", "weights"));
}

TEST_F(SpreadWorkers, TwoReplicasOfTrainersToo) {
  Arguments words = {"launch", "--nproc-per-node", "6", "--"};
  for (const std::string& word : with_workers(spread_arguments("4+2"), 4, 2)) words.push_back(word);
  const Captured result = run_program(words);
  ASSERT_EQ(result.code, 0) << result.err;
  expect_same("4+2");
}

// One process of an engine dies, the first or the second, and the engine with it; the other engine gets its groups.
TEST_F(SpreadWorkers, AnEngineThatLosesAProcessIsMissedByNobody) {
  std::mt19937_64 random(7);
  for (int64_t i = 0; i < base::short_or_full(1, 50); ++i) {
    const std::string name = fmt::format("killed_{}", i);
    Program program(with_workers(spread_arguments(name, i == 0 ? graded_slowly(0.5) : Arguments()), 2, 4));
    const std::map<int, pid_t> processes = processes_of(program.pid(), 6);
    ASSERT_EQ(processes.size(), 6U);
    if (i % 2 == 0) wait_for_rollout(name, 0);
    if (i > 0) usleep(static_cast<useconds_t>(random() % 2'000'000));
    kill(processes.at(i == 0 ? 5 : 2 + static_cast<int>(random() % 4)), SIGKILL);
    ASSERT_TRUE(program.wait_for(120.0)) << "kill " << i;
    EXPECT_EQ(program.wait(), 0);
    expect_same(name);
    if (i == 0) {
      EXPECT_EQ(num_lost_workers(name), 1);
    }
  }
}

// The only engine is asked to leave through its second process, while its groups are graded; another joins by hand, as
// two processes.
TEST_F(SpreadWorkers, EnginesLeaveAndJoinARunThatGoesOn) {
  const Arguments words = with_workers(spread_arguments("joined", graded_slowly()), 2, 2);
  Program program(words);
  const std::map<int, pid_t> processes = processes_of(program.pid(), 4);
  ASSERT_EQ(processes.size(), 4U);
  wait_for_text(path("joined") + "/grader_output.txt", "graded");
  kill(processes.at(3), SIGTERM);
  Program joined(joining(words));
  ASSERT_TRUE(program.wait_for(120.0));
  EXPECT_EQ(program.wait(), 0);
  EXPECT_TRUE(joined.wait_for(30.0));
  EXPECT_EQ(joined.wait(), 0) << "it ends with the run";
  expect_same("joined");
  EXPECT_EQ(num_lost_workers("joined"), 0) << "the first one has left";
}

TEST_F(SpreadWorkers, AnEngineNeedsAllItsDevices) {
  const Captured result = run_without_ranks(with_workers(spread_arguments("odd"), 2, 3));
  EXPECT_EQ(result.code, 2);
  EXPECT_NE(result.err.find("--rollout-num-gpus 3 with --tensor-model-parallel-size 2"), std::string::npos)
      << result.err;
}

}  // namespace
}  // namespace tandem::cli
