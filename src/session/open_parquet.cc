#include "session/open_parquet.h"

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "text/parquet_file.h"

namespace tandem::session {

data::Table open_parquet(const std::string& file, const std::vector<std::string>& keys) {
  const auto parquet = std::make_shared<text::ParquetFile>(worker::default_worker_config(), file, keys);
  const auto read = [parquet](int64_t begin, int64_t end) {
    std::vector<data::TableRow> rows;
    for (text::ParquetRow& row : parquet->read(begin, end)) {
      rows.push_back({std::move(row.json), std::move(row.wrong), std::move(row.left_out)});
    }
    return rows;
  };
  return {.num_rows = parquet->num_rows(), .read = read};
}

}  // namespace tandem::session
