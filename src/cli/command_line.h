// Runs the command line of `tandem`: finds the verb, reads its options, and turns a failure into a message and an exit
// code.
#pragma once

#include <exception>
#include <string>
#include <vector>

#include "options/options.h"

namespace tandem::cli {

// The exit codes of a bug of ours, a mistake of the user's and a failure of the machine's.
constexpr int kExitBug = 1, kExitUser = 2, kExitEnvironment = 3;

// Runs `tandem ARGUMENTS...` and returns its exit code: 0; 1 our bug; 2 the user's mistake; 3 the machine's; 130
// stopped by a signal. A failure prints one line on stderr, "tandem: error: ...". It throws nothing.
int run_command_line(const std::vector<std::string>& arguments);

// Returns how a command of another trainer is typed here: "sft --preference-loss sigmoid" for its `dpo`; "" for a word
// that is none.
std::string verb_of_other_trainer(const std::string& word);

// Prints the answer to --help or --print-config; returns false if there is something to run instead. `usage` shows how
// the command is typed. Throws EnvironmentError as check_printed() does.
bool was_answered(options::ParsedAction action, const options::Options& options, const std::string& usage,
                  const std::string& description);

// Flushes standard output. Throws EnvironmentError when some of a verb's output could not be written.
void check_printed();

// Prints the one line on stderr that tells the user of this exception, and returns the program's exit code for it.
int report_failure(const std::exception_ptr& failure);

}  // namespace tandem::cli
