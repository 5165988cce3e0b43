// SIGINT and SIGTERM as a question that the loops ask between groups and steps: a run ends at a point where everything
// written is whole. The second signal ends the process at once.
#pragma once

namespace tandem::run {

// The exit code of a verb that a signal ended early, as shells expect it of SIGINT.
constexpr int kExitInterrupted = 130;

// SIGINT and SIGTERM set the flag below; SIGPIPE and SIGXFSZ are ignored, so that a closed pipe and a file beyond the
// limit (ulimit -f) are errors of the write.
void install_stop_signals();
bool stop_requested();
// Since the signal; 0 before it.
double seconds_since_stop();
// Of a run that is saved and can go on: kExitInterrupted after SIGINT; 0 after SIGTERM, by which schedulers take a
// machine back.
int stop_exit_code();

}  // namespace tandem::run
