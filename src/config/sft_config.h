// Declares all options of `tandem sft`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "config/checkpoint_options.h"
#include "config/data_options.h"
#include "config/eval_options.h"
#include "config/lora_options.h"
#include "config/mesh_options.h"
#include "config/model_options.h"
#include "config/optimizer_options.h"
#include "config/output_options.h"
#include "config/run_length.h"
#include "data/sft.h"
#include "options/options.h"
#include "rl/preference_loss.h"

namespace tandem::config {

struct SftConfig {
  // Sets the defaults that differ from those of `tandem train`.
  SftConfig();

  ModelOptions model;
  LoraOptions lora;
  DataOptions data;
  OptimizerOptions optimizer;
  MeshOptions mesh;  // only the devices that train
  EvalOptions eval;  // only the data sets
  OutputOptions output;
  CheckpointOptions checkpoints;
  int64_t global_batch_size = 0;
  std::optional<int64_t> num_rollout, num_epoch;
  bool rollout_shuffle = true;
  int64_t rollout_seed = 42;
  bool append_eos = true;
  bool calculate_per_token_loss = true;
  rl::PreferenceConfig preference;
  std::string ref_load;  // directory of the reference of preferences; "": the weights that the run begins with
  std::optional<int64_t> eval_interval;
  bool skip_eval_before_train = false;

  void visit(options::Options& options);
  void visit_preferences(options::Options& options);

  // Throws UserError, with the remedy, if flags contradict each other. It reads no file.
  void check() const;

  data::Answers answers() const;  // what a line of data has

  // Returns the optimizer steps of the run over this many samples; of preferences: pairs, or labelled answers. With
  // --num-epoch they depend on what a run that resumes has done.
  int64_t steps(int64_t num_samples, const RunProgress& done = {}) const;
  // Returns the number of samples at the end of the last epoch that fill no step.
  int64_t left_out_by_epochs(int64_t num_samples, const RunProgress& done = {}) const;
};

}  // namespace tandem::config
