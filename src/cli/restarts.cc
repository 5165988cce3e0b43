#include "cli/restarts.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "base/check.h"
#include "base/files.h"

namespace tandem::cli {

namespace {

bool has_checkpoint(const std::string& run) {
  const std::string folder = run + "/checkpoints";
  return base::directory_exists(folder) &&
         std::ranges::any_of(base::list_directory(folder),
                             [](const std::string& name) { return name.starts_with("step_"); });
}

// Paths that cannot be resolved count as the same folder, so that a restart replaces nothing there.
bool are_same_folder(const std::string& a, const std::string& b) {
  std::error_code unknown;
  return std::filesystem::weakly_canonical(base::without_trailing_slashes(a), unknown) ==
         std::filesystem::weakly_canonical(base::without_trailing_slashes(b), unknown);
}

}  // namespace

std::string saved_state(const std::string& save) {
  const std::string latest = save + "/checkpoints/latest";
  if (base::file_exists(latest)) {
    std::error_code error;
    const auto time = std::filesystem::last_write_time(latest, error);
    TANDEM_ENV_CHECK(!error, fmt::format("{}: cannot be looked at: {}", latest, error.message()));
    return fmt::format("checkpoint of {}", time.time_since_epoch().count());
  }
  const bool is_empty = !base::directory_exists(save) || base::list_directory(save).empty();
  return is_empty ? kNothingSaved : kNoCheckpoint;
}

std::vector<std::string> restarted(std::vector<std::string> arguments, const std::string& save,
                                   const config::CheckpointOptions& checkpoints, const std::string& saved_before) {
  const std::string saved = saved_state(save);
  const bool was_empty = saved_before == kNothingSaved;
  // A checkpoint that lay there before, of a run that --overwrite replaces, is none of this one's.
  const bool has_new_one = saved != saved_before && saved != kNothingSaved && saved != kNoCheckpoint;
  if (has_new_one || (was_empty && has_checkpoint(save))) {
    arguments.insert(arguments.end(), {"--load", save});
    // A file of --config may name a step, too.
    if (checkpoints.ckpt_step) arguments.insert(arguments.end(), {"--ckpt-step", "-1"});
    return arguments;
  }
  // A run that replaces another one's files, or that may begin in place, begins again by the same arguments.
  if (!was_empty || are_same_folder(checkpoints.load, save)) return arguments;
  // Here the folder was empty at first, so all that it holds was written by this run, which has saved nothing yet.
  if (checkpoints.load.empty()) {
    arguments.insert(arguments.end(), {"--load", save, "--allow-fresh-start"});
  } else {
    arguments.emplace_back("--overwrite");
  }
  return arguments;
}

}  // namespace tandem::cli
