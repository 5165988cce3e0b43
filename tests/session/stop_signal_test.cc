// Checks what Ctrl-C, a scheduler and a closed terminal do to a process, and what the person at the terminal sees of
// it.
#include "session/stop_signal.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>

#include "report/terminal.h"
#include "tests/base/pseudo_terminal.h"

namespace tandem::session {
namespace {

using base::PseudoTerminal;

// Waits for a second signal if the first is deferred; returns 99 when none came.
int draw_and_wait(bool deferred) {
  install_stop_signals();
  if (deferred) defer_stops("stopping: --load it goes on");
  report::Terminal terminal = report::standard_terminal();
  terminal.live("rollout 1/3 [####----]");
  for (int i = 0; i < 1000; ++i) usleep(10'000);
  return 99;
}

TEST(StopSignal, EndsAtOnceWhileThereIsNothingToSave) {
  PseudoTerminal screen(80, [] { return draw_and_wait(false); });
  ASSERT_TRUE(screen.shows("rollout 1/3"));
  screen.press_ctrl_c();
  EXPECT_EQ(screen.wait(), 130);
  EXPECT_EQ(screen.screen(), (std::vector<std::string>{"stopped before anything was written", ""})) << screen.bytes();
}

TEST(StopSignal, FirstIsAnsweredAndTheSecondEndsAtOnce) {
  PseudoTerminal screen(80, [] { return draw_and_wait(true); });
  ASSERT_TRUE(screen.shows("rollout 1/3"));
  screen.press_ctrl_c();
  ASSERT_TRUE(screen.shows("--load it goes on", 5.0)) << screen.bytes();
  screen.press_ctrl_c();
  EXPECT_EQ(screen.wait(), 130);
  // The shell's prompt comes next, on a line of its own and not after the bar.
  EXPECT_EQ(screen.screen(), (std::vector<std::string>{"stopping: --load it goes on",
                                                       "stopped at once; what was not yet saved is lost", ""}))
      << screen.bytes();
}

// Returns the code with which a process ends when it gets `signal`, with SIGHUP handled as `hangup` before.
int code_after(int signal, void (*hangup)(int) = SIG_DFL) {
  PseudoTerminal screen(80, [=] {
    std::signal(SIGHUP, hangup);
    install_stop_signals();
    defer_stops("stopping");
    raise(signal);
    return stop_requested() ? stop_exit_code(stop_signal()) : 99;
  });
  return screen.wait();
}

TEST(StopSignal, TellsTheExitCodeOfASavedRun) {
  EXPECT_EQ(code_after(SIGINT), 130);
  EXPECT_EQ(code_after(SIGTERM), 0) << "a scheduler that takes the machine back";
  EXPECT_EQ(code_after(SIGHUP), 129);
  EXPECT_EQ(code_after(SIGHUP, SIG_IGN), 99) << "nohup";
}

// When the window is closed nobody reads the answer: writing it fails, and the process continues and saves.
TEST(StopSignal, SurvivesTheTerminal) {
  int lines[2] = {};
  ASSERT_EQ(pipe(lines), 0);
  PseudoTerminal screen(80, [&] {
    std::signal(SIGHUP, SIG_DFL);  // the tests themselves may run under nohup
    install_stop_signals();
    defer_stops("stopping");
    std::puts("ready");
    std::fflush(stdout);
    while (!stop_requested()) usleep(1000);
    {
      report::Terminal terminal = report::standard_terminal();
      for (int i = 0; i < 3; ++i) terminal.line("saved");
    }
    return write(lines[1], "saved", 5) == 5 ? stop_exit_code(stop_signal()) : 98;
  });
  ASSERT_TRUE(screen.shows("ready"));
  screen.hang_up();
  EXPECT_EQ(screen.wait(), 129);
  char text[8] = {};
  EXPECT_EQ(read(lines[0], text, 5), 5);
  close(lines[0]);
  close(lines[1]);
}

}  // namespace
}  // namespace tandem::session
