// Declares the options of AdamW, its schedule, and the split of a batch for memory.
#pragma once

#include <cstdint>
#include <string>

#include "options/options.h"
#include "trainer/trainer_config.h"

namespace tandem::config {

struct OptimizerOptions {
  trainer::AdamWConfig adamw;
  trainer::Schedule schedule;  // decay_steps 0: the run's optimizer steps
  trainer::GradientConfig gradient;
  trainer::RouterConfig router;
  bool freeze_moe_router = false;  // the routers of a sparse model keep their weights
  trainer::BatchConfig batch;
  std::string recompute_granularity = "auto";
  int64_t recompute_num_layers = 0;

  void visit(options::Options& options);
  // Declares the part of visit() that is about the routers of sparse models.
  void visit_routers(options::Options& options);
  // Declares the part of visit() that limits a micro-batch.
  void visit_memory(options::Options& options);
  // Throws UserError when two flags contradict.
  void check() const;
  // Returns the schedule of a run of this many optimizer steps. Throws UserError for a decay that ends before its
  // warm-up.
  trainer::Schedule run_schedule(int64_t total_steps) const;
  // Returns the value for trainer::TrainerConfig::recompute_layers: a number of layers, or -1 to recompute as many as
  // activation_bytes asks for.
  int64_t recompute_layers(int64_t num_layers) const;
};

// Declares the two options that every forward over given samples has: `train`, `sft` and `score`.
void visit_batch(trainer::BatchConfig& batch, options::Options& options, const std::string& group);

}  // namespace tandem::config
