#include "text/parquet_file.h"

#include <utility>

#include "base/check.h"
#include "worker/child_process.h"
#include "worker/message.h"

namespace tandem::text {
namespace {

using base::Json;

void require_rows(bool holds, const char* what) {
  if (!holds) throw worker::BadReply(std::string("answered something else than rows: ") + what);
}

}  // namespace

int64_t parquet_row_count(const Json& answer) {
  require_rows(answer.is_object() && answer.contains("num_rows"), "no number of rows");
  const Json& count = answer["num_rows"];
  // A number above 63 bits turns negative here.
  require_rows(count.is_number_integer() && count.get<int64_t>() >= 0, "the number of rows is none");
  return count.get<int64_t>();
}

std::vector<ParquetRow> parquet_rows(const Json& answer, int64_t max_rows) {
  require_rows(answer.is_array() && !answer.empty(), "no list of rows");
  require_rows(static_cast<int64_t>(answer.size()) <= max_rows, "more rows than were asked for");
  std::vector<ParquetRow> rows;
  rows.reserve(answer.size());
  for (const Json& row : answer) {
    if (row.is_string()) {
      rows.push_back({row.get<std::string>(), ""});
      continue;
    }
    const auto has_text = [&row](const char* key) { return row.contains(key) && row[key].is_string(); };
    if (row.is_object() && has_text("json") && has_text("left_out")) {
      rows.push_back({row["json"].get<std::string>(), "", row["left_out"].get<std::string>()});
      continue;
    }
    require_rows(row.is_object() && has_text("wrong"), "a row is neither good nor bad");
    rows.push_back({"", row["wrong"].get<std::string>()});
    require_rows(!rows.back().wrong.empty(), "a row is bad for no reason");
  }
  return rows;
}

ParquetFile::ParquetFile(const worker::WorkerConfig& config, const std::string& path,
                         const std::vector<std::string>& keys)
    : path_(path), deadline_s_(config.deadline_s) {
  try {
    child_ = std::make_unique<worker::ChildProcess>(config, "parquet");
  } catch (const worker::WorkerError& error) {
    throw EnvironmentError(std::string("cannot start the reader of Parquet files: ") + error.what());
  }
  try {
    num_rows_ = parquet_row_count(call("open", {{"path", path}, {"keys", keys}}));
  } catch (const worker::BadReply& bad) {
    refuse(bad.what());
  }
}

ParquetFile::~ParquetFile() = default;

std::vector<ParquetRow> ParquetFile::read(int64_t begin, int64_t end) {
  TANDEM_CHECK(begin >= 0 && begin < end && end <= num_rows_, path_, begin, end);
  try {
    return parquet_rows(call("read", {{"begin", begin}, {"end", end}}), end - begin);
  } catch (const worker::BadReply& bad) {
    refuse(bad.what());
  }
}

Json ParquetFile::call(const std::string& name, const Json& arguments) {
  try {
    return child_->call(name, arguments, deadline_s_);
  } catch (const worker::ChildLost& lost) {
    refuse(lost.what());
  }
}

// The process did nothing but read this file, so what ended it is the file.
void ParquetFile::refuse(const std::string& reason) const {
  throw UserError(path_ + ": the process that reads it was lost over it: " + reason +
                  "; take the file again, or write it as JSONL");
}

}  // namespace tandem::text
