// Rows of a file that is no text are lines except for their place: the same slices, the same strictness.
#include <gtest/gtest.h>

#include <random>

#include "base/files.h"
#include "data/prompts.h"
#include "tandem/error.h"
#include "tests/base/temporary_directory.h"
#include "tests/base/thrown.h"

namespace tandem::data {
namespace {

struct Row {
  int64_t line;
  std::string text;
  bool operator==(const Row&) const = default;
};

std::vector<Row> rows_of(const std::string& path, const OpenTable& open = {}) {
  std::vector<Row> rows;
  try {
    for_each_row(path, /*keys=*/{}, /*skip_bad_lines=*/false, open, [&](const Place& place) {
      rows.push_back({place.line, std::string(place.text)});
    });
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("no record to work on"), std::string::npos) << error.what();
  }
  return rows;
}

std::string refusal(const PromptOptions& options, const OpenTable& open) {
  return base::thrown_by([&] { read_prompts(options, open); });
}

class Tables : public testing::Test {
 protected:
  Tables() { base::write_file_durably(path_, "PAR1 and whatever may follow"); }
  // Makes a table that gives at most `at_once` rows.
  OpenTable table(std::vector<TableRow> rows, int64_t at_once = 2) {
    return [this, rows, at_once](const std::string& file, const std::vector<std::string>&) {
      EXPECT_EQ(file, path_);
      const auto read = [rows, at_once](int64_t begin, int64_t end) {
        return std::vector<TableRow>(rows.begin() + begin, rows.begin() + std::min(end, begin + at_once));
      };
      return Table{.num_rows = std::ssize(rows), .read = read};
    };
  }
  base::TemporaryDirectory folder_;
  const std::string path_ = folder_ / "data.parquet";
};

TEST_F(Tables, HaveTheSlicesOfLines) {
  std::mt19937 draw(7);
  for (int i = 0; i < 60; ++i) {
    const int size = static_cast<int>(draw() % 9);
    std::string lines;
    std::vector<TableRow> rows;
    for (int k = 0; k < size; ++k) {
      const std::string text = "{\"k\": " + std::to_string(k) + "}";
      lines += text + "\n";
      rows.push_back({text, ""});
    }
    const auto bound = [&] { return draw() % 3 == 0 ? "" : std::to_string(static_cast<int>(draw() % 23) - 11); };
    const std::string slice = draw() % 8 == 0 ? "" : "@[" + bound() + ":" + bound() + "]";
    base::write_file_durably(folder_ / "data.jsonl", lines);
    EXPECT_EQ(rows_of(path_ + slice, table(rows, 1 + draw() % 4)), rows_of(folder_ / "data.jsonl" + slice))
        << size << slice << ", draw " << i << " of seed 7";
  }
}

TEST_F(Tables, NameTheRowAndNoColumn) {
  const TableRow good = {R"({"prompt": "a"})", ""};
  EXPECT_TRUE(refusal({.path = path_}, table({good, {R"({"prompt": 1})", ""}, good}))
                  .starts_with(path_ + ":2: prompt is a number"));
  EXPECT_TRUE(refusal({.path = path_}, table({good, good, {"", "column 'x' is infinite"}}))
                  .starts_with(path_ + ":3: column 'x' is infinite"));
}

TEST_F(Tables, CountBadRowsWhenAsked) {
  const OpenTable open = table({{R"({"prompt": "a"})", ""}, {"", "column 'x' is infinite"}, {R"({})", ""}});
  const PromptData data = read_prompts({.path = path_, .skip_bad_lines = true}, open);
  EXPECT_EQ(data.records.size(), 1U);
  EXPECT_EQ(data.bad_lines.count, 2);
  EXPECT_EQ(data.bad_lines.messages[0], path_ + ":2: column 'x' is infinite");
  EXPECT_NE(refusal({.path = path_ + "@[1:]", .skip_bad_lines = true}, open).find("0 blank and 2 bad lines"),
            std::string::npos);
}

TEST_F(Tables, AreToldByTheirFirstBytes) {
  const OpenTable open = table({{R"({"prompt": "of the table"})", ""}});
  EXPECT_EQ(read_prompts({.path = path_}, open).records[0].prompt, "of the table");
  // A file's name decides nothing, and the file may be shorter than the mark.
  base::write_file_durably(path_, "{\"prompt\": \"of a line\"}");
  EXPECT_EQ(read_prompts({.path = path_}, open).records[0].prompt, "of a line");
  base::write_file_durably(path_, "PAR");
  EXPECT_NE(refusal({.path = path_}, open).find(path_ + ":1:1"), std::string::npos);
}

}  // namespace
}  // namespace tandem::data
