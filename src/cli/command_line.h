// The command line of `tandem`: which verb, its options, and what a failure becomes.
#pragma once

#include <exception>
#include <string>
#include <vector>

#include "base/options.h"

namespace tandem::cli {

// Runs `tandem ARGUMENTS...` and returns its exit code: 0; 1 our bug; 2 the user's mistake; 3 the machine's; 130
// stopped by a signal. A failure prints one line on stderr, "tandem: error: ...". Throws nothing.
int run_command_line(const std::vector<std::string>& arguments);

// Prints what --help or --print-config asked for; false where there is something to run instead. `usage`: how the
// command is typed. EnvironmentError as check_printed().
bool was_answered(base::ParsedAction action, const base::Options& options, const std::string& usage,
                  const std::string& description);

// Flushes standard output. EnvironmentError when some of what a verb has printed could not be written.
void check_printed();

// Prints the one line on stderr that tells the user of this exception, and returns the program's exit code for it.
int report_failure(const std::exception_ptr& failure);

}  // namespace tandem::cli
