// How data files that are Parquet are opened: by a process of their own (text/parquet_file.h).
#pragma once

#include <string>
#include <vector>

#include "rl/data_lines.h"

namespace tandem::session {

// UserError and EnvironmentError as text::ParquetFile.
rl::Table open_parquet(const std::string& file, const std::vector<std::string>& keys);

}  // namespace tandem::session
