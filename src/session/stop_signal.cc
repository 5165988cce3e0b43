#include "session/stop_signal.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <ctime>
#include <string_view>

namespace tandem::session {

namespace {

constexpr int kExitOfSignals = 128;  // base to which shells add the signal's number

// A handler may touch only flags, lock-free atomics, and system calls.
volatile std::sig_atomic_t stop_flag = 0;  // the signal
timespec stop_time = {};                   // written once, before the flag
std::atomic<const std::string*> stop_answer = nullptr;
static_assert(std::atomic<const std::string*>::is_always_lock_free);
bool has_live_line = false;  // written once, before any signal: standard output is a terminal

void write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;  // nobody is there to read it
    text.remove_prefix(static_cast<size_t>(written));
  }
}

// Ends the live line first, so that whatever comes next, such as the shell's prompt, begins on an empty line.
void say(std::string_view text) {
  if (has_live_line) write_all(STDOUT_FILENO, "\r\033[K");
  write_all(STDERR_FILENO, text);
}

void on_stop_signal(int signal) {
  const int error = errno;
  const std::string* const answer = stop_answer.load();
  if (answer == nullptr || stop_flag != 0) {
    say(answer == nullptr ? "stopped before anything was written\n"
                          : "stopped at once; what was not yet saved is lost\n");
    _exit(kExitOfSignals + signal);
  }
  clock_gettime(CLOCK_MONOTONIC, &stop_time);
  stop_flag = signal;
  say(*answer);
  errno = error;
}

}  // namespace

void install_stop_signals() {
  has_live_line = isatty(STDOUT_FILENO) == 1;
  struct sigaction stop = {};
  stop.sa_handler = on_stop_signal;
  // SA_RESTART is not set: a wait for a worker process returns, and its caller looks at the flag.
  sigaction(SIGINT, &stop, nullptr);
  sigaction(SIGTERM, &stop, nullptr);
  struct sigaction before = {};
  sigaction(SIGHUP, nullptr, &before);
  if (before.sa_handler != SIG_IGN) sigaction(SIGHUP, &stop, nullptr);
  struct sigaction ignore = {};
  ignore.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &ignore, nullptr);
  sigaction(SIGXFSZ, &ignore, nullptr);
}

void defer_stops(const std::string& answer) { delete stop_answer.exchange(new std::string(answer + "\n")); }

bool stop_requested() { return stop_flag != 0; }

int stop_signal() { return stop_flag; }

double seconds_since_stop() {
  if (!stop_requested()) return 0.0;
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec - stop_time.tv_sec) +
         static_cast<double>(now.tv_nsec - stop_time.tv_nsec) * 1e-9;
}

int stop_exit_code(int signal) { return signal == SIGTERM ? 0 : cut_short_exit_code(signal); }

int cut_short_exit_code(int signal) { return kExitOfSignals + signal; }

}  // namespace tandem::session
