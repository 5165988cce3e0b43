// Checks that docs/DATA.md is true: its lines are accepted, and its table of errors has the real messages.
#include <gtest/gtest.h>

#include <sstream>

#include "base/files.h"
#include "session/prompt_set.h"
#include "tests/base/temporary_directory.h"
#include "tests/base/thrown.h"

namespace tandem::session {
namespace {

std::vector<std::string> page() {
  std::vector<std::string> lines;
  std::istringstream text(base::read_file("docs/DATA.md"));
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  return lines;
}

std::string load(const std::string& line) {
  static text::TextWorker text(worker::default_worker_config(), "tests/golden/models/qwen3-tied");
  const base::TemporaryDirectory folder;
  base::write_file_durably(folder / "data.jsonl", line + "\n");
  config::DataOptions options;
  options.lines.path = folder / "data.jsonl";
  return base::thrown_by([&] { load_prompts(options, text); });
}

TEST(DataPage, ItsLinesAreTaken) {
  int num_lines = 0;
  bool is_example = false;
  for (const std::string& line : page()) {
    if (line.starts_with("```")) {
      is_example = line == "```jsonl";
    } else if (is_example) {
      EXPECT_EQ(load(line), "") << line;
      ++num_lines;
    }
  }
  EXPECT_GE(num_lines, 5);
}

TEST(DataPage, ItsErrorsAreWhatIsSaid) {
  int num_rows = 0;
  bool is_table = false;
  for (const std::string& row : page()) {
    if (row.empty()) is_table = false;
    if (is_table && row.starts_with("| `")) {
      const size_t end = row.find("` | "), says = end + 4;
      ASSERT_NE(end, std::string::npos) << row;
      const std::string line = row.substr(3, end - 3), expected = row.substr(says, row.size() - 2 - says);
      const std::string message = load(line);
      EXPECT_NE(message.find("data.jsonl:1"), std::string::npos) << line << ": " << message;
      EXPECT_NE(message.find(expected), std::string::npos) << line << ": " << message;
      ++num_rows;
    }
    if (row == "| line | says |") is_table = true;
  }
  EXPECT_GE(num_rows, 10);
}

}  // namespace
}  // namespace tandem::session
