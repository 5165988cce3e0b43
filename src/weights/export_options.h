// Says how an export of weights is written. No torch: options and export share it.
#pragma once

#include <cstdint>
#include <string>

namespace tandem::weights {

struct ExportOptions {
  std::string source_directory = {};  // directory whose configuration, tokenizer and generation files are copied
  int64_t max_shard_bytes = int64_t{5} << 30;  // bytes of a weight file, > 0; a larger tensor gets its own
  bool overwrite = false;  // replace an earlier export; a directory with any other file in it is still refused
};

}  // namespace tandem::weights
