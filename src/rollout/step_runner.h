// Computes the engine's steps: queues on the device what a plan says and gives back what its draws will be. One code
// for steps that are recorded, decode steps filled up to a bucket, and for all others, which run with tensors of the
// exact size that go when the next step is queued.
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
  int64_t max_batch_tokens = 0;  // rows of a step
  int64_t max_decodes = 0;       // rows of a decode step
  int64_t window_rows = 0;       // rows of logits that are computed at once
  bool records = false;          // decode steps
  bool runs_ahead = false;       // a step may take tokens that the one before it draws
};

class StepRunner {
 public:
  // Both are borrowed.
  StepRunner(const StepRunnerConfig& config, model::Model& model, KvCache& cache);

  // Before the steps of a rollout, whose sequences have up to so many tokens: takes the memory of recorded steps, or
  // more of it. All draws have been read.
  void begin(int64_t context_tokens);
  bool is_ready(int64_t context_tokens) const { return !config_.records || buckets_.holds(context_tokens); }
  // Lets go all that the steps hold on the device. All draws have been read.
  void end();
  // The weights have moved.
  void drop_recordings() { buckets_.drop_recordings(); }

  // Queues a step. draws[i] is that of plan.sample_slots[i], from row plan.logits_rows[draws[i].row]. The results are
  // as read_results() takes them, with at least as many draws.
  std::unique_ptr<device::Ops::Fetch> run(const ScheduledBatch& plan, std::span<const device::Draw> draws);

 private:
  std::unique_ptr<device::Ops::Fetch> run_exact(const ScheduledBatch& plan, std::span<const device::Draw> draws);
  std::unique_ptr<device::Ops::Fetch> run_bucket(StepBuckets::Bucket& bucket, const ScheduledBatch& plan,
                                                 std::span<const device::Draw> draws);
  // Sends the input, and puts in the tokens of the step before.
  void send(const StepTensors& tensors);
  // From ids to drawn tokens, on the device alone.
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
  StepInput input_;     // of the step that is being queued
  at::Tensor drawn_n_;  // the tokens of the step before, where the next one may take them
};

}  // namespace tandem::rollout
