// Makes a data file for the length of a test.
#pragma once

#include <fstream>
#include <string>

#include "tests/base/temporary_directory.h"

namespace tandem::data {

class DataFile {
 public:
  explicit DataFile(const std::string& text) : path_(directory_ / "data.jsonl") {
    std::ofstream(path_, std::ios::binary) << text;
  }
  const std::string& path() const { return path_; }

 private:
  base::TemporaryDirectory directory_;
  std::string path_;
};

}  // namespace tandem::data
