// Declares all options of `tandem train`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "config/async_options.h"
#include "config/checkpoint_options.h"
#include "config/custom_generate_options.h"
#include "config/data_options.h"
#include "config/dynamic_sampling_options.h"
#include "config/eval_options.h"
#include "config/lora_options.h"
#include "config/loss_options.h"
#include "config/memory_options.h"
#include "config/mesh_options.h"
#include "config/model_options.h"
#include "config/optimizer_options.h"
#include "config/output_options.h"
#include "config/reward_options.h"
#include "config/rollout_options.h"
#include "config/run_length.h"
#include "options/options.h"

namespace tandem::config {

// Samples of a run: their ids stay below those of evaluations (evaluation/evaluation.cc).
constexpr int64_t kMaxSamples = int64_t{1} << 52;

struct TrainConfig {
  // Sets the defaults that differ from those of the options it holds: a group has 8 completions, not 1.
  TrainConfig();

  ModelOptions model;
  LoraOptions lora;
  DataOptions data;
  RolloutOptions rollout;
  CustomGenerateOptions custom_generate;
  RewardOptions reward;
  LossOptions loss;
  OptimizerOptions optimizer;
  MemoryOptions memory;
  MeshOptions mesh;
  EvalOptions eval;
  OutputOptions output;
  CheckpointOptions checkpoints;

  bool allow_inexact = false;
  // Set where --allow-inexact was needed: log-probs of engine and trainer differ on this device.
  bool is_inexact_device = false;
  bool colocate = false;
  int64_t rollout_batch_size = 0;
  std::optional<int64_t> num_rollout, num_epoch;
  std::optional<int64_t> global_batch_size, num_steps_per_rollout;
  int64_t num_epochs_per_rollout = 1;
  bool rollout_shuffle = false;
  DynamicSamplingOptions dynamic_sampling;
  AsyncOptions async;
  std::optional<int64_t> over_sampling_batch_size;
  std::string load_debug_rollout_data;  // "path/{rollout_id}.jsonl"
  std::optional<int64_t> eval_interval;
  bool skip_eval_before_train = false;

  void visit(options::Options& options);

  // Throws UserError, with the remedy, if flags contradict each other or do not divide. It reads no file.
  void check() const;

  // The part of check() that a memory plan depends on: devices, batches and steps. Without --colocate and
  // --rollout-num-gpus, devices that do both are asked about.
  void check_shape() const;

  // Returns the number of processes that start together: first those that train, then the rollout workers.
  int64_t num_processes() const { return mesh.num_ranks() + mesh.num_workers(colocate); }

  // Returns `loss.loss`, with the values that it takes from --rollout-max-response-len.
  rl::LossConfig loss_config() const;

  // The next ones are valid after check().
  int64_t samples_per_rollout() const { return rollout_batch_size * rollout.n_samples_per_prompt; }
  // Returns whether groups are in flight between two rollouts.
  bool keeps_groups() const { return async.keeps_groups(colocate); }
  // Returns the most groups that are in flight at once: kept by a filter or still sampled or, where groups are in
  // flight between two rollouts, begun and not trained on.
  int64_t groups_at_once() const {
    return over_sampling_batch_size.value_or(async.default_groups_at_once(rollout_batch_size));
  }
  // Returns the most samples that the engine decodes together.
  int64_t samples_at_once() const;
  int64_t samples_per_step() const;
  int64_t steps_per_epoch() const { return samples_per_rollout() / samples_per_step(); }  // one pass over a rollout
  int64_t steps_per_rollout() const { return steps_per_epoch() * num_epochs_per_rollout; }
  // Returns the rollouts of the run; with --num-epoch they depend on `num_prompts`, the size of the data set, and on
  // what a run that resumes has done.
  int64_t rollouts(int64_t num_prompts, const RunProgress& done = {}) const;
  // Returns a sentence about the prompts that --num-epoch leaves out at the end, because rollouts are whole; or "".
  std::string left_out_by_epochs(int64_t num_prompts, const RunProgress& done = {}) const;

 private:
  void check_steps() const;
  void check_groups_in_flight() const;
  void check_dynamic_sampling() const;
  void check_async() const;
  void check_distillation() const;
  void check_given_answers() const;
  void check_samples(int64_t num_rollouts) const;
};

}  // namespace tandem::config
