// Parquet files through the process that reads them: their rows, and files and processes that fail.
#include "text/parquet_file.h"

#include <gtest/gtest.h>

#include "tandem/error.h"
#include "tests/base/temporary_directory.h"
#include "tests/text/parquet_lines.h"
#include "worker/message.h"

namespace tandem::text {
namespace {

// Expects that the call throws that, with a message of one line that has `says` in it.
template <typename Error, typename Call>
void expect_error(const std::string& says, Call call) {
  try {
    call();
    ADD_FAILURE() << "nothing was thrown, expected: " << says;
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(says), std::string::npos) << error.what() << "\nexpected: " << says;
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
  }
}

TEST(ParquetFile, GivesItsRowsInOrder) {
  const base::TemporaryDirectory folder;
  std::string lines;
  for (int i = 0; i < 1000; ++i) lines += "{\"i\": " + std::to_string(i) + "}\n";
  write_parquet(folder / "data", lines, /*rows_per_group=*/300);
  ParquetFile file(worker::default_worker_config(), folder / "data", {"x"});
  ASSERT_EQ(file.num_rows(), 1000);
  for (const int64_t begin : {int64_t{0}, int64_t{650}, int64_t{299}}) {
    for (int64_t next = begin; next < 1000;) {
      for (const ParquetRow& row : file.read(next, 1000)) {
        ASSERT_EQ(row.json, "{\"i\": " + std::to_string(next) + "}") << row.wrong;
        ++next;
      }
    }
  }
  EXPECT_EQ(file.read(4, 5).size(), 1U);
}

TEST(ParquetFile, RefusesWhatIsNone) {
  const base::TemporaryDirectory folder;
  const auto open = [&] { ParquetFile(worker::default_worker_config(), folder / "data", {"x"}); };
  expect_error<UserError>(folder / "data: cannot be read as Parquet: Failed to open local file", open);
  base::write_file_durably(folder / "data", "PAR1, and nothing else that it should have");
  expect_error<UserError>("; is it whole? Take it again", open);
  // The footer is said to be as long as the file could be, and is not.
  base::write_file_durably(folder / "data", "PAR1\xff\xff\xff\x7fPAR1");
  expect_error<UserError>(folder / "data: cannot be read as Parquet: ", open);
}

TEST(ParquetFile, ThatTakesTooMuchIsRefused) {
  const base::TemporaryDirectory folder;
  write_parquet(folder / "data", "{\"x\": 1}\n");
  worker::WorkerConfig config = worker::default_worker_config();
  ParquetFile file(config, folder / "data", {"x"});
  EXPECT_EQ(file.read(0, 1).size(), 1U);
  config.deadline_s = 1e-3;  // not even a start is that quick
  expect_error<EnvironmentError>("cannot start the reader of Parquet files",
                                 [&] { ParquetFile(config, folder / "data", {"x"}); });
  config = worker::default_worker_config();
  config.python = "/nowhere/python";
  expect_error<EnvironmentError>("/nowhere/python", [&] { ParquetFile(config, folder / "data", {"x"}); });
}

// One repeated text is a few kilobytes in the file and gigabytes in memory.
TEST(ParquetFile, CannotTakeAllMemory) {
  const base::TemporaryDirectory folder;
  const std::string command = worker::default_worker_config().python +
                              " -c \"import pyarrow as a, pyarrow.parquet as p; p.write_table(a.table({'x': "
                              "a.DictionaryArray.from_arrays(a.array([0] * 256), ['y' * (1 << 23)])}), '" +
                              (folder / "data") + "')\"";
  ASSERT_EQ(std::system(command.c_str()), 0);
  worker::WorkerConfig config = worker::default_worker_config();
  config.memory_bytes = int64_t{1} << 30;
  ParquetFile file(config, folder / "data", {"x"});
  expect_error<UserError>(folder / "data: ", [&] { file.read(0, 256); });
}

TEST(ParquetAnswer, IsReadWithinItsBounds) {
  EXPECT_EQ(parquet_row_count({{"num_rows", 3}}), 3);
  for (const char* answer : {"3", "{}", "{\"num_rows\": -1}", "{\"num_rows\": 1.5}",
                             "{\"num_rows\": 18446744073709551615}", "{\"num_rows\": \"3\"}"}) {
    EXPECT_THROW(parquet_row_count(base::parse_json(answer, "answer")), worker::BadReply) << answer;
  }
  const std::vector<ParquetRow> rows = parquet_rows(base::parse_json(R"(["{}", {"wrong": "it"}])", "answer"), 2);
  EXPECT_EQ(rows.at(0).json, "{}");
  EXPECT_EQ(rows.at(1).wrong, "it");
  for (const char* answer : {"{}", "[]", "[\"{}\", \"{}\", \"{}\"]", "[1]", "[{}]", "[{\"wrong\": \"\"}]", "[null]"}) {
    EXPECT_THROW(parquet_rows(base::parse_json(answer, "answer"), 2), worker::BadReply) << answer;
  }
}

}  // namespace
}  // namespace tandem::text
