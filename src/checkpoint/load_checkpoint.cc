#include "checkpoint/load_checkpoint.h"

#include <fmt/format.h>

#include <filesystem>

#include "base/check.h"
#include "base/log.h"

namespace tandem::checkpoint {

std::optional<Checkpoint> open_checkpoint(const config::CheckpointOptions& options) {
  if (options.load.empty()) return std::nullopt;
  const Checkpoints checkpoints(options.load);
  if (checkpoints.empty()) {
    TANDEM_USER_CHECK(options.allow_fresh_start,
                      fmt::format("--load {}: nothing is saved there yet (there is no good checkpoint in {}); give "
                                  "--allow-fresh-start to begin a new run where there is none to go on with",
                                  options.load, checkpoints.folder()));
    base::log_info("--load {}: nothing was saved there yet: a new run begins (--allow-fresh-start)", options.load);
    return std::nullopt;
  }
  return checkpoints.open(options.ckpt_step);
}

bool resumes_in_place(const config::CheckpointOptions& options, const std::string& save) {
  std::error_code error;
  namespace fs = std::filesystem;
  return !options.load.empty() && fs::weakly_canonical(options.load, error) == fs::weakly_canonical(save, error);
}

RunFolder run_folder(const config::CheckpointOptions& options, const std::string& save, bool overwrite) {
  if (!resumes_in_place(options, save)) return overwrite ? RunFolder::kOverwrite : RunFolder::kNew;
  return Checkpoints(options.load).empty() ? RunFolder::kOverwrite : RunFolder::kGoOn;
}

}  // namespace tandem::checkpoint
