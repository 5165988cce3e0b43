// Computes the engine's steps: it queues a plan on the device and returns the results that its draws will have. One
// code serves recorded steps, which are decode steps filled up to a bucket, and all others, which run with tensors of
// the exact size that are freed when the next step is queued.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>

#include "device/draw.h"
#include "device/ops.h"
#include "model/model.h"
#include "rollout/kv_cache.h"
#include "rollout/paged_attention.h"
#include "rollout/step_buckets.h"
#include "rollout/step_input.h"
#include "rollout/step_tensors.h"

namespace tandem::rollout {

struct StepRunnerConfig {
  int64_t max_batch_tokens = 0;  // most rows of a step
  int64_t max_decodes = 0;       // most rows of a decode step
  int64_t window_rows = 0;       // rows of logits that are computed at once
  bool records = false;          // whether decode steps are recorded
  bool runs_ahead = false;       // whether a step may take tokens that the previous one draws
  // The exchange of shared experts, or null where they are not shared. Only steps of all ranks are recorded then.
  device::ExpertExchange* exchange = nullptr;
};

class StepRunner {
 public:
  // Model and cache are borrowed.
  StepRunner(const StepRunnerConfig& config, model::Model& model, KvCache& cache);

  // Call it before the steps of a rollout, whose sequences have up to so many tokens: it takes the memory of recorded
  // steps, or more of it. All draws have been read.
  void begin(int64_t context_tokens);
  bool is_ready(int64_t context_tokens) const { return !config_.records || buckets_.holds(context_tokens); }
  // Releases all that the steps hold on the device. All draws have been read.
  void end();
  // Call it when the weights have moved.
  void drop_recordings() { buckets_.drop_recordings(); }

  // Queues a step. draws[i] is the draw of plan.sample_slots[i], from row plan.logits_rows[draws[i].row].
  // read_results() reads the results, which have at least as many draws.
  std::unique_ptr<device::Ops::Fetch> run(const ScheduledBatch& plan, std::span<const device::Draw> draws);

  // Returns whether a step may be one that all ranks make together: it has only decodes, and there is a bucket for it.
  bool can_share(const ScheduledBatch& plan) const;
  // Does the same with the other ranks of the exchange, each of which has up to `rows` rows, or none.
  std::unique_ptr<device::Ops::Fetch> run_shared(const ScheduledBatch& plan, std::span<const device::Draw> draws,
                                                 int64_t rows);

 private:
  std::unique_ptr<device::Ops::Fetch> run_exact(const ScheduledBatch& plan, std::span<const device::Draw> draws,
                                                const StepShape& shape);
  std::unique_ptr<device::Ops::Fetch> run_bucket(StepBuckets::Bucket& bucket, const ScheduledBatch& plan,
                                                 std::span<const device::Draw> draws);
  // Sends the input, and puts in the tokens of the previous step.
  void send(const StepTensors& tensors);
  // Computes from ids to drawn tokens, on the device alone.
  void compute(const StepTensors& tensors);
  void draw_window(const StepTensors& tensors, const at::Tensor& hidden_TE, const DrawWindow& window) const;
  std::unique_ptr<device::Ops::Fetch> fetch(const StepTensors& tensors);

  const device::Ops& ops() const { return model_.ops(); }
  StepInput::Drawer drawer() const { return {.rank = model_.ranks().rank(), .num_ranks = model_.ranks().size()}; }

  const StepRunnerConfig config_;
  model::Model& model_;
  KvCache& cache_;
  PagedAttention attention_;
  StepBuckets buckets_;
  StepInput input_;     // input of the step that is being queued
  at::Tensor drawn_n_;  // tokens of the previous step, where the next one may take them
};

}  // namespace tandem::rollout
