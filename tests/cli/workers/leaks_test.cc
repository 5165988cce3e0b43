// The processes of a run, each in its role, end without memory that nobody holds. Other tests search their own process
// for leaks, but not the programs that they start (tests/cli/tiny_run.h).
#include <gtest/gtest.h>

#include <csignal>
#include <string>

#include "base/files.h"
#include "tests/base/temporary_directory.h"
#include "tests/cli/workers/worker_runs.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#endif

namespace tandem::cli {
namespace {

class Leaks : public testing::Test {
 protected:
  void expect_none(const std::string& what, const Arguments& words) const {
    const Captured result = run_program(words);
    EXPECT_EQ(result.code, 0) << what << ": " << result.err;
  }
  Arguments training(const std::string& name) const {
    return with_custom_reward(train_arguments(folder_ / name, {"--save-interval", "1"}), write_reward(folder_));
  }

  const LeakSearch search_;
  const base::TemporaryDirectory folder_;
};

TEST_F(Leaks, RanksOfARunHaveNone) {
  expect_none("alone", training("alone"));
  expect_none("two that train", with_ranks(training("data"), 2));
  expect_none("two that share a model",
              with_flag(with_ranks(training("tensor"), 2), "--tensor-model-parallel-size", "2"));
}

TEST_F(Leaks, RolloutWorkersHaveNone) { expect_none("one that samples", with_workers(training("apart"), 1, 1)); }

TEST_F(Leaks, ScorersHaveNone) {
  const std::string address = "test-leaks-" + std::to_string(getpid());
  const Program scorer({"scorer", "--hf-checkpoint", kModel, "--listen", address}, 0, folder_ / "scorer.err");
  Arguments words = training("taught");
  words.insert(words.end(), {"--use-opd", "--opd-teacher-address", address});
  expect_none("one with a teacher elsewhere", words);
  scorer.signal(SIGTERM);
  EXPECT_EQ(scorer.wait(), 0) << base::read_file(folder_ / "scorer.err");
}

#ifdef __SANITIZE_ADDRESS__
// Out of line, so that no register and no place on the stack that is read still holds the pointers.
[[gnu::noinline]] void lose_memory() {
  for (int i = 0; i < 100; ++i) {
    volatile char* const lost = new char[1000];
    lost[0] = 1;
  }
}

// The search with which the program ends (cli/main.cc) finds what is lost.
TEST(LeakSearch, FindsWhatIsLost) {
  EXPECT_EXIT(
      {
        lose_memory();
        __lsan_do_leak_check();
        _exit(0);
      },
      testing::ExitedWithCode(1), "LeakSanitizer");
}
#endif

}  // namespace
}  // namespace tandem::cli
