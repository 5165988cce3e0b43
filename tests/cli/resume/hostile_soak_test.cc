// Checks a run whose reward attacks it with one sample in a few: leftovers, bombs, forged replies, signals. Whatever
// these samples get, the honest ones among them are graded exactly right, the run continues in its size, and nothing is
// left when it ends. It lasts as long as --soak-seconds says; with --soak an hour, and each attack alone for a while.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/stat.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "base/clock.h"
#include "tests/base/soak.h"
#include "tests/cli/memory/process_size.h"
#include "tests/cli/tiny_run.h"
#include "tests/cli/workers/process_sockets.h"

namespace tandem::cli {
namespace {

constexpr const char* kHostileReward = "tests/cli/rewards/hostile.py";
constexpr uint32_t kEvery = 6;                              // number of samples of which one attacks
constexpr uint64_t kShmBytes = (uint64_t{4} << 20) + 4711;  // size in hostile.py
constexpr double kAloneSeconds = 6.0;
constexpr int64_t kFewestRollouts = 3;

// These are names of functions in hostile.py.
const std::vector<std::string> kAttacks = {"daemons",
                                           "threads",
                                           "memfd",
                                           "shared_memory",
                                           "deep_folders",
                                           "many_files",
                                           "fill_folder",
                                           "close_folder",
                                           "forged_reply",
                                           "garbage_reply",
                                           "huge_extras",
                                           "huge_name",
                                           "escapes",
                                           "kill_all",
                                           "kill_parents",
                                           "fork_bomb",
                                           "terminal",
                                           "lower_limits",
                                           "descriptors",
                                           "heap",
                                           "blocked_signals",
                                           "lost_descriptors",
                                           "changed_folder",
                                           "recursion",
                                           "nan",
                                           "infinity",
                                           "too_large",
                                           "text",
                                           "hang",
                                           "crash",
                                           "leave"};

// Computes the hash like hostile.py.
uint32_t fnv1a(const std::string& text) {
  uint32_t value = 0x811C9DC5;
  for (const char c : text) value = (value ^ static_cast<uint8_t>(c)) * 0x01000193;
  return value;
}

// Returns the identifiers of the System V segments of that size.
std::set<std::string> left_segments() {
  std::set<std::string> found;
  std::ifstream table("/proc/sysvipc/shm");
  for (std::string line; std::getline(table, line);) {
    std::istringstream fields(line);
    std::string key, id, mode, bytes;
    fields >> key >> id >> mode >> bytes;
    if (bytes == std::to_string(kShmBytes)) found.insert(id);
  }
  return found;
}

// The grades of the samples of a run.
struct Outcome {
  int64_t num_rollouts = 0, num_honest = 0, num_attacks = 0;
  std::map<std::string, int64_t> broken;  // honest samples that were not graded right, by what they got
};

Outcome outcome_of(const std::string& run) {
  Outcome outcome;
  std::set<std::string> names;
  for (const std::string& name : base::list_directory(run + "/samples")) {
    if (!name.starts_with("rollout_")) continue;
    ++outcome.num_rollouts;
    for (const base::Json& record : json_lines(run + "/samples/" + name)) {
      const uint32_t value = fnv1a(record.at("response").get<std::string>());
      const double reward = record.at("reward").is_number() ? record.at("reward").get<double>() : NAN;
      const bool failed = record.contains("failure");
      if (value % kEvery == 0) {
        ++outcome.num_attacks;
        EXPECT_TRUE(failed || (reward >= 0.0 && reward <= 4.0)) << record.dump();
        continue;
      }
      ++outcome.num_honest;
      if (failed) {
        // The rest is left out, because it names files.
        const auto reason = record.at("failure").get<std::string>();
        ++outcome.broken[record.at("failure_class").get<std::string>() + ": " + reason.substr(0, reason.find('/'))];
      } else if (reward != value % 5) {
        ++outcome.broken["reward " + std::to_string(reward) + " and not " + std::to_string(value % 5)];
      }
    }
  }
  return outcome;
}

// Counts what is in a folder that the machine has to itself, before and after.
size_t num_entries(const std::string& folder) {
  return base::directory_exists(folder) ? base::list_directory(folder).size() : 0;
}

class HostileSoak : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    // Orphans of the run become children of this process, where they are counted.
    ASSERT_EQ(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
    base::write_file_durably(folder_ / "hostile.py", base::read_file(kHostileReward));
    ASSERT_EQ(mkdir((folder_ / "scratch").c_str(), 0700), 0);
    segments_before_ = left_segments();
    shm_before_ = num_entries("/dev/shm");
    const char* before = std::getenv("TMPDIR");
    if (before != nullptr) tmpdir_before_ = before;
    setenv("TMPDIR", (folder_ / "scratch").c_str(), 1);
  }
  void TearDown() override {
    if (tmpdir_before_) {
      setenv("TMPDIR", tmpdir_before_->c_str(), 1);
    } else {
      unsetenv("TMPDIR");
    }
    for (const std::string& id : left_segments()) {
      if (segments_before_.contains(id)) continue;
      [[maybe_unused]] const int status = std::system(("ipcrm -m " + id).c_str());
    }
    prctl(PR_SET_CHILD_SUBREAPER, 0);
  }

  void run(const std::vector<std::string>& attacks, double seconds);

