#include "run/run_directory.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "base/check.h"
#include "base/files.h"

namespace tandem::run {

namespace {

constexpr std::array<const char*, 7> kNames = {"config.toml", "metrics.jsonl", "log.txt", "grader_output.txt",
                                               "samples",     "tensorboard",   "hf"};

std::string step_name(int64_t step) { return fmt::format("step_{:06}", step); }

}  // namespace

RunDirectory::RunDirectory(const std::string& path, bool overwrite, int64_t needed_bytes) : path_(path) {
  while (path_.size() > 1 && path_.back() == '/') path_.pop_back();
  TANDEM_USER_CHECK(!base::file_exists(path_), fmt::format("--save {}: is a file; name a directory", path_));
  if (base::directory_exists(path_)) {
    const std::vector<std::string> entries = base::list_directory(path_);
    TANDEM_USER_CHECK(entries.empty() || overwrite,
                      fmt::format("--save {}: the directory is not empty; name another one, or give --overwrite to "
                                  "replace the run in it",
                                  path_));
    const bool is_run = std::ranges::find(entries, "config.toml") != entries.end();
    TANDEM_USER_CHECK(entries.empty() || is_run,
                      fmt::format("--save {}: holds files but no run (no config.toml), so --overwrite leaves it alone; "
                                  "name another directory",
                                  path_));
  }
  base::check_writable_directory(path_, needed_bytes);
}

void RunDirectory::create() const {
  for (const char* name : kNames) {
    base::remove_tree(fmt::format("{}/{}", path_, name));
  }
  base::make_directories(path_ + "/hf");
  base::make_directories(samples_folder());
}

std::string RunDirectory::checkpoint(int64_t step) const { return path_ + "/hf/" + step_name(step); }

void RunDirectory::set_latest(int64_t step) const { base::link_durably(step_name(step), path_ + "/hf/latest"); }

std::string find_checkpoint(const std::string& run_path, int64_t step) {
  const std::string folder = run_path + "/hf";
  TANDEM_USER_CHECK(base::directory_exists(folder),
                    fmt::format("--run {}: no checkpoints (hf/) there; name the --save directory of a run", run_path));
  const std::string path = folder + "/" + (step < 0 ? "latest" : step_name(step));
  if (!base::directory_exists(path)) {
    std::vector<std::string> names;
    for (const std::string& name : base::list_directory(folder)) {
      if (name.starts_with("step_")) names.push_back(name);
    }
    throw UserError(fmt::format("--run {}: no checkpoint {}; there are: {}", run_path, path,
                                names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "))));
  }
  return path;
}

}  // namespace tandem::run
