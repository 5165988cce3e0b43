#include "report/json_output.h"

#include <unistd.h>

#include <cstdio>
#include <filesystem>

#include "base/check.h"
#include "base/printable.h"
#include "rl/data_lines.h"

namespace tandem::report {

JsonOutput::JsonOutput(const std::string& path) : is_terminal_(::isatty(STDOUT_FILENO) == 1) {
  if (path != "-") file_ = std::make_unique<base::LineFile>(path, /*truncate=*/true);
}

void JsonOutput::write(const base::Json& record) {
  std::string line = base::dump_json(record);
  if (file_) {
    file_->write_line(line);
    return;
  }
  // A pipe or a file gets the model's text; a terminal would obey some of it. As JSON both are the same text.
  if (is_terminal_) line = base::printable(line);
  const bool written =
      std::fwrite(line.data(), 1, line.size(), stdout) == line.size() && std::fputc('\n', stdout) != EOF;
  TANDEM_ENV_CHECK(written, "standard output: cannot be written (closed pipe or full disk)");
}

void JsonOutput::finish() {
  if (file_) {
    file_->sync();
  } else {
    TANDEM_ENV_CHECK(std::fflush(stdout) == 0, "standard output: cannot be written (closed pipe or full disk)");
  }
}

void check_output(const std::string& path, const std::vector<std::string>& inputs) {
  if (path.empty() || path == "-") return;
  for (const std::string& input : inputs) {
    std::error_code error;
    TANDEM_USER_CHECK(!std::filesystem::equivalent(path, rl::parse_data_path(input).file, error),
                      path + ": is a file that is read, and would be replaced; name another one for the output");
  }
  const std::string folder = std::filesystem::path(path).parent_path().string();
  base::check_writable_directory(folder.empty() ? "." : folder, 0);
  TANDEM_USER_CHECK(!base::directory_exists(path), path + ": is a directory; name a file");
}

}  // namespace tandem::report
