#include "tests/device/ranks/forked_ranks.h"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <exception>

#include "base/check.h"

namespace tandem::device {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kLongestRun{90};

struct Child {
  pid_t process = -1;
  int answer = -1;  // read end of a pipe
};

[[noreturn]] void be_rank(int rank, int answer, const std::function<std::string(int)>& body) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::string text;
  try {
    text = body(rank);
  } catch (const std::exception& error) {
    text = error.what();
  }
  const ssize_t written = write(answer, text.data(), text.size());
  std::fflush(stdout);
  _exit(written == static_cast<ssize_t>(text.size()) ? 0 : 1);
}

Child start(int rank, const std::function<std::string(int)>& body) {
  std::array<int, 2> ends{};
  TANDEM_CHECK_EQ(pipe(ends.data()), 0);
  std::fflush(stdout);
  const pid_t process = fork();
  TANDEM_CHECK(process >= 0, "cannot fork");
  if (process == 0) {
    close(ends[0]);
    be_rank(rank, ends[1], body);
  }
  close(ends[1]);
  return {.process = process, .answer = ends[0]};
}

std::string read_answer(int answer, Clock::time_point deadline) {
  std::string text;
  std::array<char, 4096> buffer{};
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd ready{.fd = answer, .events = POLLIN, .revents = 0};
    if (left <= 0 || poll(&ready, 1, static_cast<int>(left)) == 0) return "no answer in time";
    const ssize_t count = read(answer, buffer.data(), buffer.size());
    if (count <= 0) return text;
    text.append(buffer.data(), static_cast<size_t>(count));
  }
}

}  // namespace

std::vector<std::string> run_forked(int size, const std::function<std::string(int rank)>& body,
                                    const std::function<void()>& started) {
  std::vector<Child> children;
  for (int rank = 0; rank < size; ++rank) children.push_back(start(rank, body));
  started();
  const Clock::time_point deadline = Clock::now() + kLongestRun;
  std::vector<std::string> answers;
  for (const Child& child : children) answers.push_back(read_answer(child.answer, deadline));
  for (size_t i = 0; i < children.size(); ++i) {
    if (answers[i] == "no answer in time") kill(children[i].process, SIGKILL);
    int status = 0;
    waitpid(children[i].process, &status, 0);
    close(children[i].answer);
    if (!WIFSIGNALED(status) || !answers[i].empty()) continue;
    answers[i] = WTERMSIG(status) == SIGKILL ? "killed" : "ended by signal " + std::to_string(WTERMSIG(status));
  }
  return answers;
}

}  // namespace tandem::device
