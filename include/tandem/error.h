// The exceptions that Tandem throws, one class for each party at fault. The command line turns them into one line on
// stderr and an exit code; nothing else in the program ends the process.
#pragma once

#include <stdexcept>
#include <string>

namespace tandem {

// The user's fault: a flag, a file or a data line is wrong. Ends the program with exit code 2. The message names the
// file, the place and the remedy.
class UserError : public std::runtime_error {
 public:
  explicit UserError(const std::string& message) : std::runtime_error(message) {}
};

// The machine's fault: the disk is full, a directory is read-only, a worker process cannot start. Ends the program with
// exit code 3.
class EnvironmentError : public std::runtime_error {
 public:
  explicit EnvironmentError(const std::string& message) : std::runtime_error(message) {}
};

// Our fault: an invariant is broken. Ends the program with exit code 1. The message holds the check, its file and line.
class BugError : public std::logic_error {
 public:
  explicit BugError(const std::string& message) : std::logic_error(message) {}
};

}  // namespace tandem
