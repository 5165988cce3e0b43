#include "run/run_directory.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>

#include "base/check.h"
#include "base/files.h"
#include "base/log.h"
#include "run/checkpoints.h"

namespace tandem::run {

namespace {

constexpr const char* kConfig = "config.toml";
constexpr const char* kMemory = "memory_timeline.jsonl";
constexpr std::array<const char*, 11> kNames = {kConfig,       "metrics.jsonl",
                                                kMemory,       "memory_trace.json",
                                                "log.txt",     "grader_output.txt",
                                                "samples",     "tensorboard",
                                                "checkpoints", "hf",
                                                "fault"};

std::string step_name(int64_t step) { return fmt::format("step_{:06}", step); }

// 7 of "rollout_000007.jsonl".
std::optional<int64_t> number_before_suffix(std::string_view name, std::string_view suffix) {
  if (!name.ends_with(suffix)) return std::nullopt;
  name.remove_suffix(suffix.size());
  const size_t begin = name.find_last_not_of("0123456789") + 1;
  int64_t number = 0;
  const auto [end, error] = std::from_chars(name.data() + begin, name.data() + name.size(), number);
  if (error != std::errc()) return std::nullopt;
  return number;
}

// A run has its options, or has died before it wrote them and left nothing but names of its own.
bool is_run(const std::vector<std::string>& entries) {
  if (std::ranges::find(entries, kConfig) != entries.end()) return true;
  const bool has_lock = std::ranges::find(entries, base::DirectoryLock::kName) != entries.end();
  return has_lock && std::ranges::all_of(entries, [](const std::string& entry) {
           const std::string name = base::name_without_temporary_mark(entry);
           return name == base::DirectoryLock::kName || std::ranges::find(kNames, name) != kNames.end();
         });
}

}  // namespace

RunDirectory::RunDirectory(const std::string& path, RunFolder folder, int64_t needed_bytes, const std::string& what_for)
    : path_(base::without_trailing_slashes(path)), folder_(folder) {
  std::error_code unknown;  // into a folder that is closed to us nobody can look, and writing says so
  if (!std::filesystem::exists(path_, unknown)) base::check_writable_directory(path_, 0);
  TANDEM_USER_CHECK(!base::file_exists(path_), fmt::format("--save {}: is a file; name a directory", path_));
  if (base::directory_exists(path_)) {
    const std::vector<std::string> entries = base::list_directory(path_);
    TANDEM_USER_CHECK(entries.empty() || folder != RunFolder::kNew,
                      fmt::format("--save {0}: the directory is not empty; name another one, give --load {0} to go on "
                                  "with the run in it, or --overwrite to replace that",
                                  path_));
    TANDEM_USER_CHECK(entries.empty() || is_run(entries),
                      fmt::format("--save {}: holds files but no run (no config.toml), so it is left alone; "
                                  "name another directory",
                                  path_));
  }
  base::check_writable_directory(path_, needed_bytes, what_for);
}

void RunDirectory::create() {
  base::make_directories(path_);
  lock_ = std::make_unique<base::DirectoryLock>(path_);
  if (folder_ != RunFolder::kGoOn) {
    // First what is gone on from: it must not outlive what belongs to it.
    Checkpoints(path_).clear();
    for (const char* name : kNames) base::remove_tree(fmt::format("{}/{}", path_, name));
  }
  base::make_directories(path_ + "/hf");
  for (const std::string& folder : {path_, path_ + "/hf", samples_folder()}) {
    if (base::directory_exists(folder)) base::remove_temporaries(folder);
  }
}

std::map<std::string, int64_t> RunDirectory::growing_files() const {
  std::vector<std::string> names = {"metrics.jsonl", kMemory};
  if (base::directory_exists(tensorboard_folder())) {
    for (const std::string& name : base::list_directory(tensorboard_folder())) names.push_back("tensorboard/" + name);
  }
  std::map<std::string, int64_t> result;
  for (const std::string& name : names) {
    const std::string path = fmt::format("{}/{}", path_, name);
    if (!base::file_exists(path)) continue;
    base::sync_durably(path);
    result[name] = base::ReadableFile(path).size();
  }
  return result;
}

void RunDirectory::cut_back(int64_t step, const std::map<std::string, int64_t>& file_bytes) const {
  // First the pointer: no checkpoint is gone on from whose records are cut away.
  Checkpoints(path_).rewind(step);
  for (const auto& [name, bytes] : growing_files()) {
    const std::string path = fmt::format("{}/{}", path_, name);
    const auto found = file_bytes.find(name);
    if (found == file_bytes.end()) {
      base::remove_durably(path);
    } else if (bytes > found->second) {
      base::truncate_durably(path, found->second);
    }
  }
  for (const auto& [name, bytes] : file_bytes) {
    const std::string path = fmt::format("{}/{}", path_, name);
    if (!base::file_exists(path) || base::ReadableFile(path).size() < bytes)
      base::log_warning("{}: is shorter than when step {} was saved: records are missing", path, step);
  }
  // rollout_000007.jsonl is of the rollout that finishes step 8; eval_NAME_000008.jsonl of the evaluation after it.
  const bool has_samples = base::directory_exists(samples_folder());
  for (const std::string& name : has_samples ? base::list_directory(samples_folder()) : std::vector<std::string>()) {
    const std::optional<int64_t> number = number_before_suffix(name, ".jsonl");
    if (number && *number >= step + (name.starts_with("eval_") ? 1 : 0))
      base::remove_durably(samples_folder() + "/" + name);
  }
  // A step need not have an export: hf/latest goes to the newest that is left, or away.
  std::optional<int64_t> newest;
  for (const std::string& name : base::list_directory(path_ + "/hf")) {
    const std::optional<int64_t> number = number_before_suffix(name, "");
    if (!name.starts_with("step_") || !number) continue;
    if (*number > step) {
      base::remove_durably(path_ + "/hf/" + name);
    } else {
      newest = std::max(newest, number);
    }
  }
  if (newest) {
    set_latest(*newest);
  } else {
    base::remove_tree(path_ + "/hf/latest");
  }
}

std::string RunDirectory::checkpoint(int64_t step) const { return path_ + "/hf/" + step_name(step); }

void RunDirectory::set_latest(int64_t step) const { base::link_durably(step_name(step), path_ + "/hf/latest"); }

std::string find_checkpoint(const std::string& run_path, int64_t step) {
  const std::string folder = base::without_trailing_slashes(run_path) + "/hf";
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
