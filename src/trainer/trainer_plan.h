// The trainer's bytes, from a configuration alone: what it holds between steps, what a micro-batch holds, and how many
// blocks must drop their graphs to fit a budget. No torch.
#pragma once

#include <cstdint>

#include "device/ops_plan.h"
#include "memory/memory_plan.h"
#include "model/config.h"
#include "trainer/optimizer_offload.h"

namespace tandem::trainer {

// Beside the weights. Masters and moments last as long as the trainer, gradients from a train phase's first step to its
// end (Trainer::end_phase).
struct OptimizerBytes {
  int64_t master = 0;    // float32; 0 in a float32 store, which is its own master
  int64_t moments = 0;   // two of float32
  int64_t gradient = 0;  // float32
  int64_t total() const { return master + moments + gradient; }
};
OptimizerBytes optimizer_bytes(const model::ModelConfig& config, model::Dtype store_dtype);

// With an OptimizerOffload the device has no master and no moments: the host has them, pinned, as long as the trainer.
// An update streams them through buffers on the device, which last as long as it.
struct OffloadBytes {
  int64_t pinned_host = 0;
  int64_t device_buffers = 0;  // at most kOffloadBufferSets times two or three pieces
};
OffloadBytes offload_bytes(const model::ModelConfig& config, model::Dtype store_dtype,
                           int64_t piece_elements = kOffloadPieceElements);

// What one token of a micro-batch keeps alive between forward and backward.
struct TokenBytes {
  int64_t block_input = 0;  // of each block, kept or recomputed: the hidden state
  int64_t block_graph = 0;  // of each kept block, besides its input: what its backward reads
  int64_t head = 0;         // once: final norm's input and output, and the gradient of the output in float32
};
TokenBytes token_bytes(const model::ModelConfig& config, model::Dtype dtype);

// Logits of one chunk (float32); backward turns them into their gradient in place.
int64_t logits_bytes(const model::ModelConfig& config, int64_t chunk_rows);

// A micro-batch as far as memory depends on it.
struct MicroBatchShape {
  int64_t rows = 0;            // tokens that run: T
  int64_t targets = 0;         // tokens that are predicted: R
  int64_t sequences = 0;       // samples
  int64_t kv_blocks = 0;       // of the attention's cache
  int64_t tiles = 0;           // of the attention's rows (device::AttentionLoad)
  int64_t context_tokens = 0;  // of the longest sequence
};

// The most that one micro-batch of an optimizer step can have under the token budget (rl/packing.h): exact where the
// whole step fits into one, else a bound that holds for completions of every length.
struct StepShape {
  int64_t num_samples = 0, group_size = 1;
  int64_t prompt_tokens = 0, response_tokens = 0;  // the longest
};
MicroBatchShape largest_micro_batch(const StepShape& step, int64_t max_tokens);

// Forward, loss, backward of that micro-batch and the optimizer's update.
struct TrainShape {
  MicroBatchShape batch;
  int64_t recomputed_layers = 0;
  int64_t logprob_chunk_rows = 0;
  bool has_entropy_term = false;
  device::OpsFamily family = device::OpsFamily::kCpu;
  bool offloads_optimizer = false;
};

// Adds the moments of the train phase at which most is alive: `standing` is what lasts through it.
void add_train_moments(const model::ModelConfig& config, model::Dtype dtype, const TrainShape& shape,
                       const memory::TagBytes& standing, memory::MemoryPlan& plan);

// The same for a pass without gradients: log-probs under a reference.
void add_scoring_moments(const model::ModelConfig& config, model::Dtype dtype, const TrainShape& shape,
                         const memory::TagBytes& standing, memory::MemoryPlan& plan);

// Activations of a micro-batch with `recomputed_layers` blocks' graphs dropped; the block that is being re-run counts.
int64_t activation_bytes(const model::ModelConfig& config, model::Dtype dtype, int64_t num_tokens,
                         int64_t recomputed_layers);

// The fewest blocks to recompute so that activation_bytes() stays within `budget_bytes` (0: no limit). All of them
// where even that does not fit: one block's graph is the least that backward needs.
int64_t recomputed_layers_for(const model::ModelConfig& config, model::Dtype dtype, int64_t num_tokens,
                              int64_t budget_bytes);

}  // namespace tandem::trainer
