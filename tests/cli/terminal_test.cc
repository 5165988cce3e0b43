// Checks a run at a terminal: what a person sees of it, and what it does when they press Ctrl-C or close the window.
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <limits>

#include "base/clock.h"
#include "tests/base/pseudo_terminal.h"
#include "tests/cli/tiny_run.h"

namespace tandem::cli {
namespace {

namespace fs = std::filesystem;
using base::PseudoTerminal;

int execute(const Arguments& arguments) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::vector<char*> words = {const_cast<char*>(TANDEM_PROGRAM)};
  for (const std::string& word : arguments) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  execv(words[0], words.data());
  return 127;
}

// Writes a reward that takes its time.
std::string write_slow_reward(const base::TemporaryDirectory& folder) {
  base::write_file_durably(folder / "slow.py",
                           "import time\n"
                           "def compute_score(data_source, solution_str, ground_truth, extra_info):\n"
                           "    time.sleep(0.15)\n"
                           "    return float(len(solution_str) % 5)\n");
  return folder / "slow.py:compute_score";
}

// Returns the width of the widest line about rollouts; lines that continue one count too.
size_t widest(const std::vector<std::string>& lines) {
  size_t columns = 0;
  for (const std::string& line : lines) {
    if (line.starts_with("rollout ") || line.starts_with("    ")) columns = std::max(columns, line.size());
  }
  return columns;
}

// Reading 100,000 prompts once took half a minute in which nothing moved and Ctrl-C did nothing.
TEST(AtATerminal, ReadingDataIsShownAndObeysCtrlC) {
  base::TemporaryDirectory folder;
  std::string lines;
  for (int i = 0; i < 30'000; ++i) {
    lines +=
        "{\"prompt\": [{\"role\": \"user\", \"content\": \"" + std::to_string(i) + " + 1 = ?\"}], \"label\": \"1\"}\n";
  }
  base::write_file_durably(folder / "many.jsonl", lines);
  const Arguments arguments = with_flag(train_arguments(folder / "run"), "--prompt-data", folder / "many.jsonl");
  double quickest_s = std::numeric_limits<double>::infinity();  // of five: the machine may be busy with other tests
  for (int i = 0; i < 5 && quickest_s >= 1.0; ++i) {
    PseudoTerminal screen(80, [&] { return execute(arguments); });
    ASSERT_TRUE(screen.shows("reading many.jsonl [")) << screen.bytes();
    ASSERT_TRUE(screen.shows("/30,000 prompts")) << screen.bytes();
    const base::Clock::time_point begin = base::Clock::now();
    screen.press_ctrl_c();
    EXPECT_EQ(screen.wait(), 130);
    quickest_s = std::min(quickest_s, base::seconds_since(begin));
    EXPECT_EQ(screen.screen(), (std::vector<std::string>{"stopped before anything was written", ""})) << screen.bytes();
  }
  EXPECT_LT(quickest_s, 1.0);
  EXPECT_FALSE(fs::exists(folder / "run"));
}

TEST(AtATerminal, CtrlCIsAnsweredAndTheRunCanGoOn) {
  base::TemporaryDirectory folder;
  const std::string run_path = folder / "run";
  const Arguments arguments =
      with_flag(with_custom_reward(train_arguments(run_path), write_slow_reward(folder)), "--num-rollout", "50");
  PseudoTerminal screen(80, [&] { return execute(arguments); });
  // The bar moves while rewards are computed, three quarters of this run's time.
  EXPECT_TRUE(screen.shows("rollout 1/50 [")) << screen.bytes();
  EXPECT_TRUE(screen.shows("/12 rewards")) << screen.bytes();
  ASSERT_TRUE(screen.shows("ETA ")) << screen.bytes();
  EXPECT_TRUE(screen.shows("/12 rewards")) << screen.bytes();
  screen.press_ctrl_c();
  EXPECT_TRUE(screen.shows("stopping: what is finished is saved; a second signal ends the run", 5.0)) << screen.bytes();
  EXPECT_EQ(screen.wait(), 130);
  const std::vector<std::string> lines = screen.screen();
  ASSERT_GE(lines.size(), 2U);
  EXPECT_EQ(lines.back(), "");
  EXPECT_NE(lines[lines.size() - 2].find("--load " + run_path + " resumes it"), std::string::npos) << screen.bytes();
  EXPECT_GT(widest(lines), 40U) << screen.bytes();
  EXPECT_LE(widest(lines), 80U) << screen.bytes();
  ASSERT_TRUE(base::file_exists(run_path + "/checkpoints/latest"));
  EXPECT_TRUE(base::file_exists(run_path + "/hf/latest/config.json"));

  // Two signals come at once, whatever was being written: the next run cleans up.
  Arguments load = arguments;
  load.insert(load.end(), {"--load", run_path});
  {
    PseudoTerminal again(100, [&] { return execute(load); });
    ASSERT_TRUE(again.shows("ETA ")) << again.bytes();
    again.press_ctrl_c();
    ASSERT_TRUE(again.shows("stopping: ", 5.0)) << again.bytes();
    again.press_ctrl_c();
    EXPECT_EQ(again.wait(), 130);
    EXPECT_EQ(again.screen().back(), "") << again.bytes();
    EXPECT_LE(widest(again.screen()), 100U) << again.bytes();
  }
  load = with_flag(load, "--num-rollout", "2");
  ASSERT_EQ(run(load).code, 0);
  for (const auto& entry : fs::recursive_directory_iterator(run_path))
    EXPECT_EQ(entry.path().string().find(".tmp-"), std::string::npos) << entry.path();
}

TEST(AtATerminal, AClosedWindowSavesAndNohupGoesOn) {
  base::TemporaryDirectory folder;
  const std::string run_path = folder / "run", kept = folder / "kept";
  // Rollouts have two completions, because there are many of them.
  Arguments arguments = with_custom_reward(train_arguments(run_path), write_reward(folder));
  for (const auto& [flag, value] : {std::pair{"--rollout-batch-size", "1"},
                                    {"--n-samples-per-prompt", "2"},
                                    {"--global-batch-size", "2"},
                                    {"--rollout-max-response-len", "4"}}) {
    arguments = with_flag(arguments, flag, value);
  }
  {
    PseudoTerminal screen(80, [&] {
      std::signal(SIGHUP, SIG_DFL);  // the tests themselves may run under nohup
      return execute(with_flag(arguments, "--num-rollout", "500"));
    });
    ASSERT_TRUE(screen.shows("ETA ")) << screen.bytes();
    screen.hang_up();
    EXPECT_EQ(screen.wait(), 129);
  }
  EXPECT_TRUE(base::file_exists(run_path + "/checkpoints/latest"));
  EXPECT_NE(base::read_file(run_path + "/log.txt").find("--load " + run_path + " resumes it"), std::string::npos);

  // There are twelve rollouts: without --save-interval the run can be resumed from before the end, and has one export.
  const Arguments longer = with_flag(with_flag(arguments, "--num-rollout", "12"), "--save", kept);
  PseudoTerminal screen(80, [&] {
    std::signal(SIGHUP, SIG_IGN);
    return execute(longer);
  });
  ASSERT_TRUE(screen.shows("ETA ")) << screen.bytes();
  screen.hang_up();
  EXPECT_EQ(screen.wait(), 0);
  EXPECT_TRUE(fs::exists(kept + "/checkpoints/step_000010"));
  EXPECT_TRUE(fs::exists(kept + "/checkpoints/step_000012"));
  EXPECT_FALSE(fs::exists(kept + "/hf/step_000010"));
  EXPECT_TRUE(fs::exists(kept + "/hf/latest/model.safetensors"));
  const std::string log = base::read_file(kept + "/log.txt");
  EXPECT_NE(log.find("done after 12 of 12 rollouts"), std::string::npos) << log;
}

}  // namespace
}  // namespace tandem::cli
