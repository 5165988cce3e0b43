// Checks that results do not depend on how many processes train: weights, masters, moments, metrics and samples have
// the same bytes for any number of ranks, also if a run resumes with another number, or lost a rank on the way.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <random>
#include <set>
#include <utility>

#include "base/clock.h"
#include "tandem/error.h"
#include "tests/base/soak.h"
#include "tests/cli/ranks/rank_processes.h"
#include "tests/cli/ranks/rank_runs.h"
#include "tests/cli/ranks/started_ranks.h"
#include "tests/mesh/foreign_user.h"

namespace tandem::cli {
namespace {

constexpr int64_t kMaxFileBytes = int64_t{1} << 40;  // no limit that a run meets

// Returns the arguments of three rollouts of two optimizer steps, each of several micro-batches.
Arguments arguments(const base::TemporaryDirectory& folder, const std::string& name, const Arguments& more = {}) {
  Arguments result = with_custom_reward(
      train_arguments(folder / name, {"--max-tokens-per-gpu", "64", "--save-interval", "1", "--dtype", "float32"}),
      write_reward(folder));
  result = with_flag(result, "--num-rollout", "3");
  for (size_t i = 0; i + 1 < more.size(); i += 2) result = with_flag(result, more[i], more[i + 1]);
  return result;
}

Arguments going_on(const base::TemporaryDirectory& folder, const std::string& name) {
  Arguments result = arguments(folder, name, {"--load", folder / name});
  result.push_back("--allow-fresh-start");
  return result;
}

class DataParallel : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new base::TemporaryDirectory();
    const Captured alone = run(with_ranks(arguments(*folder_, "alone"), 1));
    ASSERT_EQ(alone.code, 0) << alone.err;
    alone_ = new Results(*folder_ / "alone");
  }
  static void TearDownTestSuite() {
    delete alone_;
    delete folder_;
  }
  Results results(const std::string& name) const { return Results(*folder_ / name); }
  // Returns the largest value in all records of the run.
  static double largest(const std::string& run, const std::string& metric) {
    double most = 0.0;
    std::istringstream lines(base::read_file(*folder_ / run + "/metrics.jsonl"));
    for (std::string line; std::getline(lines, line);) {
      most = std::max(most, base::parse_json(line, run).value(metric, 0.0));
    }
    return most;
  }

  static inline base::TemporaryDirectory* folder_ = nullptr;
  static inline Results* alone_ = nullptr;  // results of one rank
};

TEST_F(DataParallel, AnyNumberGivesTheSameRun) {
  for (const int ranks : {2, 3, 4, 8}) {
    if (!base::soaking() && (ranks == 3 || ranks == 4)) continue;
    const std::string name = fmt::format("run_{}", ranks);
    const Captured result = run_program(with_ranks(arguments(*folder_, name), ranks));
    ASSERT_EQ(result.code, 0) << ranks << " ranks: " << result.err;
    expect_equal(results(name), *alone_, fmt::format("{} ranks", ranks));
    EXPECT_TRUE(base::file_exists(
        fmt::format("{}/checkpoints/step_000003/shard_{:05}.safetensors", *folder_ / name, ranks - 1)))
        << "each rank writes its own part";
    EXPECT_GT(largest(name, "perf/train_comm_gib"), 0.0);
    EXPECT_GT(largest(name, "perf/train_comm_wait_time"), 0.0);
  }
}

// Groups of 8 micro-batches have ranks that wait for their second round. Other groups and numbers of ranks are those of
// tests/trainer/data_parallel_test.cc.
TEST_F(DataParallel, SumsOfGroupsAreTheSameForAnyNumber) {
  const Arguments flags = {"--gradient-sum-group", "8", "--max-tokens-per-gpu", "20", "--global-batch-size", "12"};
  for (const auto& [name, ranks] : {std::pair{"sums_alone", 1}, {"sums_of_four", 4}}) {
    const Captured result = run_program(with_ranks(arguments(*folder_, name, flags), ranks));
    ASSERT_EQ(result.code, 0) << ranks << " ranks: " << result.err;
  }
  expect_equal(results("sums_of_four"), results("sums_alone"), "sums of 8, 4 ranks");
}

