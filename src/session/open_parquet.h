// Opens data files that are Parquet, in a process of their own (text/parquet_file.h).
#pragma once

#include <string>
#include <vector>

#include "data/lines.h"

namespace tandem::session {

// Throws UserError and EnvironmentError as text::ParquetFile does.
data::Table open_parquet(const std::string& file, const std::vector<std::string>& keys);

}  // namespace tandem::session
