// A Parquet file of the lines that a test writes as JSON.
#pragma once

#include <cstdlib>
#include <stdexcept>
#include <string>

#include "base/files.h"
#include "text/text_worker.h"

namespace tandem::text {

inline void write_parquet(const std::string& path, const std::string& lines, int rows_per_group = 1000) {
  base::write_file_durably(path + ".jsonl", lines);
  const std::string command = worker::default_worker_config().python + " tests/text/write_parquet.py '" + path +
                              ".jsonl' '" + path + "' " + std::to_string(rows_per_group);
  if (std::system(command.c_str()) != 0) throw std::runtime_error("failed: " + command);
}

}  // namespace tandem::text
