#include "run/start_checks.h"

#include <utility>

#include "base/log.h"
#include "run/checkpoint_writer.h"
#include "run/reference.h"
#include "run/samples.h"

namespace tandem::run {

void check_start(const TrainConfig& config, const Session& session, const PromptSet& prompts) {
  check_stop_tokens(config.rollout, session.config());
  if (config.loss.needs_reference()) check_reference(session, config.loss.ref_load);
  for (const auto& [flag, pattern] : {std::pair{"--save-debug-rollout-data", config.output.save_debug_rollout_data},
                                      {"--load-debug-rollout-data", config.load_debug_rollout_data}}) {
    if (!pattern.empty()) rollout_path(flag, pattern, 0);
  }
  const std::string left_out = config.left_out_by_epochs(static_cast<int64_t>(prompts.prompts.size()));
  if (!left_out.empty()) base::log_info("{}", left_out);
}

RunSpace run_space(const Session& session, const TrainConfig& config, const PromptSet& prompts, int64_t num_rollouts,
                   int64_t begin) {
  RunSpace space = checkpoint_space(session, config.output.num_exports(num_rollouts, begin),
                                    config.output.num_checkpoints(num_rollouts, begin), config.checkpoints.keep_latest);
  add_records(space, config, prompts, num_rollouts - begin);
  return space;
}

}  // namespace tandem::run
