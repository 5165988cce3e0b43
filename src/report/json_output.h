// Where a verb's records go: a JSONL file, or standard output.
#pragma once

#include <memory>
#include <string>

#include "base/files.h"
#include "base/json.h"

namespace tandem::report {

class JsonOutput {
 public:
  // "-": standard output; where that is a terminal, text that it would obey is escaped. A file is replaced.
  // EnvironmentError when it cannot be written.
  explicit JsonOutput(const std::string& path);
  void write(const base::Json& record);
  // Makes the file durable.
  void finish();

 private:
  std::unique_ptr<base::LineFile> file_;  // null: standard output
  bool is_terminal_ = false;              // that is one
};

// What --output asks for can be had: EnvironmentError otherwise. "-" and "" always can.
void check_output(const std::string& path);

}  // namespace tandem::report
