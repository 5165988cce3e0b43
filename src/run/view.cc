// `tandem view` writes a run, or several side by side, as one HTML page.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <span>
#include <string>
#include <system_error>
#include <vector>

#include "base/check.h"
#include "base/files.h"
#include "base/standard_output.h"
#include "report/json_output.h"
#include "report/report.h"
#include "report/run_files.h"
#include "report/run_page.h"
#include "run/verbs.h"

namespace tandem::run {

namespace {

// Throws UserError unless the path is free or holds a page of `tandem view`: it may be a file of a run, or anything
// else that was named by mistake.
void check_replaceable(const std::string& path) {
  std::error_code unknown;
  if (path == "-" || !base::file_exists(path)) return;
  TANDEM_USER_CHECK(std::filesystem::is_regular_file(path, unknown),
                    fmt::format("--output {}: is no regular file, and a page takes the place of the file that is "
                                "there; name another one, or - for standard output",
                                path));
  const std::string mark = report::kPageMark;
  const base::ReadableFile file(path);
  std::string begin(static_cast<size_t>(std::min<int64_t>(std::ssize(mark), file.size())), '\0');
  file.read_at(0, std::as_writable_bytes(std::span(begin)));
  TANDEM_USER_CHECK(begin == mark,
                    fmt::format("--output {}: is there and is no page of `tandem view`; name another file", path));
}

}  // namespace

int view(const config::ViewConfig& config, const config::RunMode& mode) {
  TANDEM_USER_CHECK(config.run.size() <= report::kMaxPageRuns,
                    fmt::format("--run: names {} run directories, and a page shows {} at most; leave some out",
                                config.run.size(), report::kMaxPageRuns));
  std::vector<report::RunFiles> runs;
  for (const std::string& path : config.run) runs.push_back(report::read_run(path, config.run.size()));
  const std::string output = config.output.empty() ? runs.front().path + "/view.html" : config.output;
  check_replaceable(output);
  report::check_output(output);
  report::Report report;
  const bool is_printed = output == "-";
  if (mode.dry_run) {
    report.print_result(
        fmt::format("{} would be written; nothing was (--dry-run)", is_printed ? "standard output" : output));
    return 0;
  }
  if (is_printed) {
    base::write_to_standard_output(report::run_page(runs));
    return 0;
  }
  base::write_file_durably(output, report::run_page(runs));
  report.print_result(fmt::format("wrote {}: open it in a browser", output));
  return 0;
}

}  // namespace tandem::run
