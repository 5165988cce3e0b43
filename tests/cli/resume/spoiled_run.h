// Spoils a tiny run: a reward function of one's own, a copy of the model to change.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "base/files.h"
#include "tests/base/temporary_directory.h"
#include "tests/cli/tiny_run.h"

namespace tandem::cli {

// Writes a function `reward` with this body, in reward.py of the folder; returns what --custom-rm-path takes.
inline std::string write_reward_of(const std::string& folder, const std::string& body) {
  base::write_file_durably(folder + "/reward.py", "def reward(prompts, completions, **kwargs):\n    " + body + "\n");
  return folder + "/reward.py:reward";
}

inline std::string writable_model(const std::string& path) {
  namespace fs = std::filesystem;
  fs::copy(kModel, path);
  for (const auto& entry : fs::directory_iterator(path)) {
    fs::permissions(entry, fs::perms::owner_write, fs::perm_options::add);
  }
  return path;
}

// Replaces the first `from` of a file.
inline void replace_text(const std::string& path, const std::string& from, const std::string& to) {
  std::string text = base::read_file(path);
  const size_t at = text.find(from);
  ASSERT_NE(at, std::string::npos) << from;
  base::write_file_durably(path, text.replace(at, from.size(), to));
}

}  // namespace tandem::cli
