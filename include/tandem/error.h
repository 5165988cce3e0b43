// What Tandem throws, and whose fault each kind is. The command line turns them into one line on
// stderr and an exit code; nothing else in the program ends the process.
#pragma once

#include <stdexcept>
#include <string>

namespace tandem {

// The user's: a flag, a file, a data line. Exit code 2. The message names file, place and remedy.
class UserError : public std::runtime_error {
 public:
  explicit UserError(const std::string& message) : std::runtime_error(message) {}
};

// The machine's: disk full, directory read-only, a worker that cannot start. Exit code 3.
class EnvironmentError : public std::runtime_error {
 public:
  explicit EnvironmentError(const std::string& message) : std::runtime_error(message) {}
};

// Ours: a broken invariant. Exit code 1. The message holds the check, its file and line.
class BugError : public std::logic_error {
 public:
  explicit BugError(const std::string& message) : std::logic_error(message) {}
};

}  // namespace tandem
