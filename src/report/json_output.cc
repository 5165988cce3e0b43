#include "report/json_output.h"

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>

#include "base/check.h"
#include "base/printable.h"
#include "base/standard_output.h"

namespace tandem::report {

namespace {

namespace fs = std::filesystem;

// Returns whether a file, by its own path or where its links lead, lies in the folder or below.
bool is_file_in(const std::string& path, const std::string& folder) {
  std::error_code error;  // what cannot be looked at cannot be read either
  if (!fs::is_regular_file(path, error) || !fs::is_directory(folder, error)) return false;
  for (const fs::path& whole : {fs::absolute(path, error), fs::canonical(path, error)}) {
    for (fs::path part = whole.parent_path(); part.has_relative_path(); part = part.parent_path()) {
      if (fs::equivalent(part, folder, error)) return true;
    }
  }
  return false;
}

}  // namespace

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
  base::write_to_standard_output(line + "\n");
}

void JsonOutput::finish() {
  if (file_) {
    file_->sync();
  } else {
    base::write_to_standard_output("");
  }
}

void check_output(const std::string& path, const std::vector<std::string>& inputs) {
  if (path.empty() || path == "-") return;
  for (const std::string& input : inputs) {
    std::error_code error;
    TANDEM_USER_CHECK(!fs::is_regular_file(path, error) || !fs::equivalent(path, input, error),
                      path + ": is a file that is read, and would be replaced; name another one for the output");
    TANDEM_USER_CHECK(!is_file_in(path, input),
                      fmt::format("{}: is a file of {}, which is read, and would be replaced; name another one for the "
                                  "output",
                                  path, input));
  }
  const std::string folder = std::filesystem::path(path).parent_path().string();
  base::check_writable_directory(folder.empty() ? "." : folder, 0);
  TANDEM_USER_CHECK(!base::directory_exists(path), path + ": is a directory; name a file");
}

bool is_same_file(const std::string& a, const std::string& b) {
  if (a.empty() || b.empty() || a == "-" || b == "-") return false;
  std::error_code error;
  if (fs::exists(a, error)) return fs::is_regular_file(a, error) && fs::equivalent(a, b, error);
  return fs::weakly_canonical(fs::absolute(a, error), error) == fs::weakly_canonical(fs::absolute(b, error), error);
}

}  // namespace tandem::report
