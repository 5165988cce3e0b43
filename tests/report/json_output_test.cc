// Records go to a file or to standard output, and a place that cannot be written is refused before any work.
#include "report/json_output.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/time.h>
#include <unistd.h>

#include <csignal>
#include <string>
#include <thread>

#include "base/files.h"
#include "tandem/error.h"
#include "tests/base/temporary_directory.h"

namespace tandem::report {
namespace {

TEST(JsonOutput, ReplacesTheFile) {
  const base::TemporaryDirectory folder;
  base::write_file_durably(folder / "out.jsonl", "an older file with more in it than the new one has\n");
  JsonOutput output(folder / "out.jsonl");
  output.write({{"id", 1}});
  output.write({{"text", "a\nb"}});
  output.finish();
  EXPECT_EQ(base::read_file(folder / "out.jsonl"), "{\"id\":1}\n{\"text\":\"a\\nb\"}\n");
}

TEST(JsonOutput, StandardOutputThatIsNoTerminalGetsTheTextAsItIs) {
  testing::internal::CaptureStdout();
  JsonOutput output("-");
  output.write({{"text", "\u202E"}});
  output.finish();
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "{\"text\":\"\u202E\"}\n");
}

// Has standard output be a pipe for its lifetime.
class OutputPipe {
 public:
  OutputPipe() : before_(dup(STDOUT_FILENO)) {
    EXPECT_EQ(pipe2(ends_, O_CLOEXEC), 0);
    dup2(ends_[1], STDOUT_FILENO);
  }
  ~OutputPipe() {
    dup2(before_, STDOUT_FILENO);
    for (const int fd : {before_, ends_[0], ends_[1]}) close(fd);
  }
  int reader() const { return ends_[0]; }

 private:
  int before_;
  int ends_[2] = {};
};

// Sends SIGALRM to this process every few milliseconds for its lifetime; a call that waits is interrupted by it.
class Interruptions {
 public:
  Interruptions() {
    struct sigaction action = {};
    action.sa_handler = [](int) {};  // SA_RESTART is not set, as for the signals that stop a run
    sigaction(SIGALRM, &action, &before_);
    const itimerval often = {{0, 5'000}, {0, 5'000}};
    setitimer(ITIMER_REAL, &often, nullptr);
  }
  ~Interruptions() {
    const itimerval never = {};
    setitimer(ITIMER_REAL, &never, nullptr);
    sigaction(SIGALRM, &before_, nullptr);
  }

 private:
  struct sigaction before_ = {};
};

// A signal that stops a run comes while it waits for the reader of a pipe.
TEST(JsonOutput, ASignalTearsNoLine) {
  const std::string text(300'000, 'x');  // several times what a pipe holds
  std::string read_back;
  {
    const OutputPipe output_pipe;
    std::thread reader([&] {
      sigset_t alarm;
      sigemptyset(&alarm);
      sigaddset(&alarm, SIGALRM);
      pthread_sigmask(SIG_BLOCK, &alarm, nullptr);
      usleep(200'000);
      char buffer[65536];
      while (!read_back.ends_with('\n')) {
        const ssize_t size = read(output_pipe.reader(), buffer, sizeof buffer);
        if (size <= 0) return;
        read_back.append(buffer, static_cast<size_t>(size));
      }
    });
    const Interruptions interruptions;
    JsonOutput output("-");
    EXPECT_NO_THROW(output.write({{"text", text}}));
    EXPECT_NO_THROW(output.finish());
    reader.join();
  }
  EXPECT_EQ(read_back, "{\"text\":\"" + text + "\"}\n");
}

TEST(JsonOutput, WhatCannotBeWrittenIsRefused) {
  const base::TemporaryDirectory folder;
  check_output("");
  check_output("-");
  check_output(folder / "out.jsonl");
  EXPECT_FALSE(base::file_exists(folder / "out.jsonl")) << "asking leaves nothing behind";
  base::write_file_durably(folder / "file", "");
  EXPECT_THROW(check_output(folder / "file/out.jsonl"), UserError);
  EXPECT_THROW(JsonOutput(folder / "file/out.jsonl"), EnvironmentError);
  EXPECT_THROW(check_output(folder.path()), UserError);
}

}  // namespace
}  // namespace tandem::report
