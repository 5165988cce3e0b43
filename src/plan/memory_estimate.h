// The bytes of everything in a run but its keys and values, added up by tag and phase for the memory plan.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/size.h"
#include "config/train_config.h"
#include "device/footprint.h"
#include "memory/memory_plan.h"
#include "model/config.h"
#include "plan/plan.h"
#include "trainer/trainer_plan.h"

namespace tandem::plan {

// The program, LibTorch, the text worker and the graders take so many bytes of the host. 0.10 GiB is what
// bench/results/memory.md leaves for `tandem generate` once weights and touched keys and values are taken off; 0.06 GiB
// for two graders is a guess.
constexpr int64_t kProcessBytes = int64_t{160} << 20;

// Holds the lengths, in tokens, that the memory is planned for.
struct Lengths {
  base::Size longest_prompt = 0, context = 0;
  base::Size longest_response = 0;  // after the shortest prompt
  bool is_assumed = false;
};

// Returns the lengths by the flags and the data. Throws UserError if they contradict each other.
Lengths lengths(const config::TrainConfig& config, const model::ModelConfig& model, const PlanInputs& facts);

// Returns the number of samples that decode together. Where the size of a rollout is not given, the engine's limit is
// it.
base::Size samples_at_once(const config::TrainConfig& config);

// Adds up everything of a run but its keys and values, which plan() is told. Borrows configuration, model, layouts and
// the teachers of `facts`, which must outlive it.
class MemoryEstimate {
 public:
  // The engine is asked for `sequences` at once, the longest of `engine_context` tokens.
  MemoryEstimate(const config::TrainConfig& config, const model::ModelConfig& model, const ModelLayouts& layouts,
                 const Lengths& length, base::Size engine_context, base::Size sequences, int64_t data_ranks,
                 const PlanInputs& facts, const DeviceMemory& device);

  const trainer::MicroBatchShape& batch() const { return batch_; }
  base::Size recomputed_layers() const { return recomputed_layers_; }
  const device::Footprint& footprint() const { return footprint_; }
  base::Size pinned_bytes() const { return pinned_bytes_; }
  base::Size waiting_bytes() const { return waiting_bytes_; }
  base::Size second_copy_bytes() const { return second_copy_bytes_; }
  // Returns what the average of a reference takes of the host, beside what is on the device.
  base::Size average_bytes() const { return average_bytes_; }

  // Returns the bytes that last through rollouts and training, beside the arena.
  memory::TagBytes lasting() const;

  // Returns the plan of a run whose keys and values take `kv_bytes`.
  memory::MemoryPlan plan(base::Size kv_bytes) const;

 private:
  void add_rollout(memory::TagBytes rollout, base::Size kv_bytes, memory::MemoryPlan& plan) const;

  void add_training(memory::TagBytes train, memory::MemoryPlan& plan) const;

  // The reward model scores a rollout, or what an evaluation has sampled.
  void add_judging(memory::TagBytes judging, memory::MemoryPlan& plan) const;

  // Teachers score a rollout one after the other.
  void add_teacher_scores(size_t i, const trainer::TrainShape& scores, memory::TagBytes scoring,
                          memory::MemoryPlan& plan) const;

  // For the loss of the whole distributions all teachers are on the device while steps are taken. They run over a
  // micro-batch before the trained model does, and what they give stays until its logits are differentiated.
  void add_distillation(memory::TagBytes& train, memory::MemoryPlan& plan) const;

  bool is_reference_adapter() const { return model_.lora && config_.loss.ref_load.empty(); }
  // Only a reference that is a copy of the policy has an adapter.
  bool reference_has_adapter() const {
    return is_reference_adapter() && (config_.loss.ref_update_interval || resumes_reference_);
  }
  bool offloads_reference() const { return config_.memory.offloads_reference() && !is_reference_adapter(); }
  bool offloads_optimizer() const { return config_.memory.offloads_optimizer(); }
  bool offloads_teacher() const { return config_.memory.offloads_teacher(); }
  bool offloads_reward_model() const { return config_.memory.offloads_rm_model(); }

  trainer::TrainShape train_shape() const;

  // Operations keep so much once both phases have run.
  base::Size kernel_bytes() const;

  const config::TrainConfig& config_;
  const model::ModelConfig& model_;
  const ModelLayouts& layouts_;
  const model::ModelConfig trained_model_;
  const Role role_;
  const std::optional<model::ModelConfig> reference_;
  const bool resumes_reference_;
  const std::span<const model::ModelConfig> teachers_;
  const std::optional<model::ModelConfig> reward_model_;
  const int64_t data_ranks_;
  const device::Footprint& footprint_;
  base::Size engine_context_, sequences_;
  trainer::MicroBatchShape batch_;         // of an optimizer step
  trainer::MicroBatchShape scored_batch_;  // of a whole rollout
  trainer::MicroBatchShape judged_batch_;  // of a rollout's conversations, as the reward model reads them
  base::Size recomputed_layers_ = 0;
  base::Size gradient_bytes_ = 0, reference_bytes_ = 0, average_bytes_ = 0, pinned_bytes_ = 0, waiting_bytes_ = 0;
  base::Size second_copy_bytes_ = 0;
  std::vector<base::Size> teacher_bytes_;  // of the weights of each
  base::Size reward_model_bytes_ = 0;
  memory::TagBytes standing_;
};

}  // namespace tandem::plan
