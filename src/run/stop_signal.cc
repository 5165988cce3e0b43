#include "run/stop_signal.h"

#include <csignal>

namespace tandem::run {

namespace {
volatile std::sig_atomic_t stop_flag = 0;  // a handler can write nothing else safely
}  // namespace

void install_stop_signals() {
  struct sigaction stop = {};
  stop.sa_handler = [](int) { stop_flag = 1; };
  // The handler goes with the first signal, so the second one has the default action: the process ends. No
  // SA_RESTART: a wait for a worker process returns, and its caller looks at the flag.
  stop.sa_flags = static_cast<int>(SA_RESETHAND);
  sigaction(SIGINT, &stop, nullptr);
  sigaction(SIGTERM, &stop, nullptr);
  struct sigaction ignore = {};
  ignore.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &ignore, nullptr);
}

bool stop_requested() { return stop_flag != 0; }

}  // namespace tandem::run
