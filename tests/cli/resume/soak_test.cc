// Checks that a long run under random faults continues, loses nothing, and takes no more memory and descriptors than in
// the beginning.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <random>

#include "base/clock.h"
#include "tests/base/soak.h"
#include "tests/cli/memory/process_size.h"
#include "tests/cli/tiny_run.h"
#include "tests/cli/workers/process_sockets.h"

namespace tandem::cli {
namespace {

constexpr int64_t kMaxFileBytes = int64_t{1} << 40;
constexpr const char* kReward =
    "import os, signal, time, zlib\n"
    "def reward(data_source, solution_str, ground_truth):\n"
    "    text = solution_str\n"
    "    fault = zlib.crc32(text.encode()) % 1000\n"
    "    if fault < 5: raise ValueError('x' * 10000)\n"
    "    if fault < 8: os._exit(1)\n"
    "    if fault < 10: return float('nan')\n"
    "    if fault < 12: os.kill(os.getpid(), signal.SIGSEGV)\n"
    "    if fault < 14: hog = [bytearray(1 << 28) for _ in range(64)]\n"
    "    if fault < 16: print('y' * 1000000)\n"
    "    if fault < 17: time.sleep(60)\n"
    "    return float(len(text) % 5)\n";

// Kills one of the processes that grade, at random, from outside.
bool kill_a_grader(pid_t root, std::mt19937_64& random) {
  std::vector<pid_t> graders;
  for (const std::string& pid : process_tree(root)) {
    std::ifstream file("/proc/" + pid + "/cmdline");
    const std::string words((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    if (words.find("tandem_worker.grader") != std::string::npos) graders.push_back(std::stoi(pid));
  }
  return !graders.empty() && kill(graders[random() % graders.size()], SIGKILL) == 0;
}

// Limits the files of the process from now on, as on a full disk.
void limit_files(pid_t pid, int64_t bytes) {
  const rlimit limit = {static_cast<rlim_t>(bytes), static_cast<rlim_t>(kMaxFileBytes)};
  ASSERT_EQ(prlimit(pid, RLIMIT_FSIZE, &limit, nullptr), 0);
}

TEST(Soak, ALongRunUnderFaultsKeepsItsSizeAndLosesNothing) {
  const int64_t num_rollouts = base::short_or_full(20, 1000);  // number of rollouts, with two optimizer steps each
  const int seed = testing::UnitTest::GetInstance()->random_seed();
  std::mt19937_64 random(static_cast<uint64_t>(seed));
  const base::TemporaryDirectory folder;
  base::write_file_durably(folder / "reward.py", kReward);
  const std::string run_path = folder / "run";
  Arguments words = with_custom_reward(train_arguments(run_path), folder / "reward.py:reward");
  words = with_flag(with_flag(words, "--num-rollout", std::to_string(num_rollouts)), "--lr", "1e-5");
  for (const char* word : {"--save-interval", "10", "--on-save-error", "continue", "--rm-timeout", "1",
                           "--rm-memory-bytes", "1000000000", "--rollout-shuffle"})
    words.emplace_back(word);
  // A sanitizer keeps freed memory for a while; that is no growth of ours.
  if (const char* options = std::getenv("ASAN_OPTIONS"))
    setenv("ASAN_OPTIONS", (std::string(options) + ":quarantine_size_mb=4").c_str(), 1);

  const Program program(words, kMaxFileBytes);
  std::vector<Size> sizes;
  int64_t num_kills = 0, num_full_disks = 0;
  const base::Clock::time_point begin = base::Clock::now();
  double next_kill_s = 0.0, next_full_s = 0.0, free_again_s = 0.0;
  int64_t rollout_at_full = -1;
  const auto soon = [&](double mean) { return std::exponential_distribution<double>(1.0 / mean)(random); };
  while (!program.wait_for(0.05)) {
    const double now_s = base::seconds_since(begin);
    // Faults begin with the first rollout: a disk that is full at the start is refused.
    const int64_t rollout = newest_samples(run_path, num_rollouts);
    if (rollout < 0) continue;
    sizes.push_back(size_of(program.pid()));
    if (now_s > next_kill_s) {
      num_kills += kill_a_grader(program.pid(), random) ? 1 : 0;
      next_kill_s = now_s + soon(3.0);
    }
    if (free_again_s > 0.0 && now_s > free_again_s) {
      limit_files(program.pid(), kMaxFileBytes);
      free_again_s = 0.0;
    } else if (now_s > next_full_s && rollout > rollout_at_full && rollout + 10 < num_rollouts) {
      // The limit is not set near the end: a run whose last records the disk refuses reports that and ends with 3, and
      // where no reward takes its time, a run makes six rollouts while the limit is in force.
      rollout_at_full = rollout;
      limit_files(program.pid(), 1000);
      ++num_full_disks;
      free_again_s = now_s + 0.5;
      next_full_s = now_s + soon(6.0);
    }
  }
  EXPECT_EQ(program.wait(), 0) << "seed " << seed;

  EXPECT_GT(num_full_disks, 0);
  // Every record is there once and in order, whatever the disk refused meanwhile.
  int64_t rollouts = 0, steps = 0;
  std::map<std::string, double> faults;
  for (const base::Json& record : json_lines(run_path + "/metrics.jsonl")) {
    if (record.contains("rollout/step")) {
      ASSERT_EQ(record.at("rollout/step").get<int64_t>(), rollouts++);
    }
    if (record.contains("train/step")) {
      ASSERT_EQ(record.at("train/step").get<int64_t>(), steps++);
    }
    for (const auto& [name, value] : record.items()) {
      if (name.starts_with("fault/") || name.starts_with("rollout/failed")) faults[name] += value.get<double>();
    }
  }
  EXPECT_EQ(rollouts, num_rollouts);
  EXPECT_EQ(steps, 2 * num_rollouts);
  EXPECT_FALSE(weights_of(run_path).empty());
  const Usual early = usual(sizes, 0.3, 0.4), late = usual(sizes, 0.8, 0.9);
  const double growth = static_cast<double>(late.rss_bytes) / static_cast<double>(early.rss_bytes) - 1.0;
  std::printf(
      "seed %d: %ld steps in %.0f s, %ld graders killed, %ld full disks; memory %.1f -> %.1f MiB (%+.2f %%), "
      "descriptors %ld to %ld -> %ld to %ld\n",
      seed, steps, base::seconds_since(begin), num_kills, num_full_disks,
      static_cast<double>(early.rss_bytes) / 1048576.0, static_cast<double>(late.rss_bytes) / 1048576.0, 100.0 * growth,
      early.fewest_descriptors, early.most_descriptors, late.fewest_descriptors, late.most_descriptors);
  for (const auto& [name, value] : faults) std::printf("  %s %g\n", name.c_str(), value);
  // A grader that was killed is away for seconds on a busy machine, and with it its descriptors: for all of a short
  // window.
  EXPECT_LE(late.fewest_descriptors, usual(sizes, 0.1, 0.5).most_descriptors);
  if (base::soaking()) {
    EXPECT_EQ(early.num_descriptors, late.num_descriptors);
    EXPECT_LT(growth, 0.01);
    EXPECT_GT(num_kills, 10);
    EXPECT_GT(num_full_disks, 10);
  }
}

}  // namespace
}  // namespace tandem::cli