// Completions of one length make micro-batches of one shape, whose tensors leave holes of other sizes.
TEST_F(DataParallel, TheArenaHoldsATinyModelWhateverTheLengths) {
  const base::TemporaryDirectory folder;
  std::string prompts;
  for (int i = 0; i < 64; ++i)
    prompts += fmt::format("{{\"prompt\": \"{} + {} =\", \"label\": \"1\"}}\n", 10 + i, 99 - i);
  base::write_file_durably(folder / "prompts.jsonl", prompts);
  for (const char* const length : {"7", "8"}) {
    const Captured result = run_program(with_ranks(
        {"train", "--colocate", "--hf-checkpoint", "examples/arithmetic/checkpoint", "--prompt-data",
         folder / "prompts.jsonl", "--rm-type", "exact", "--rollout-batch-size", "32", "--n-samples-per-prompt", "8",
         "--num-rollout", "1", "--rollout-max-response-len", length, "--ignore-eos", "--save", folder / length},
        2));
    EXPECT_EQ(result.code, 0) << length << " tokens: " << result.err;
  }
}

TEST_F(DataParallel, WithAReferenceEpochsAndOffloadToo) {
  Arguments mix = arguments(
      *folder_, "mix_alone",
      {"--dtype", "bfloat16", "--kl-loss-coef", "0.01", "--num-epochs-per-rollout", "2", "--num-rollout", "2"});
  mix.insert(mix.end(), {"--use-kl-loss", "--rollout-shuffle", "--offload-train"});
  const Captured alone = run(with_ranks(mix, 1));
  ASSERT_EQ(alone.code, 0) << alone.err;
  const Captured three = run_program(with_ranks(with_flag(mix, "--save", *folder_ / "mix_3"), 3));
  ASSERT_EQ(three.code, 0) << three.err;
  expect_equal(results("mix_3"), results("mix_alone"), "3 ranks");
}

TEST_F(DataParallel, ARunGoesOnWithAnotherNumber) {
  int done = 0;
  for (const int ranks : {3, 1, 2}) {
    const Arguments words = with_flag(going_on(*folder_, "changing"), "--num-rollout", std::to_string(++done));
    const Captured result = run_program(with_ranks(words, ranks));
    ASSERT_EQ(result.code, 0) << ranks << " ranks: " << result.err;
  }
  expect_equal(results("changing"), *alone_, "3, then 1, then 2 ranks");
}

