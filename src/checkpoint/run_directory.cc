#include "checkpoint/run_directory.h"

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
#include "checkpoint/checkpoints.h"

namespace tandem::checkpoint {

namespace {

namespace fs = std::filesystem;

constexpr const char* kConfig = "config.toml";
constexpr const char* kMemory = "memory_timeline.jsonl";
constexpr const char* kCheckpoints = "checkpoints";
constexpr const char* kProbe = ".write-test";  // left by a killed base::check_writable_directory
struct OwnName {
  const char* name;
  bool is_folder;
};
constexpr std::array<OwnName, 17> kNames = {{{kConfig, false},
                                             {"metrics.jsonl", false},
                                             {kMemory, false},
                                             {"memory_trace.json", false},
                                             {"schedule.jsonl", false},
                                             {"log.txt", false},
                                             {"grader_output.txt", false},
                                             {"samples", true},
                                             {"tensorboard", true},
                                             {"wandb", true},
                                             {"wandb_run_id", false},
                                             {"trackio_run_id", false},
                                             {"mlflow_run_id", false},
                                             {"view.html", false},
                                             {kCheckpoints, true},
                                             {"hf", true},
                                             {"fault", true}}};

std::string hf_folder_name(int64_t step) { return fmt::format("step_{:06}", step); }

// Returns 7 for "rollout_000007.jsonl" with these beginning and end; nullopt for a name that no run writes.
std::optional<int64_t> number_between(std::string_view name, std::string_view begin, std::string_view end) {
  if (name.size() < begin.size() + end.size() || !name.starts_with(begin) || !name.ends_with(end)) return std::nullopt;
  const std::string_view digits = name.substr(begin.size(), name.size() - begin.size() - end.size());
  int64_t number = 0;
  const auto [at, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (error != std::errc() || at != digits.data() + digits.size() || number < 0) return std::nullopt;
  return fmt::format("{:06}", number) == digits ? std::optional(number) : std::nullopt;
}

std::string best_name(int64_t step) { return fmt::format("best_{:06}", step); }

std::optional<int64_t> export_step(std::string_view name) { return number_between(name, "step_", ""); }
std::optional<int64_t> best_step_of(std::string_view name) { return number_between(name, "best_", ""); }

// Returns the step that has to be finished for a file of samples to stay: rollout_000007.jsonl belongs to the rollout
// that finishes step 8, eval_NAME_000008.jsonl to the evaluation after it. Returns nullopt for files that no run
// writes.
std::optional<int64_t> step_of_samples(std::string_view name) {
  if (const std::optional<int64_t> rollout = number_between(name, "rollout_", ".jsonl")) return *rollout + 1;
  if (!name.starts_with("eval_")) return std::nullopt;
  const size_t last = name.rfind('_');
  return last < std::string_view("eval_").size() + 1 ? std::nullopt
                                                     : number_between(name, name.substr(0, last + 1), ".jsonl");
}

// Returns whether a file is named as TensorBoard's own writer names its event files.
bool is_event_file(std::string_view name) { return name.starts_with("events.out.tfevents."); }

fs::file_status status_of(const std::string& path) {
  std::error_code unknown;
  return fs::symlink_status(path, unknown);
}

bool is_own_folder(const std::string& path) { return fs::is_directory(status_of(path)); }  // not through a link

// Refuses a path that no run can have made. Through a link, a run that resumes would cut, remove and write files
// somewhere else; at a pipe it would wait for ever.
void check_own(const std::string& path, bool is_folder) {
  const fs::file_status status = status_of(path);
  if (!fs::exists(status)) return;
  const char* const kind = is_folder ? "folder" : "file";
  TANDEM_USER_CHECK(
      !fs::is_symlink(status),
      fmt::format("{}: is a symbolic link, and a run resumes in {}s of its own, since it cuts and removes "
                  "there; put the {} itself in its place, or --save elsewhere",
                  path, kind, kind));
  TANDEM_USER_CHECK(is_folder ? fs::is_directory(status) : fs::is_regular_file(status),
                    fmt::format("{}: is no {}, as a run makes it; move it away, or --save elsewhere", path,
                                is_folder ? "folder" : "regular file"));
}

// Returns whether the entries are those of a run: it has its options, or has died before it wrote them and left only
// names of its own.
bool is_run(const std::vector<std::string>& entries) {
  if (std::ranges::find(entries, kConfig) != entries.end()) return true;
  const bool has_lock = std::ranges::find(entries, base::DirectoryLock::kName) != entries.end();
  return has_lock && std::ranges::all_of(entries, [](const std::string& entry) {
           const std::string name = base::name_without_temporary_mark(entry);
           return name == base::DirectoryLock::kName || std::ranges::find(kNames, name, &OwnName::name) != kNames.end();
         });
}

}  // namespace

RunDirectory::RunDirectory(const std::string& path, RunFolder folder, int64_t needed_bytes, const std::string& what_for,
                           int64_t resumed_step)
    : path_(base::without_trailing_slashes(path)), folder_(folder) {
  std::error_code unknown;  // nobody can look into a folder without permission, and writing reports that
  if (!fs::exists(path_, unknown)) base::check_writable_directory(path_, 0);
  TANDEM_USER_CHECK(!base::file_exists(path_), fmt::format("--save {}: is a file; name a directory", path_));
  if (base::directory_exists(path_)) {
    std::vector<std::string> entries = base::list_directory(path_);
    std::erase_if(entries, [](const std::string& entry) {
      return entry != kProbe && base::name_without_temporary_mark(entry) == kProbe;
    });
    TANDEM_USER_CHECK(entries.empty() || is_run(entries),
                      fmt::format("--save {}: holds files but no run (no config.toml), so it is left alone; "
                                  "name another directory",
                                  path_));
    TANDEM_USER_CHECK(
        entries.empty() || folder != RunFolder::kNew || !Checkpoints(path_).empty(),
        fmt::format(
            "--save {0}: there is a run already, of which nothing is saved yet; give --overwrite, or --load {0} "
            "--allow-fresh-start, to begin it again, or name another directory",
            path_));
    TANDEM_USER_CHECK(
        entries.empty() || folder != RunFolder::kNew,
        fmt::format("--save {0}: there is a run already; name another directory, give --load {0} to resume that "
                    "run, or --overwrite to replace it",
                    path_));
    if (folder == RunFolder::kGoOn) check_names();
    if (folder == RunFolder::kFresh) check_exports_may_go();
  }
  base::check_writable_directory(path_, needed_bytes, what_for, replaced_bytes(resumed_step));
}

void RunDirectory::create() {
  base::make_directories(path_);
  lock_ = std::make_unique<base::DirectoryLock>(path_);
  const std::string checkpoints_folder = Checkpoints(path_).folder();
  if (folder_ == RunFolder::kGoOn) {
    check_names();
  } else {
    check_nothing_came();
    // The checkpoints are removed first: they must not outlive the files that belong to them. A run that begins again
    // has none, and keeps the folder: killed on its way, it may begin again once more.
    if (folder_ != RunFolder::kFresh || !is_own_folder(checkpoints_folder)) Checkpoints(path_).clear();
    for (const OwnName& own : kNames) {
      if (std::string_view(own.name) != kCheckpoints) base::remove_tree(fmt::format("{}/{}", path_, own.name));
    }
  }
  base::make_directories(checkpoints_folder);
  base::make_directories(path_ + "/hf");
  for (const std::string& folder : {path_, checkpoints_folder, path_ + "/hf", samples_folder()}) {
    if (base::directory_exists(folder)) base::remove_temporaries(folder);
  }
}

std::string RunDirectory::removed_with(const std::string& path) const {
  if (!replaces()) return "";
  std::error_code unknown;  // what cannot be looked at is not in a folder that the run can clear
  for (const fs::path& whole : {fs::absolute(path, unknown), fs::weakly_canonical(path, unknown)}) {
    for (fs::path part = whole; part.has_relative_path(); part = part.parent_path()) {
      const bool is_own = std::ranges::find(kNames, part.filename().string(), &OwnName::name) != kNames.end();
      if (is_own && fs::equivalent(part.parent_path(), path_, unknown))
        return fmt::format("{}/{}", path_, part.filename().string());
    }
  }
  return "";
}

void RunDirectory::check_names() const {
  for (const OwnName& own : kNames) check_own(fmt::format("{}/{}", path_, own.name), own.is_folder);
  check_own(fmt::format("{}/{}", path_, base::DirectoryLock::kName), false);
}

void RunDirectory::check_exports_may_go() const {
  const std::string hf = path_ + "/hf";
  if (is_own_folder(Checkpoints(path_).folder()) || !base::directory_exists(hf)) return;
  for (const std::string& name : base::list_directory(hf)) {
    TANDEM_USER_CHECK(!export_step(name) && !best_step_of(name),
                      fmt::format("--save {}: has weights in hf/ ({}) and no checkpoints/ to resume from, and "
                                  "--allow-fresh-start would remove them; give --overwrite to begin again without "
                                  "them, or name another directory",
                                  path_, name));
  }
}

// It is no error of the environment: by a restart the run would resume from the other one's files, or replace them.
void RunDirectory::check_nothing_came() const {
  if (folder_ == RunFolder::kOverwrite) return;
  TANDEM_USER_CHECK(
      Checkpoints(path_).empty(),
      fmt::format("--save {0}: another process has saved a checkpoint there since this run began; start again, with "
                  "--load {0}, to resume it",
                  path_));
  TANDEM_USER_CHECK(folder_ == RunFolder::kFresh || !base::file_exists(config_file()),
                    fmt::format("--save {}: another process has begun a run there since this one began; start again "
                                "with another --save",
                                path_));
  if (folder_ == RunFolder::kFresh) check_exports_may_go();
}

std::map<std::string, int64_t> RunDirectory::growing_files() const {
  std::vector<std::string> names = {"metrics.jsonl", kMemory};
  if (base::directory_exists(tensorboard_folder())) {
    for (const std::string& name : base::list_directory(tensorboard_folder())) {
      if (is_event_file(name) && fs::is_regular_file(status_of(tensorboard_folder() + "/" + name)))
        names.push_back("tensorboard/" + name);
    }
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
  // The pointer is moved first, so that no run resumes from a checkpoint whose records are cut away.
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
  for (const std::string& path : written_after(step)) base::remove_durably(path);
  // A step need not have an export: hf/latest moves to the newest that is left, or is removed.
  std::optional<int64_t> newest;
  for (const std::string& name : base::list_directory(path_ + "/hf")) {
    newest = std::max(newest, export_step(name));
  }
  if (newest) {
    set_latest(*newest);
  } else {
    base::remove_tree(path_ + "/hf/latest");
  }
  // The best evaluation up to here is the last one whose weights were written.
  std::optional<int64_t> best_step;
  for (const int64_t other : best_steps()) best_step = std::max(best_step, std::optional(other));
  if (best_step) {
    set_best(*best_step);
  } else {
    base::remove_tree(path_ + "/hf/best");
  }
}

std::vector<int64_t> RunDirectory::best_steps() const {
  std::vector<int64_t> steps;
  for (const std::string& name : base::list_directory(path_ + "/hf")) {
    if (const std::optional<int64_t> step = best_step_of(name)) steps.push_back(*step);
  }
  return steps;
}

std::vector<std::string> RunDirectory::written_after(int64_t step) const {
  std::vector<std::string> paths;
  const auto look_into = [&](const std::string& folder, auto step_of) {
    if (!base::directory_exists(folder)) return;
    for (const std::string& name : base::list_directory(folder)) {
      if (step_of(name) > step) paths.push_back(folder + "/" + name);
    }
  };
  look_into(samples_folder(), step_of_samples);
  look_into(path_ + "/hf", export_step);
  look_into(path_ + "/hf", best_step_of);
  return paths;
}

int64_t RunDirectory::replaced_bytes(int64_t step) const {
  std::vector<std::string> paths;
  if (replaces()) {
    for (const OwnName& own : kNames) paths.push_back(fmt::format("{}/{}", path_, own.name));
  } else if (folder_ == RunFolder::kGoOn) {
    paths = written_after(step);
    const Checkpoints checkpoints(path_);
    for (const int64_t other : checkpoints.steps()) {
      if (other > step) paths.push_back(checkpoints.path(other));
    }
  }
  int64_t bytes = 0;
  for (const std::string& path : paths) bytes += base::bytes_freed_with(path, path_);
  return bytes;
}

std::string RunDirectory::best(int64_t step) const { return path_ + "/hf/" + best_name(step); }

void RunDirectory::set_best(int64_t step) const { base::link_durably(best_name(step), path_ + "/hf/best"); }

void RunDirectory::remove_bests_before(int64_t step) const {
  for (const int64_t other : best_steps()) {
    if (other < step) base::remove_durably(best(other));
  }
}

std::string RunDirectory::checkpoint(int64_t step) const { return path_ + "/hf/" + hf_folder_name(step); }

void RunDirectory::set_latest(int64_t step) const { base::link_durably(hf_folder_name(step), path_ + "/hf/latest"); }

std::string find_checkpoint(const std::string& run_path, int64_t step) {
  const std::string folder = base::without_trailing_slashes(run_path) + "/hf";
  base::check_directory(run_path, "--run " + run_path, "name the --save directory of a run");
  TANDEM_USER_CHECK(base::directory_exists(folder),
                    fmt::format("--run {}: no exported weights there (no folder hf); name the --save directory of a "
                                "run that has saved a checkpoint",
                                run_path));
  const std::string path = folder + "/" + (step < 0 ? "latest" : hf_folder_name(step));
  if (!base::directory_exists(path)) {
    std::vector<std::string> names;
    for (const std::string& name : base::list_directory(folder)) {
      if (name.starts_with("step_")) names.push_back(name);
    }
    throw UserError(fmt::format("--run {}: no checkpoint {}; there are: {}", run_path, path,
                                names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "))));
  }
  // A run that still works moves the link while the files are read, which must all be of one step.
  std::error_code error;
  const fs::path found = fs::canonical(path, error);
  TANDEM_ENV_CHECK(!error, fmt::format("--run {}: {} has just been removed; start again", run_path, path));
  return found.string();
}

}  // namespace tandem::checkpoint
