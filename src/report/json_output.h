// Writes a verb's records to a JSONL file or standard output.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/files.h"
#include "base/json.h"

namespace tandem::report {

class JsonOutput {
 public:
  // "-" means standard output; on a terminal, characters that it would obey are escaped. A file is replaced. Throws
  // EnvironmentError when it cannot be written.
  explicit JsonOutput(const std::string& path);
  void write(const base::Json& record);
  // Makes the file durable.
  void finish();

 private:
  std::unique_ptr<base::LineFile> file_;  // null: standard output
  bool is_terminal_ = false;              // standard output is a terminal
};

// Throws unless --output can be written: UserError for a directory, for one of the files that the verb reads and for
// a file in one of the folders that it reads, else EnvironmentError. "-" and "" always can.
void check_output(const std::string& path, const std::vector<std::string>& inputs = {});

// Returns whether two outputs are one regular file, which may not exist yet.
bool is_same_file(const std::string& a, const std::string& b);

}  // namespace tandem::report
