// Checks rollout workers that die, stop or never come, in the middle of anything. The run continues with the others and
// changes no bit, or ends and tells why.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <random>

#include "base/clock.h"
#include "mesh/network.h"
#include "tests/base/soak.h"
#include "tests/cli/memory/process_size.h"
#include "tests/cli/workers/worker_runs.h"

namespace tandem::cli {
namespace {

using WorkerFaults = WorkerRuns;

// A worker that is stopped when a rollout's last optimizer step is made takes no weights, and rank 0 waits for it in
// the middle of them: the rollout's samples are written after that.
TEST_F(WorkerFaults, OneThatDiesWhileWeightsAreSentIsMissedByNobody) {
  constexpr int64_t kRollouts = 2, kStepsPerRollout = 2;
  const std::string name = "torn";
  Program program(with_workers(run_arguments(name, {"--update-weight-buffer-size", "64"}), 1, 2));
  const std::map<int, pid_t> processes = processes_of(program.pid(), 3);
  ASSERT_EQ(processes.size(), 3U);
  const pid_t victim = processes.at(2);
  bool was_caught = false;
  for (int64_t rollout = 0; rollout < kRollouts && !was_caught; ++rollout) {
    wait_for_steps(name, kStepsPerRollout * (rollout + 1));
    kill(victim, SIGSTOP);
    // A run that need not wait for the worker writes them, on a busy machine after seconds.
    for (int i = 0; i < 50 && !base::file_exists(samples_of(name, rollout)); ++i) usleep(100'000);
    was_caught = !base::file_exists(samples_of(name, rollout));
    kill(victim, SIGCONT);
    usleep(1'000);  // the worker takes some more of the weights
  }
  kill(victim, SIGKILL);
  EXPECT_TRUE(was_caught) << "nothing was tested";
  ASSERT_TRUE(program.wait_for(120.0));
  EXPECT_EQ(program.wait(), 0);
  expect_same(name);
  EXPECT_EQ(num_lost_workers(name), 1);
}

// One worker joins by hand while the other cannot, so that it has all groups when it is stopped, in the first one's
// grading.
TEST_F(WorkerFaults, OneThatIsSilentIsGivenUpAndEndsWhenItWakes) {
  base::write_file_durably(path("slow.py"),
                           "import time\n"
                           "def reward(prompts, completions, **kwargs):\n"
                           "    print('graded', flush=True)\n"
                           "    time.sleep(0.5)\n"
                           "    return [float(len(c[0]['content']) % 5) for c in completions]\n");
  const Arguments words =
      with_workers(run_arguments("silent", {"--custom-rm-path", path("slow.py:reward"),
                                            "--rollout-health-check-timeout", "2", "--rm-num-workers", "1"}),
                   1, 1);
  Program program(words);
  const std::map<int, pid_t> processes = processes_of(program.pid(), 2);
  ASSERT_EQ(processes.size(), 2U);
  kill(processes.at(1), SIGSTOP);
  const std::string errors = path("silent.err");
  Program silent(joining(words), 0, errors);
  wait_for_text(path("silent") + "/grader_output.txt", "graded");
  silent.signal(SIGSTOP);
  kill(processes.at(1), SIGCONT);
  ASSERT_TRUE(program.wait_for(120.0));
  EXPECT_EQ(program.wait(), 0);
  expect_same("silent");
  EXPECT_EQ(num_lost_workers("silent"), 1);
  EXPECT_FALSE(silent.wait_for(0.1));
  silent.signal(SIGCONT);
  ASSERT_TRUE(silent.wait_for(30.0)) << "it hangs";
  EXPECT_EQ(silent.wait(), 3);
  const std::string said = base::read_file(errors);
  EXPECT_NE(said.find("; if it still runs, it has given this process up for its silence "
                      "(--rollout-health-check-timeout), and another may join"),
            std::string::npos)
      << said;
}

// A single trainer is stopped while it samples, trains or saves: its launcher notices, and so does a worker that joined
// by hand.
TEST_F(WorkerFaults, ATrainerThatIsFrozenIsMissedByTheLauncherAndByWorkers) {
  const int seed = testing::UnitTest::GetInstance()->random_seed();
  std::mt19937_64 random(static_cast<uint64_t>(seed));
  const Arguments run = with_workers(run_arguments("frozen", graded_slowly()), 1, 2);
  const Arguments words = with_flag(going_on(run, path("frozen")), "--distributed-timeout-minutes", "0.3");
  const std::string errors = path("frozen.err");
  {
    Program program(words, 0, errors);
    const std::map<int, pid_t> processes = processes_of(program.pid(), 3);
    ASSERT_EQ(processes.size(), 3U);
    Program joined(with_flag(joining(run), "--distributed-timeout-minutes", "0.1"));
    wait_for_text(errors, "has joined");
    usleep(static_cast<useconds_t>(random() % 1'000'000));
    ASSERT_TRUE(is_running(processes.at(0)));
    kill(processes.at(0), SIGSTOP);
    ASSERT_TRUE(joined.wait_for(60.0)) << "it waits for a run that says nothing; seed " << seed;
    EXPECT_EQ(joined.wait(), 3);
    ASSERT_TRUE(program.wait_for(90.0)) << "seed " << seed;
    EXPECT_EQ(program.wait(), 3);
    for (const auto& [rank, pid] : processes) EXPECT_FALSE(is_running(pid)) << "rank " << rank;
  }
  const std::string said = base::read_file(errors);
  EXPECT_NE(said.find("rank 0 of 3"), std::string::npos) << said;
  EXPECT_NE(said.find("has said nothing for 18 s (--distributed-timeout-minutes): it was stopped or frozen, and was "
                      "killed; the others were ended"),
            std::string::npos)
      << said;
  const Captured again = run_program(words);
  ASSERT_EQ(again.code, 0) << again.err;
  expect_same("frozen");
}

TEST_F(WorkerFaults, WhereNoneCanComeAnyMoreTheRunEndsWithTheReason) {
  const std::string errors = path("alone.err");
  Program program(with_workers(run_arguments("alone"), 1, 2), 0, errors);
  const std::map<int, pid_t> processes = processes_of(program.pid(), 3);
  ASSERT_EQ(processes.size(), 3U);
  kill(processes.at(1), SIGKILL);
  kill(processes.at(2), SIGKILL);
  ASSERT_TRUE(program.wait_for(60.0)) << "it waits as long as --distributed-timeout-minutes";
  EXPECT_EQ(program.wait(), 3);
  const std::string said = base::read_file(errors);
  EXPECT_NE(said.find("no process that samples has joined the run, and none is left: rank "), std::string::npos)
      << said;
  EXPECT_NE(said.find(" of 3 was killed by signal 9; mend that and start the run again"), std::string::npos) << said;
}

// torchrun starts them like this: each by itself, with variables that tell which it is.
TEST_F(WorkerFaults, UnderAnotherLauncherTheFirstTrainAndTheLastSample) {
  const Arguments words = with_workers(run_arguments("torchrun"), 2, 1);
  const int port = mesh::port_of(mesh::listen_at("127.0.0.1", 0));
  std::deque<Program> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    for (const auto& [variable, value] : {std::pair<const char*, std::string>{"RANK", std::to_string(rank)},
                                          {"LOCAL_RANK", std::to_string(rank)},
                                          {"WORLD_SIZE", "3"},
                                          {"LOCAL_WORLD_SIZE", "3"},
                                          {"MASTER_ADDR", "127.0.0.1"},
                                          {"MASTER_PORT", std::to_string(port)}})
      setenv(variable, value.c_str(), 1);
    ranks.emplace_back(words);
  }
  for (const char* variable : {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"})
    unsetenv(variable);
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    ASSERT_TRUE(ranks[rank].wait_for(120.0)) << "rank " << rank;
    EXPECT_EQ(ranks[rank].wait(), 0) << "rank " << rank;
  }
  expect_same("torchrun");
}

// Workers are killed at drawn moments, and others take their place. They die early if the run would otherwise be over
// before there were so many deaths.
TEST_F(WorkerFaults, DeathsWithoutEndChangeNoBit) {
  const int64_t num_deaths = base::short_or_full(3, 200), num_rollouts = base::short_or_full(12, 300);
  const int seed = testing::UnitTest::GetInstance()->random_seed();
  std::mt19937_64 random(static_cast<uint64_t>(seed));
  const Arguments words = run_arguments(
      "deathless", {"--num-rollout", std::to_string(num_rollouts), "--save-interval", std::to_string(num_rollouts)});
  ASSERT_EQ(run(words).code, 0);
  const Arguments separate = with_workers(with_flag(words, "--save", path("deaths")), 1, 1);
  // A worker that comes when the run is over looks for it half a minute.
  const Arguments another = with_flag(joining(separate), "--distributed-timeout-minutes", "0.5");
  Program program(separate);
  const std::map<int, pid_t> processes = processes_of(program.pid(), 2);
  ASSERT_EQ(processes.size(), 2U);
  const base::Clock::time_point begin = base::Clock::now();
  wait_for_rollout("deaths", 0);
  kill(processes.at(1), SIGKILL);
  std::deque<std::unique_ptr<Program>> workers;
  int64_t deaths = 1;
  for (; deaths < num_deaths && is_running(program.pid()); ++deaths) {
    while (workers.size() < 2) workers.push_back(std::make_unique<Program>(another));
    const bool is_ahead = newest_samples(path("deaths"), num_rollouts) * num_deaths > deaths * num_rollouts;
    usleep(static_cast<useconds_t>(random() % (is_ahead ? 200'000 : base::soaking() ? 1'500'000 : 1'000'000)));
    workers.pop_front();  // the older worker, by SIGKILL
  }
  EXPECT_EQ(deaths, num_deaths) << "the run was too short";
  ASSERT_TRUE(program.wait_for(600.0)) << "seed " << seed;
  EXPECT_EQ(program.wait(), 0) << "seed " << seed;
  for (const auto& worker : workers) EXPECT_TRUE(worker->wait_for(60.0)) << "it ends with the run";
  std::printf("seed %d: %ld workers killed in %.0f s, %ld of them had joined\n", seed, deaths,
              base::seconds_since(begin), num_lost_workers("deaths"));
  expect_same("deaths", Results(path("deathless")));
}

}  // namespace
}  // namespace tandem::cli
