// Declares the options of the smaller verbs: each is the shared options plus a few of its own.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/custom_generate_options.h"
#include "config/data_options.h"
#include "config/eval_options.h"
#include "config/failure_options.h"
#include "config/model_options.h"
#include "config/reward_options.h"
#include "config/rollout_options.h"
#include "config/train_config.h"
#include "options/options.h"
#include "trainer/trainer_config.h"
#include "weights/export_options.h"

namespace tandem::config {

// `tandem generate` writes completions of each prompt, as JSONL.
struct GenerateConfig {
  ModelOptions model;
  DataOptions data;
  RolloutOptions rollout;
  std::string output = "-";

  void visit(options::Options& options);
};

// `tandem engine` answers requests on standard input with completions.
struct EngineProcessConfig {
  ModelOptions model;
  DataOptions data;
  RolloutOptions rollout;
  int64_t max_request_bytes = int64_t{64} << 20;  // limit of a line; reading one takes about nine times as much memory
  int64_t max_request_samples = 16384;            // limit over all prompts of a request

  void visit(options::Options& options);
};

// `tandem score` writes log-probs and entropies of given sequences, as JSONL.
struct ScoreConfig {
  ModelOptions model;
  DataOptions data;  // only how prompts become tokens
  std::string prompt_data;
  std::string output = "-";
  double temperature = 1.0;
  trainer::BatchConfig batch;

  void visit(options::Options& options);
};

// `tandem scorer` scores samples for the runs that ask it.
struct ScorerConfig {
  ModelOptions model;
  std::string listen;
  bool trust_network = false;
  trainer::BatchConfig batch;

  void visit(options::Options& options);
};

// `tandem eval` computes mean reward and pass@k of a checkpoint.
struct EvalConfig {
  ModelOptions model;
  DataOptions data;
  RolloutOptions rollout;
  CustomGenerateOptions custom_generate;
  RewardOptions reward;
  EvalOptions eval;
  std::string output;
  std::string sample_output;

  void visit(options::Options& options);
  void check() const;
};

// `tandem export` writes a run's checkpoint, or any, as a Hugging Face directory.
struct ExportConfig {
  std::string run, hf_checkpoint, output;
  int64_t step = -1;
  std::string dtype = "auto";
  weights::ExportOptions files;  // without the source, which --run or --hf-checkpoint names

  void visit(options::Options& options);
  void check() const;
};

// `tandem view` writes one HTML page of a run, or of several.
struct ViewConfig {
  std::vector<std::string> run;
  std::string output;  // empty: RUN/view.html

  void visit(options::Options& options);
};

// `tandem plan` has the options of `tandem train`, of which only --hf-checkpoint must be given.
struct PlanConfig {
  TrainConfig train;
  FailureOptions failures;
  bool json = false;

  void visit(options::Options& options);
};

}  // namespace tandem::config
