// Handles the signals that ask a verb to stop: SIGINT (Ctrl-C), SIGTERM (a scheduler takes the machine back) and SIGHUP
// (the terminal is gone). While there is nothing to bring to an end, as at the start, where files are read for as long
// as it takes, the first of them ends the process at once. After defer_stops() it only sets a flag, which loops poll
// between groups and steps, so that a run ends at a point where everything written is whole; and the second signal ends
// the process at once. Either way a line on stderr tells the user in that moment.
#pragma once

#include <string>

namespace tandem::session {

// Handles SIGTERM, SIGINT and SIGHUP as the head of this file says, SIGHUP only if it is not ignored already (nohup).
// SIGPIPE and SIGXFSZ are ignored, so that a closed pipe and a file beyond the limit (ulimit -f) are errors of the
// write.
void install_stop_signals();
// From here on the first signal sets the flag below and prints this line. Call it once in a process.
void defer_stops(const std::string& answer);
bool stop_requested();
// Returns the signal; 0 before it.
int stop_signal();
// Returns the seconds since the signal; 0 before it.
double seconds_since_stop();
// Returns the exit code of a run that this signal stopped, and that is saved and can be resumed: 0 after SIGTERM, with
// which schedulers take a machine back; 130 after SIGINT and 129 after SIGHUP, as for any command that these end.
int stop_exit_code(int signal);
// Returns the exit code of a verb whose output ends early, and of a run of which nothing is saved, as for any command
// that the signal ends: 143 after SIGTERM.
int cut_short_exit_code(int signal);

}  // namespace tandem::session
