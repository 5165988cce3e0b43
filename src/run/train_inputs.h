// All that `tandem train` can know without reading a weight or writing a byte.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "run/checkpoints.h"
#include "run/evaluation.h"
#include "run/plan.h"
#include "run/prompt_set.h"
#include "run/report.h"
#include "run/rewards.h"
#include "run/run_directory.h"
#include "run/run_mode.h"
#include "run/run_space.h"
#include "run/session.h"
#include "run/train_config.h"
#include "trainer/trainer.h"

namespace tandem::run {

struct TrainInputs {
  // UserError for the first thing that is wrong with flags, model, tokenizer, data, reward, memory, --load or --save.
  // Warns of flags that are most likely not meant so.
  TrainInputs(const TrainConfig& config, const RunMode& mode);

  // What the reward is told; what it prints goes into the run directory.
  RewardContext reward_context() const;

  TrainConfig config;
  RunMode mode;
  Session session;  // its weights come later
  PromptSet prompts;
  Evaluation evaluation;
  int64_t num_rollouts;
  TrainPlan plan;
  trainer::TrainerConfig trainer;
  std::optional<Checkpoint> checkpoint;        // to resume from
  RunSpace space;                              // that the run takes on disk
  RunDirectory directory;                      // nothing is in it yet
  std::map<std::string, std::string> numbers;  // what results depend on
};

// Says what the run would be, for --dry-run, which also looks at the weights' files. Returns the exit code.
int print_dry_run(const TrainInputs& inputs);

// The first lines of a run that has begun: what it is, and behind which of its rollouts it resumes.
void print_start(const TrainInputs& inputs, int64_t rollout_id, Report& report);

}  // namespace tandem::run