 private:
  Arguments arguments() const {
    Arguments words = with_custom_reward(train_arguments(folder_ / "run"), folder_ / "hostile.py:reward");
    words = with_flag(with_flag(words, "--num-rollout", "100000"), "--lr", "1e-5");
    words = with_flag(words, "--max-failed-rollouts", "100000");  // limit for rollouts in which all samples may attack
    for (const char* word : {"--save-interval", "1000", "--rm-timeout", "5", "--rm-memory-bytes", "700000000",
                             "--rm-sandbox", "require", "--rollout-shuffle"})
      words.emplace_back(word);
    return words;
  }
  void watch(const Program& program, double seconds, std::vector<Size>& sizes) const;
  void expect_nothing_left() const;

  base::TemporaryDirectory folder_;
  std::set<std::string> segments_before_;
  size_t shm_before_ = 0;
  std::optional<std::string> tmpdir_before_;
};

// Watches until the time is over and some rollouts are done; the run must not end by itself.
void HostileSoak::watch(const Program& program, double seconds, std::vector<Size>& sizes) const {
  constexpr double kPatience = 10.0;  // factor of the time until the few rollouts are there
  const base::Clock::time_point begin = base::Clock::now();
  int64_t rollout = -1;
  while (!program.wait_for(0.1)) {
    const double now_s = base::seconds_since(begin);
    // There is nothing after the newest rollout, so the search continues from there.
    while (base::file_exists(folder_ / fmt::format("run/samples/rollout_{:06}.jsonl", rollout + 1))) ++rollout;
    if (rollout >= 0) sizes.push_back(size_of(program.pid()));
    if (now_s > seconds && (rollout + 1 >= kFewestRollouts || now_s > kPatience * seconds)) {
      program.signal(SIGTERM);
      EXPECT_TRUE(program.wait_for(90.0)) << "SIGTERM is not answered";
      return;
    }
  }
  ADD_FAILURE() << "the run ended by itself";
}

void HostileSoak::expect_nothing_left() const {
  // A process that is being killed takes a moment.
  std::vector<std::string> left;
  for (int i = 0; i < 50; ++i) {
    while (waitpid(-1, nullptr, WNOHANG) > 0) {
    }
    left = process_tree(getpid());
    if (left.size() == 1) break;
    usleep(100'000);
  }
  EXPECT_EQ(left.size(), 1U) << "processes are left";
  for (size_t i = 1; i < left.size(); ++i) kill(std::stoi(left[i]), SIGKILL);
  EXPECT_EQ(num_entries(folder_ / "scratch"), 0U) << "files are left in $TMPDIR";
  EXPECT_EQ(left_segments(), segments_before_) << "shared memory is left";
  EXPECT_LE(num_entries("/dev/shm"), shm_before_) << "files are left in /dev/shm";
}

void HostileSoak::run(const std::vector<std::string>& attacks, double seconds) {
  base::Json settings = {{"attacks", attacks}, {"every", kEvery}};
  settings["machine_pid_namespace"] = std::filesystem::read_symlink("/proc/self/ns/pid").string();
  base::write_file_durably(folder_ / "attacks.json", base::dump_json(settings));
  Arguments trial = arguments();
  trial.emplace_back("--dry-run");
  if (Program(trial).wait() != 0) {
    ASSERT_EQ(Program(with_flag(trial, "--rm-sandbox", "auto")).wait(), 0);
    GTEST_SKIP() << "this kernel has not all layers of the sandbox";
  }

  std::vector<Size> sizes;
  const Program program(arguments());
  watch(program, seconds, sizes);
  program.signal(SIGKILL);  // only a run that did not answer still exists
  EXPECT_EQ(program.wait(), 0);
  const Outcome outcome = outcome_of(folder_ / "run");
  EXPECT_GE(outcome.num_rollouts, kFewestRollouts);
  EXPECT_TRUE(outcome.broken.empty());
  for (const auto& [what, count] : outcome.broken) std::printf("  %ld honest samples: %s\n", count, what.c_str());
  for (const char* name : {"/log.txt", "/metrics.jsonl"}) {
    EXPECT_EQ(base::read_file(folder_ / "run" + name).find('\x1b'), std::string::npos) << name << " has escapes";
  }
  expect_nothing_left();

  const Usual early = usual(sizes, 0.3, 0.4), late = usual(sizes, 0.85, 0.95);
  const double growth = static_cast<double>(late.rss_bytes) / static_cast<double>(early.rss_bytes) - 1.0;
  std::printf(
      "%ld rollouts in %.0f s: %ld honest samples, %ld attacks; memory %.1f -> %.1f MiB (%+.2f %%), "
      "descriptors %ld to %ld -> %ld to %ld\n",
      outcome.num_rollouts, seconds, outcome.num_honest, outcome.num_attacks,
      static_cast<double>(early.rss_bytes) / 1048576.0, static_cast<double>(late.rss_bytes) / 1048576.0, 100.0 * growth,
      early.fewest_descriptors, early.most_descriptors, late.fewest_descriptors, late.most_descriptors);
  if (seconds < 300.0) return;  // sizes settle in the first minutes
  EXPECT_LT(growth, 0.02);
  EXPECT_LE(late.fewest_descriptors, early.most_descriptors);
}

TEST_F(HostileSoak, HonestSamplesAreGradedRightBesideAttacks) { run(kAttacks, base::soak_seconds(15.0)); }

TEST_P(HostileSoak, OneAttackAloneBreaksNothing) {
  if (!base::soaking()) GTEST_SKIP() << "each attack alone takes six seconds, so it runs with --soak only (make soak)";
  run({GetParam()}, kAloneSeconds);
}
INSTANTIATE_TEST_SUITE_P(Attacks, HostileSoak, testing::ValuesIn(kAttacks),
                         [](const auto& attack) { return attack.param; });

}  // namespace
}  // namespace tandem::cli
