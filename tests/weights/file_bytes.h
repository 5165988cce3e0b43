// Reads and writes whole files, and catches the refusal that a test expects.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "tandem/error.h"
#include "tests/base/temporary_directory.h"

namespace tandem::weights {

using base::TemporaryDirectory;

inline std::string read_bytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in.good()) << path;
  return {std::istreambuf_iterator<char>(in), {}};
}

inline void write_bytes(const std::string& path, const std::string& bytes) {
  std::ofstream out(path, std::ios::binary);
  out << bytes;
  out.close();
  ASSERT_TRUE(out.good()) << path;
}

// Returns the text of the UserError that `action` ends with; fails the test when it ends otherwise. The text must be
// one line.
template <typename Action>
std::string user_error_of(Action action) {
  try {
    action();
  } catch (const UserError& error) {
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no UserError";
  return "";
}

}  // namespace tandem::weights