// A limit on file sizes makes the disk full for all ranks, until one of them has said so: records and the log fit, the
// parts of a checkpoint do not. The graders take their time, so that the disk has space again before the last rollout.
TEST_F(DataParallel, AFullDiskEndsNoneOfThemWhereAskedAndTheNextStepIsSaved) {
  constexpr int kRanks = 2;
  const auto limit_files = [](const std::map<int, pid_t>& ranks, rlim_t bytes) {
    for (const auto& [rank, pid] : ranks) {
      const rlimit limit = {bytes, kMaxFileBytes};
      ASSERT_EQ(prlimit(pid, RLIMIT_FSIZE, &limit, nullptr), 0) << "rank " << rank;
    }
  };
  base::write_file_durably(*folder_ / "unhurried.py",
                           "import time\n"
                           "def reward(prompts, completions, **kwargs):\n"
                           "    time.sleep(0.1)\n"
                           "    return [float(len(c[0]['content']) % 5) for c in completions]\n");
  const std::string errors = *folder_ / "full.err";
  const Program program(with_ranks(arguments(*folder_, "full",
                                             {"--on-save-error", "continue", "--custom-rm-path",
                                              *folder_ / "unhurried.py:reward", "--rm-num-workers", "1"}),
                                   kRanks),
                        kMaxFileBytes, errors);
  const std::map<int, pid_t> ranks = processes_of(program.pid(), kRanks);
  ASSERT_EQ(ranks.size(), kRanks);
  while (!base::file_exists(*folder_ / "full/samples/rollout_000000.jsonl")) ASSERT_FALSE(program.wait_for(0.01));
  limit_files(ranks, 20'000);
  while (base::read_file(errors).find("could not be written, and the run continues") == std::string::npos)
    ASSERT_FALSE(program.wait_for(0.01)) << base::read_file(errors);
  limit_files(ranks, kMaxFileBytes);
  EXPECT_EQ(program.wait(), 0) << base::read_file(errors);
  EXPECT_GE(largest("full", "fault/save_errors"), 1.0);
  EXPECT_EQ(base::read_file(*folder_ / "full/checkpoints/latest"), "step_000003\n");
  const Results after = results("full");
  EXPECT_TRUE(after.weights == alone_->weights);
  EXPECT_TRUE(after.optimizer == alone_->optimizer);
}

// Ranks are killed at random moments; the run is started again until it is done.
TEST_F(DataParallel, OneThatDiesEndsTheOthersAndTheRunGoesOn) {
  constexpr int kRanks = 3;
  std::mt19937_64 random(5);
  const Arguments words = with_ranks(going_on(*folder_, "killed"), kRanks);
  for (int64_t kills = base::short_or_full(1, 100), i = 0; i < kills; ++i) {
    Program program(words);
    const std::map<int, pid_t> ranks = processes_of(program.pid(), kRanks);
    ASSERT_EQ(ranks.size(), kRanks);
    usleep(static_cast<useconds_t>(random() % 4'000'000));
    if (!is_running(program.pid())) break;  // the run was done before
    kill(ranks.at(static_cast<int>(random() % kRanks)), SIGKILL);
    const bool ended = program.wait_for(10.0);
    EXPECT_TRUE(ended) << "kill " << i;
    if (ended) {
      EXPECT_EQ(program.wait(), 3);
    }
    for (const auto& [rank, pid] : ranks) EXPECT_FALSE(is_running(pid)) << "kill " << i << ", rank " << rank;
  }
  const Captured result = run_program(words);
  ASSERT_EQ(result.code, 0) << result.err;
  expect_equal(results("killed"), *alone_, "a run that lost ranks");
}

// A stopped rank is not dead: its sockets stay open, and the kernel answers for it.
TEST_F(DataParallel, OneThatIsFrozenEndsTheOthersByNameAndTheRunGoesOn) {
  const int seed = testing::UnitTest::GetInstance()->random_seed();
  std::mt19937_64 random(static_cast<uint64_t>(seed));
  const Arguments words =
      with_flag(with_ranks(going_on(*folder_, "frozen"), 2), "--distributed-timeout-minutes", "0.2");
  for (int64_t times = base::short_or_full(2, 60), i = 0; i < times; ++i) {
    const std::string errors = *folder_ / "frozen.err";
    Program program(words, 0, errors);
    const std::map<int, pid_t> ranks = processes_of(program.pid(), 2);
    ASSERT_EQ(ranks.size(), 2U);
    // Rank 0 misses rank 1 in any wait; rank 0 has the store, the terminal, and what the others wait for.
    const int victim = i % 4 == 3 ? 1 : 0;
    usleep(static_cast<useconds_t>(random() % 6'000'000));
    if (!is_running(program.pid())) break;  // the run was done before
    kill(ranks.at(victim), SIGSTOP);
    const bool ended = program.wait_for(90.0);
    EXPECT_TRUE(ended) << "seed " << seed << ", " << i;
    if (!ended) break;
    const int code = program.wait();
    if (code == 0) break;  // the run was done when the rank was stopped
    EXPECT_EQ(code, 3) << "seed " << seed << ", " << i;
    EXPECT_NE(base::read_file(errors).find(fmt::format("rank {} ", victim)), std::string::npos)
        << base::read_file(errors);
    for (const auto& [rank, pid] : ranks) EXPECT_FALSE(is_running(pid)) << "seed " << seed << ", rank " << rank;
  }
  const Captured result = run_program(words);
  ASSERT_EQ(result.code, 0) << result.err;
  expect_equal(results("frozen"), *alone_, "a run that lost frozen ranks");
}

// Nobody kills a frozen rank where another launcher started it. Rank 0 waited for its samples for ever: the connection
// stays, and the engines of ranks have no limit of their own.
TEST_F(DataParallel, OneThatIsFrozenWhileItSamplesEndsTheOthersWhoeverStartedThem) {
  base::write_file_durably(*folder_ / "sleeps.py",
                           "import time\n"
                           "def reward(prompts, completions, **kwargs):\n"
                           "    print('it sleeps', flush=True)\n"
                           "    time.sleep(40)\n"
                           "    return [1.0 for _ in completions]\n");
  const Arguments words =
      with_ranks(arguments(*folder_, "frozen_by_hand",
                           {"--custom-rm-path", *folder_ / "sleeps.py:reward", "--distributed-timeout-minutes", "0.1"}),
                 2);
  const StartedRanks ranks({words, words});
  wait_for_text(*folder_ / "frozen_by_hand/grader_output.txt", "it sleeps");
  sleep(1);  // until both have sampled, while the reward takes its time
  ranks[1].signal(SIGSTOP);
  EXPECT_TRUE(ranks[0].wait_for(30.0)) << ranks.said(0);
  ranks[0].signal(SIGKILL);  // nothing happens to one that has ended
  EXPECT_EQ(ranks[0].wait(), 3);
  EXPECT_NE(ranks.said(0).find("rank 1 has said nothing for 6 s"), std::string::npos) << ranks.said(0);
}

// The launcher kills a rank that is silent, so a rank sends heartbeats as long as it lives.
TEST_F(DataParallel, ARunMayLastLongerThanItsTimeout) {
  base::write_file_durably(*folder_ / "slow.py",
                           "import time\n"
                           "def reward(prompts, completions, **kwargs):\n"
                           "    time.sleep(1.5)\n"
                           "    return [float(len(c[0]['content']) % 5) for c in completions]\n");
  const Arguments slow = arguments(*folder_, "slow",
                                   {"--custom-rm-path", *folder_ / "slow.py:reward", "--rm-num-workers", "1",
                                    "--distributed-timeout-minutes", "0.1"});
  const auto begin = base::Clock::now();
  const Captured result = run_program(with_ranks(slow, 2));
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_GT(base::seconds_since(begin), 8.0) << "nothing was tested";
  expect_equal(results("slow"), *alone_, "a slow run");
}

// Rank 0 alone calls the user's function, which may take as long as it likes.
TEST_F(DataParallel, AFunctionOfAdvantagesMayTakeLongerThanTheTimeout) {
  base::write_file_durably(*folder_ / "advantages.py",
                           "import time\n"
                           "def slow(groups):\n"
                           "    time.sleep(9)\n"
                           "    return [[sample.advantage for sample in group.samples] for group in groups]\n");
  const Captured result =
      run_program(with_ranks(arguments(*folder_, "slow_advantages",
                                       {"--custom-advantage-path", *folder_ / "advantages.py:slow", "--num-rollout",
                                        "1", "--distributed-timeout-minutes", "0.1"}),
                             2));
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_GT(largest("slow_advantages", "perf/custom_advantage_time"), 6.0) << "nothing was tested";
}

// Another user of the machine tries all local sockets of the run, as long as it lasts.
TEST_F(DataParallel, AnotherUserOfTheMachineNeitherEntersNorEndsARun) {
  if (!mesh::why_no_foreign_user().empty()) GTEST_SKIP() << mesh::why_no_foreign_user();
  const Arguments words = with_ranks(arguments(*folder_, "attacked"), 2);
  Program program(words);
  const pid_t attacker = fork();
  if (attacker == 0) {
    mesh::become_foreign_user();
    _exit(mesh::enter_local_sockets_of(0, program.pid()));
  }
  std::set<std::string> sockets;  // internet sockets
  while (!program.wait_for(0.05)) {
    for (const std::string& pid : process_tree(program.pid())) {
      for (const InternetSocket& socket : internet_sockets(pid)) sockets.insert(socket.protocol + " " + socket.address);
    }
  }
  EXPECT_EQ(program.wait(), 0);
  int status = 0;
  waitpid(attacker, &status, 0);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0) << "100: there was nothing to try; 101: it was let in";
  EXPECT_EQ(sockets, std::set<std::string>()) << "loopback has no users";
  expect_equal(results("attacked"), *alone_, "a run that was attacked");
}

