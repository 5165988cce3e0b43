// A Parquet file's rows as the JSON objects that the lines of a JSONL file would hold. pyarrow reads it, in a process
// of its own (python/tandem_worker/parquet.py) with limits of memory and time, so that a file that harms its reader
// harms nothing else. Rows come a few at a time: the file is never in memory as a whole.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/json.h"
#include "worker/worker_config.h"

namespace tandem::worker {
class ChildProcess;
}

namespace tandem::text {

struct ParquetRow {
  std::string json;           // one object
  std::string wrong;          // why the row has no form in JSON; empty: it has one
  std::string left_out = {};  // why a value of a column that is not read is null in `json`; empty: none is
};

class ParquetFile {
 public:
  // `keys` says what is read of a row: "a.b" is the member b of the column a. UserError names the file and what is
  // wrong with it: it is damaged, or one of these columns is of a type that JSON has no form for. EnvironmentError when
  // Python or pyarrow is missing.
  ParquetFile(const worker::WorkerConfig& config, const std::string& path, const std::vector<std::string>& keys);
  ~ParquetFile();

  int64_t num_rows() const { return num_rows_; }
  // Returns the first rows from `begin` to `end` - 1, at least one; this is cheapest where the last call ended.
  // UserError names the file and says how it is damaged.
  std::vector<ParquetRow> read(int64_t begin, int64_t end);

 private:
  base::Json call(const std::string& name, const base::Json& arguments);
  [[noreturn]] void refuse(const std::string& reason) const;

  std::string path_;
  double deadline_s_;
  std::unique_ptr<worker::ChildProcess> child_;
  int64_t num_rows_ = 0;
};

// These read the answers of the process to "open" and "read". BadReply for what no honest process writes.
int64_t parquet_row_count(const base::Json& answer);
std::vector<ParquetRow> parquet_rows(const base::Json& answer, int64_t max_rows);

}  // namespace tandem::text
