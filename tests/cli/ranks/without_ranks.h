// Runs commands that must start no rank: refusals, dry runs and plans. They need no process of their own.
#pragma once

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <string>

#include "tests/base/variable.h"
#include "tests/cli/captured.h"
#include "tests/cli/tiny_run.h"

namespace tandem::cli {

using LauncherVariables = std::map<std::string, std::string>;

inline constexpr const char* kStartsNoRanks = "TEST_STARTS_NO_RANKS";

// A rank is the program that starts it, once more: here that is the test. If a command starts ranks after all, each of
// them would run all tests, and start further ones. So it ends before its first test, and the command fails.
inline const bool kMayRunTests = [] {
  constexpr int kStartedCode = 99;
  if (std::getenv(kStartsNoRanks) == nullptr) return true;
  std::fputs("a rank was started where none is expected\n", stderr);
  _exit(kStartedCode);
}();

// Runs the command in this process. `variables` are what a launcher has set for it; others of a launcher are unset.
inline Captured run_without_ranks(const Arguments& arguments, const LauncherVariables& variables = {}) {
  const base::Variable guard(kStartsNoRanks, "1");
  std::deque<base::Variable> set;
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) {
    const auto given = variables.find(name);
    set.emplace_back(name, given == variables.end() ? nullptr : given->second.c_str());
  }
  return run(arguments);
}

}  // namespace tandem::cli