// Ranks were called "exe", after /proc/self/exe, in ps and top, and pkill by the program's name missed them.
void expect_shown_by_the_programs_name(const std::map<int, pid_t>& processes) {
  for (const auto& [rank, pid] : processes) {
    EXPECT_TRUE(proc_file(pid, "cmdline").starts_with(std::string("tandem\0train\0", 13))) << rank;
    for (int k = 0; k < 600 && proc_file(pid, "comm") != "tandem\n"; ++k) usleep(50'000);
    EXPECT_EQ(proc_file(pid, "comm"), "tandem\n") << rank;
  }
}

TEST_F(DataParallel, ASignalSavesWhatIsFinishedOnAllOfThem) {
  for (const int signal : {SIGTERM, SIGINT}) {
    if (!base::soaking() && signal == SIGTERM) continue;
    const std::string name = fmt::format("run{}", signal);
    const Arguments words = with_ranks(going_on(*folder_, name), 2);
    Program program(words);
    const std::map<int, pid_t> processes = processes_of(program.pid(), 2);
    ASSERT_EQ(processes.size(), 2U);
    expect_shown_by_the_programs_name(processes);
    for (int k = 0; k < 600 && !base::file_exists(*folder_ / name + "/samples/rollout_000000.jsonl"); ++k) {
      usleep(50'000);
    }
    program.signal(signal);
    EXPECT_TRUE(program.wait_for(60.0));
    EXPECT_EQ(program.wait(), signal == SIGTERM ? 0 : 130);
    ASSERT_EQ(run_program(words).code, 0);
    expect_equal(results(name), *alone_, "a run that was stopped");
  }
}

}  // namespace
}  // namespace tandem::cli
