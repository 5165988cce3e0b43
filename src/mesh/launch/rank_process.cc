#include "mesh/launch/rank_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "base/check.h"

namespace tandem::mesh {

namespace {

constexpr size_t kKeptBytes = 64 << 10;
constexpr int kNotStarted = 127;  // the code that shells use

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> result;
  result.reserve(texts.size() + 1);
  for (const std::string& text : texts) result.push_back(const_cast<char*>(text.c_str()));
  result.push_back(nullptr);
  return result;
}

// This runs in the child, between fork and exec: it may make system calls alone.
[[noreturn]] void become(const char* file, char* const* command, char* const* environment, int output,
                         std::array<int, 2> kept_open, pid_t parent) {
  setpgid(0, 0);  // Ctrl-C of the terminal reaches the launcher alone, which passes it on once
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(kNotStarted);  // the parent died before we asked to die with it
  if (output >= 0) {
    dup2(open("/dev/null", O_RDONLY), STDIN_FILENO);
    dup2(output, STDOUT_FILENO);
    dup2(output, STDERR_FILENO);
  }
  for (const int descriptor : kept_open) fcntl(descriptor, F_SETFD, 0);  // -1 is none
  signal(SIGTTOU, SIG_IGN);  // not in the terminal's foreground group, it may write there
  signal(SIGCHLD, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  execve(file, command, environment);
  constexpr std::string_view kFailed = "tandem: error: a rank's program cannot be started\n";
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kFailed.data(), kFailed.size());
  _exit(kNotStarted);
}

}  // namespace

RankProcess::RankProcess(const std::vector<std::string>& command, const std::string& shown_as,
                         std::vector<std::string> environment, bool output_is_kept, int store) {
  OwnedDescriptor theirs;
  if (output_is_kept) {
    std::array<int, 2> ends = {-1, -1};
    TANDEM_ENV_CHECK(pipe2(ends.data(), O_CLOEXEC) == 0, "cannot start a rank: no descriptor is left (ulimit -n)");
    output_ = OwnedDescriptor(ends[0]);
    theirs = OwnedDescriptor(ends[1]);
    fcntl(output_.get(), F_SETFL, O_NONBLOCK);
  }
  environment.push_back(fmt::format("TANDEM_LAUNCHER_FD={}", link_.theirs()));
  std::vector<char*> words = pointers(command);
  const std::vector<char*> variables = pointers(environment);
  if (!shown_as.empty()) words.front() = const_cast<char*>(shown_as.c_str());
  const pid_t parent = getpid();
  pid_ = fork();
  if (pid_ == 0)
    become(command.front().c_str(), words.data(), variables.data(), theirs.get(), {store, link_.theirs()}, parent);
  TANDEM_ENV_CHECK(
      pid_ > 0, fmt::format("cannot start a rank: {}; raise the limits (ulimit -u, ulimit -v)", std::strerror(errno)));
  link_.close_theirs();
  setpgid(pid_, pid_);  // parent and child both do it, whichever comes first
}

RankProcess::~RankProcess() {
  if (status_) return;
  signal(SIGKILL);
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
}

// Before it is reaped no other process has its number, or its group's.
void RankProcess::look() {
  if (status_) return;
  siginfo_t info = {};
  if (waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) return;
  kill(-pid_, SIGKILL);
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  status_ = status;
  read_output();
}

void RankProcess::signal(int signal) const {
  if (!status_) kill(-pid_, signal);
}

void RankProcess::read_output() {
  // A rank that prints without end must not hold us here.
  constexpr int kMaxReads = 16;
  std::array<char, 16384> buffer;
  for (int i = 0; i < kMaxReads && output_.get() >= 0; ++i) {
    const ssize_t received = read(output_.get(), buffer.data(), buffer.size());
    if (received < 0) return;
    if (received == 0) output_.close();
    last_output_.append(buffer.data(), static_cast<size_t>(received));
    if (last_output_.size() > kKeptBytes) last_output_.erase(0, last_output_.size() - kKeptBytes);
  }
}

}  // namespace tandem::mesh
