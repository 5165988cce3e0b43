#include "run/stop_signal.h"

#include <unistd.h>

#include <csignal>
#include <ctime>

namespace tandem::run {

namespace {

// A handler can write nothing else safely.
volatile std::sig_atomic_t stop_flag = 0;  // the signal
timespec stop_time = {};                   // written once, before the flag

}  // namespace

void install_stop_signals() {
  struct sigaction stop = {};
  stop.sa_handler = [](int signal) {
    if (stop_flag != 0) _exit(kExitInterrupted);
    clock_gettime(CLOCK_MONOTONIC, &stop_time);
    stop_flag = signal;
  };
  // No SA_RESTART: a wait for a worker process returns, and its caller looks at the flag.
  sigaction(SIGINT, &stop, nullptr);
  sigaction(SIGTERM, &stop, nullptr);
  struct sigaction ignore = {};
  ignore.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &ignore, nullptr);
  sigaction(SIGXFSZ, &ignore, nullptr);
}

bool stop_requested() { return stop_flag != 0; }

double seconds_since_stop() {
  if (!stop_requested()) return 0.0;
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec - stop_time.tv_sec) +
         static_cast<double>(now.tv_nsec - stop_time.tv_nsec) * 1e-9;
}

int stop_exit_code() { return stop_flag == SIGTERM ? 0 : kExitInterrupted; }

}  // namespace tandem::run
