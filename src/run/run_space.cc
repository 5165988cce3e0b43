#include "run/run_space.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/files.h"
#include "base/size.h"
#include "checkpoint/checkpoints.h"
#include "checkpoint/load_checkpoint.h"
#include "model/lora.h"

namespace tandem::run {

namespace {

// A rollout's record, its lines of the memory timeline and its TensorBoard scalars take so much in tiny runs.
constexpr int64_t kLogBytesPerRollout = int64_t{12} << 10;
constexpr int64_t kOptimizerBytesPerParameter = 12;   // float32 master and two moments
constexpr int64_t kHeaderBytes = int64_t{256} << 10;  // headers of weight files, state.json, the manifest
constexpr int64_t kSampleFieldBytes = 400;            // names and numbers of one line of samples/

// Returns how many bytes a token of the data's prompts takes as text.
double bytes_per_token(const session::PromptSet& prompts) {
  double bytes = 0.0, tokens = 0.0;
  for (const session::PromptLine& line : prompts.prompts) {
    bytes += static_cast<double>(line.prompt->text.size());
    tokens += static_cast<double>(line.prompt->tokens.size());
  }
  return bytes / std::max(tokens, 1.0);
}

int64_t mean_prompt_bytes(const session::PromptSet& prompts) {
  int64_t bytes = 0;
  for (const session::PromptLine& line : prompts.prompts) bytes += static_cast<int64_t>(line.prompt->text.size());
  return bytes / static_cast<int64_t>(prompts.prompts.size());
}

}  // namespace

std::string RunSpace::what_for() const {
  const auto mib = [](int64_t bytes) { return (bytes + (1 << 20) - 1) >> 20; };
  const std::string dumps =
      samples == 0 ? "" : fmt::format("samples/ {}: a longer --sample-dump-interval; ", mib(samples));
  return fmt::format(" (hf/ {} MiB{}; checkpoints/ {}{}; {}logs {})", mib(exports),
                     has_several_exports ? ", which a longer --save-interval lowers" : "", mib(checkpoints),
                     keeps_several ? ": --keep-latest" : "", dumps, mib(logs));
}

RunSpace checkpoint_space(const model::ModelConfig& model, int64_t copied_bytes, int64_t num_exports,
                          int64_t num_checkpoints, int64_t keep_latest, int64_t reference_element_bytes,
                          int64_t num_there) {
  RunSpace space;
  const int64_t parameters = model::trained_layout(model::whole_of(model)).num_elements();
  const int64_t weights = parameters * model::dtype_bytes(model.dtype);
  space.exports = num_exports * (weights + copied_bytes + kHeaderBytes);
  space.has_several_exports = num_exports > 1;
  // Checkpoints beyond those that are kept are removed only after the next one is written.
  const auto num_at_once = [&](int64_t kept) {
    return std::min(num_checkpoints, std::max<int64_t>(kept + 1 - num_there, 1));
  };
  space.keeps_several = num_at_once(keep_latest) > num_at_once(1);
  space.checkpoints = num_at_once(keep_latest) *
                      (parameters * kOptimizerBytesPerParameter + parameters * reference_element_bytes + kHeaderBytes);
  return space;
}

int64_t num_checkpoints_there(const config::CheckpointOptions& options, const std::string& save, int64_t begin) {
  if (!checkpoint::resumes_in_place(options, save)) return 0;
  const std::vector<int64_t> steps = checkpoint::Checkpoints(save).steps();
  return std::ranges::count_if(steps, [begin](int64_t step) { return step <= begin; });
}

int64_t num_further_bests(const config::CheckpointOptions& options, const config::OutputOptions& output) {
  if (output.save_best.empty()) return 0;
  // The best weights are kept, and the new ones until a checkpoint records them.
  return checkpoint::resumes_in_place(options, output.save) && base::directory_exists(output.save + "/hf/best") ? 1 : 2;
}

int64_t saved_reference_element_bytes(const config::LossOptions& loss, model::Dtype dtype) {
  if (!loss.ref_update_interval) return 0;
  return loss.ref_mixup_alpha < 1.0 ? base::kFloatBytes : model::dtype_bytes(dtype);
}

void add_records(RunSpace& space, const config::TrainConfig& config, const session::PromptSet& prompts,
                 int64_t num_rollouts) {
  const base::Size rollouts = std::max<int64_t>(num_rollouts, 0);
  space.logs =
      rollouts * (config.steps_per_rollout() * base::Size(kLogBytesPerStep) + kLogBytesPerRollout) + space.logs;
  const int64_t interval = config.output.sample_dump_interval;
  if (interval == 0) return;
  const base::Size completion_bytes =
      base::Size::from(0.5 * static_cast<double>(config.rollout.response_len()) * bytes_per_token(prompts));
  const base::Size dumped = (rollouts + interval - 1) / interval;
  const base::Size sample_bytes = completion_bytes + mean_prompt_bytes(prompts) + kSampleFieldBytes;
  space.samples = dumped * config.samples_per_rollout() * sample_bytes + space.samples;
}

}  // namespace tandem::run
