#include "run/json_output.h"

#include <cstdio>
#include <filesystem>

#include "base/check.h"

namespace tandem::run {

JsonOutput::JsonOutput(const std::string& path) {
  if (path != "-") file_ = std::make_unique<base::LineFile>(path, /*truncate=*/true);
}

void JsonOutput::write(const base::Json& record) {
  const std::string line = base::dump_json(record);
  if (file_) {
    file_->write_line(line);
    return;
  }
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

void check_output(const std::string& path) {
  if (path.empty() || path == "-") return;
  const std::string folder = std::filesystem::path(path).parent_path().string();
  base::check_writable_directory(folder.empty() ? "." : folder, 0);
  TANDEM_USER_CHECK(!base::directory_exists(path), path + ": is a directory; name a file");
}

}  // namespace tandem::run
