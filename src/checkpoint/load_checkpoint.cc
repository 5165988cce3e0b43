#include "checkpoint/load_checkpoint.h"

#include <fmt/format.h>

#include <filesystem>

#include "base/check.h"
#include "base/files.h"
#include "base/log.h"
#include "checkpoint/result_inputs.h"

namespace tandem::checkpoint {

namespace {

// Refuses RUN/checkpoints/step_000003, RUN/hf/latest and what lies above them, as other trainers take it, and says what
// to give.
void check_is_no_part_of_a_run(const std::string& load) {
  const std::filesystem::path path = base::without_trailing_slashes(load);
  const std::string name = path.filename().string();
  std::filesystem::path run = path;
  for (int level = 0; level < 2; ++level) {
    run = run.parent_path();
    const std::string shown = run.empty() ? "." : run.string();
    if (Checkpoints(shown).empty()) continue;
    const std::string digits = name.starts_with("step_") ? name.substr(5) : "";
    const bool is_step = digits.find_first_of("123456789") != std::string::npos &&
                         digits.find_first_not_of("0123456789") == std::string::npos;
    throw UserError(fmt::format("--load {}: is a part of a run; give --load {}{}", load, shown,
                                is_step ? " --ckpt-step " + digits.substr(digits.find_first_not_of('0')) : ""));
  }
}

// Returns the path without links. Its end need not exist.
std::filesystem::path resolved(const char* flag, const std::string& path) {
  std::error_code error;
  std::filesystem::path result = std::filesystem::weakly_canonical(base::without_trailing_slashes(path), error);
  TANDEM_ENV_CHECK(!error, fmt::format("{} {}: cannot be looked at: {}; look whether its disk answers, and whether a "
                                       "link leads nowhere",
                                       flag, path, error.message()));
  return result;
}

}  // namespace

std::optional<Checkpoint> open_checkpoint(const config::CheckpointOptions& options,
                                          const std::map<std::string, std::string>& flags) {
  if (options.load.empty()) return std::nullopt;
  const Checkpoints checkpoints(options.load);
  if (checkpoints.empty()) {
    check_is_no_part_of_a_run(options.load);
    if (!options.allow_fresh_start) {
      base::check_directory(options.load, "--load " + options.load,
                            "name the --save directory of a run, or give --allow-fresh-start to begin a new one");
      throw UserError(
          fmt::format("--load {}: nothing is saved there yet (there is no good checkpoint in {}); give "
                      "--allow-fresh-start to begin a new run where there is none to resume",
                      options.load, checkpoints.folder()));
    }
    base::log_info("--load {}: nothing was saved there yet: a new run begins (--allow-fresh-start)", options.load);
    return std::nullopt;
  }
  const bool is_last = options.ckpt_step.value_or(-1) == -1;
  Checkpoint checkpoint = checkpoints.open(is_last ? std::nullopt : options.ckpt_step);
  check_same_command(checkpoint, flags);
  return checkpoint;
}

void check_length(const config::CheckpointOptions& options, int64_t num_done, int64_t num_steps) {
  TANDEM_USER_CHECK(num_done <= num_steps,
                    fmt::format("--load {}: has trained {} already, and this run is to train {}; raise --num-rollout "
                                "or --num-epoch, or go back with --ckpt-step",
                                options.load, num_done, num_steps));
}

bool resumes_in_place(const config::CheckpointOptions& options, const std::string& save) {
  return !options.load.empty() && resolved("--load", options.load) == resolved("--save", save);
}

void check_still_opened(const Checkpoint& checkpoint) {
  const std::filesystem::path run = std::filesystem::path(checkpoint.directory()).parent_path().parent_path();
  TANDEM_ENV_CHECK(Checkpoints(run.string()).identity() == checkpoint.identity_when_opened(),
                   fmt::format("--load {}: another process has changed its checkpoints since this run opened {}; start "
                               "again, to resume from what is there now",
                               run.string(), checkpoint.directory()));
}

RunFolder run_folder(const config::CheckpointOptions& options, const std::string& save, bool overwrite) {
  if (!resumes_in_place(options, save)) return overwrite ? RunFolder::kOverwrite : RunFolder::kNew;
  if (!Checkpoints(options.load).empty()) return RunFolder::kGoOn;
  return overwrite ? RunFolder::kOverwrite : RunFolder::kFresh;
}

}  // namespace tandem::checkpoint
