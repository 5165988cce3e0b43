// Collects all that `tandem train` can know without reading a weight or writing a byte.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoints.h"
#include "checkpoint/run_directory.h"
#include "config/run_mode.h"
#include "config/train_config.h"
#include "evaluation/evaluation.h"
#include "evaluation/rewards.h"
#include "mesh/mesh.h"
#include "plan/plan.h"
#include "report/report.h"
#include "run/run_space.h"
#include "sampling/rollout.h"
#include "sampling/schedule_log.h"
#include "scorer/messages.h"
#include "session/model_session.h"
#include "session/prompt_set.h"
#include "trainer/trainer.h"

namespace tandem::run {

struct TrainInputs {
  // Throws UserError for the first thing that is wrong with flags, model, tokenizer, data, reward, memory, --load or
  // --save. Warns of flags that are most likely not meant so. Every rank reads all of it. `config` is the configuration
  // of this rank, with its own device.
  TrainInputs(const config::TrainConfig& config, const config::RunMode& mode,
              std::unique_ptr<mesh::Mesh> ranks = mesh::solo_mesh());

  // Returns the optimizer steps before a rollout of this process, or at the end of the run: those that the checkpoint
  // counts, and today's number for each rollout since.
  int64_t steps_before(int64_t rollout_id) const;
  // Returns the prompts that were trained on before a rollout of this process, or at the end of the run.
  int64_t prompts_before(int64_t rollout_id) const;
  // Returns what the reward is told; what it prints goes into the run directory.
  session::RewardContext reward_context() const;
  // Returns when a sample passes for the metric of --save-best; "" if that is no pass@k, or if there is nothing to
  // choose.
  evaluation::Evaluation::RewardMetric best_metric() const;
  // Reads a rollout of --load-debug-rollout-data. Throws UserError as sampling::read_rollout does.
  sampling::Rollout read_debug_rollout(int64_t rollout_id) const;
  std::string debug_rollout_path(int64_t rollout_id) const;
  // Starts the processes that run the user's code; none if this process does not sample.
  evaluation::Rewards start_rewards() const;

  std::unique_ptr<mesh::Mesh> mesh;
  config::TrainConfig config;
  config::RunMode mode;
  session::ModelSession session;  // weights are loaded later
  session::PromptSet prompts;
  evaluation::Evaluation evaluation;
  std::optional<checkpoint::Checkpoint> checkpoint;  // checkpoint to resume from
  config::RunProgress done;                          // what the run had done by that checkpoint
  int64_t num_rollouts;
  plan::TrainPlan plan;
  trainer::TrainerConfig trainer;
  std::optional<sampling::ScheduleLog> schedule_log;  // schedule to replay
  RunSpace space;                                     // space that the run takes on disk
  checkpoint::RunDirectory directory;                 // empty so far
  std::vector<scorer::Welcome> teachers_elsewhere;    // what check_teachers() has returned
  std::map<std::string, std::string> result_inputs;   // everything that results depend on
};

// Prints what the run would be, for --dry-run, which also looks at the weights' files. Returns the exit code.
int print_dry_run(const TrainInputs& inputs);

// Prints the first lines of a run that has begun: what it is, and after which of its rollouts it resumes.
void print_start(const TrainInputs& inputs, int64_t rollout_id, report::Report& report);

}  // namespace tandem::run
