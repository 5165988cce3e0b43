// The trainer's bytes, from a configuration alone, whose dtype is that of the weights' store: what it holds between
// steps, what a micro-batch holds, and how many blocks must drop their graphs to fit a budget. No torch.
#pragma once

#include <cstdint>

#include "base/size.h"
#include "device/footprint.h"
#include "memory/memory_plan.h"
#include "model/config.h"
#include "rl/packing.h"
#include "trainer/optimizer_offload.h"

namespace tandem::trainer {

using base::Size;

// Of what is trained (model::trained_layout), beside the weights. Masters and moments last as long as the trainer,
// gradients from a train phase's first step to its end (Trainer::end_phase). Of several data ranks: the most that one
// of them has.
struct OptimizerBytes {
  Size master = 0;    // float32; 0 in a float32 store, which is its own master
  Size moments = 0;   // two of float32
  Size gradient = 0;  // float32
  Size total() const { return master + moments + gradient; }
};
OptimizerBytes optimizer_bytes(const model::ModelConfig& config, int64_t data_ranks = 1);

// The memory beside the accumulators in which a micro-batch's gradients are computed and, of several data ranks, the
// others' are received (trainer/gradient_sum.h); as long as the gradients. A rank alone that computes one micro-batch a
// step needs none.
Size gradient_scratch_bytes(const model::ModelConfig& config, int64_t data_ranks, bool has_several_micro_batches);

// With an OptimizerOffload the device has no master and no moments: the host has them, pinned, as long as the trainer.
// An update streams them through buffers on the device, which last as long as it.
struct OffloadBytes {
  Size pinned_host = 0;
  Size device_buffers = 0;  // at most kOffloadBufferSets times two or three pieces
};
OffloadBytes offload_bytes(const model::ModelConfig& config, Size piece_elements = kOffloadPieceElements,
                           int64_t data_ranks = 1);

// What the tokens of a micro-batch keep alive between forward and backward.
struct KeptBytes {
  Size block_input = 0;  // of each block, kept or recomputed: the hidden state, as far as this rank keeps it
  Size block_graph = 0;  // of each kept block, besides its input: what its backward reads
  Size head = 0;         // once: final norm's input and output, and the gradient of the output in float32
};
KeptBytes kept_bytes(const model::ModelConfig& config, Size num_tokens);

// A micro-batch as far as memory depends on it.
struct MicroBatchShape {
  Size rows = 0;            // tokens that run: T
  Size targets = 0;         // tokens that are predicted: R
  Size sequences = 0;       // samples
  Size kv_blocks = 0;       // of the attention's cache
  Size tiles = 0;           // of the attention's rows (device::AttentionLoad)
  Size context_tokens = 0;  // of the longest sequence
  Size expanded_keys = 0;   // of all sequences, a shared prompt's once for each
};

// The most that one micro-batch of an optimizer step can have under the token budget (rl/packing.h): exact where the
// whole step fits into one, else a bound that holds for completions of every length.
struct StepShape {
  Size num_samples = 0, group_size = 1;
  Size prompt_tokens = 0, response_tokens = 0;  // the longest
};
MicroBatchShape largest_micro_batch(const StepShape& step, Size max_tokens);
// Whether there may be more than one.
bool may_take_several_micro_batches(const StepShape& step, const rl::Split& split);

// Forward, loss, backward of that micro-batch and the optimizer's update.
struct TrainShape {
  MicroBatchShape batch;
  Size recomputed_layers = 0;
  Size logprob_chunk_rows = 0;
  bool has_entropy_term = false;
  const device::Footprint& footprint;  // of the backend that computes
  bool offloads_optimizer = false;
  int64_t data_ranks = 1;
};

// Adds the moments of the train phase at which most is alive: `standing` is what lasts through it.
void add_train_peaks(const model::ModelConfig& config, const TrainShape& shape, const memory::TagBytes& standing,
                     memory::MemoryPlan& plan);

// The same for a pass without gradients: log-probs under a reference.
void add_scoring_peaks(const model::ModelConfig& config, const TrainShape& shape, const memory::TagBytes& standing,
                       memory::MemoryPlan& plan);

// Activations of a micro-batch with `recomputed_layers` blocks' graphs dropped; the block that is being re-run counts.
Size activation_bytes(const model::ModelConfig& config, Size num_tokens, Size recomputed_layers);

// The fewest blocks to recompute so that activation_bytes() stays within `budget_bytes` (0: no limit). All of them
// where even that does not fit: one block's graph is the least that backward needs.
Size recomputed_layers_for(const model::ModelConfig& config, Size num_tokens, Size budget_bytes);

}  // namespace tandem::trainer
