// Runs one call of the command line in this process, and captures what it printed.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cli/command_line.h"

namespace tandem::cli {

struct Captured {
  int code = 0;
  std::string out, err;
};

inline Captured run(const std::vector<std::string>& arguments) {
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  Captured result;
  result.code = run_command_line(arguments);
  result.out = testing::internal::GetCapturedStdout();
  result.err = testing::internal::GetCapturedStderr();
  return result;
}

// Returns the last line of stderr: the message of a failure.
inline std::string last_line(const std::string& text) {
  const size_t end = text.ends_with('\n') ? text.size() - 1 : text.size();
  const size_t begin = text.rfind('\n', end - 1);
  return text.substr(begin == std::string::npos ? 0 : begin + 1, end - (begin == std::string::npos ? 0 : begin + 1));
}

}  // namespace tandem::cli
