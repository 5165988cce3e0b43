// The trainer's bytes, computed from a configuration alone, whose dtype is that of the weights' store, and the layout
// of its trained tensors (model::trained_layout): the bytes held between steps, the bytes of a micro-batch, and how
// many blocks must drop their graphs to fit a budget. No torch.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "base/size.h"
#include "device/footprint.h"
#include "memory/memory_plan.h"
#include "model/config.h"
#include "rl/packing.h"
#include "trainer/optimizer_offload.h"
#include "weights/layout.h"

namespace tandem::trainer {

using base::Size;

// Counts the bytes of the trained tensors' optimizer state, besides the weights. Masters and moments last as long as
// the trainer, gradients from a train phase's first step to its end (Trainer::end_phase). With several data ranks these
// are the most that one of them has.
struct OptimizerBytes {
  Size master = 0;    // float32; 0 in a float32 store, which is its own master
  Size moments = 0;   // two of float32
  Size gradient = 0;  // float32
  Size total() const { return master + moments + gradient; }
};
OptimizerBytes optimizer_bytes(const weights::Layout& trained, model::Dtype dtype, int64_t data_ranks = 1);

// Returns the bytes, besides the accumulators, in which a micro-batch's gradients are computed and, with several data
// ranks, the others' are received (trainer/gradient_sum.h), and those that sums of groups of micro-batches take. They
// last as long as the gradients. A single rank that computes one micro-batch a step needs none.
Size gradient_scratch_bytes(const weights::Layout& trained, int64_t data_ranks, bool has_several_micro_batches,
                            int64_t group_size = 1);

// With an OptimizerOffload the device has no master and no moments: the host has them, pinned, as long as the trainer.
// An update streams them through buffers on the device, which last as long as it.
struct OffloadBytes {
  Size pinned_host = 0;
  Size device_buffers = 0;  // at most kOffloadBufferSets times two or three pieces
};
OffloadBytes offload_bytes(const weights::Layout& trained, model::Dtype dtype,
                           Size piece_elements = kOffloadPieceElements, int64_t data_ranks = 1);

// Returns the bytes of a step's counts of routes (trainer/routing_load.h): 0 for a dense model.
Size routing_load_bytes(const model::ModelConfig& config);

// Counts the bytes that the tokens of a micro-batch keep alive between forward and backward.
struct KeptBytes {
  Size block_input = 0;  // hidden state of each block, kept or recomputed, as far as this rank keeps it
  Size block_graph = 0;  // tensors that a kept block's backward reads, besides its input; for each of them
  Size head = 0;         // once: final norm's input and output, and the gradient of the output in float32
};
KeptBytes kept_bytes(const model::ModelConfig& config, Size num_tokens);

// The sizes of a micro-batch that its memory depends on.
struct MicroBatchShape {
  Size rows = 0;            // tokens that run: T
  Size targets = 0;         // tokens that are predicted: R
  Size sequences = 0;       // number of samples, and of their further sequences
  Size kv_blocks = 0;       // blocks of the attention's cache
  Size tiles = 0;           // tiles of the attention's rows (device::AttentionLoad)
  Size context_tokens = 0;  // tokens of the longest sequence
  Size expanded_keys = 0;   // keys of all sequences, a shared prompt's once for each
};

// The most that one micro-batch of an optimizer step can have under the token budget (rl/packing.h): exact where the
// whole step fits into one, else a bound that holds for completions of every length.
struct StepShape {
  Size num_samples = 0, group_size = 1;
  Size prompt_tokens = 0, response_tokens = 0;  // tokens of the longest prompt and of the longest response
  Size context_tokens = 0;                      // at most of a prompt with its response; 0: of the longest of both
  Size further_sequences = 0;                   // the most that a sample has (rl/sample.h)

  Size longest_sample() const {
    const Size both = prompt_tokens + response_tokens;
    return context_tokens > 0 ? std::min(context_tokens, both) : both;
  }
  // Returns the tokens of the prompt with which a group has the most: a longer one leaves its responses less than the
  // longest one.
  Size largest_group_prompt() const { return longest_sample() - response_tokens; }
};
MicroBatchShape largest_micro_batch(const StepShape& step, Size max_tokens);
// Returns whether a step may take more than one micro-batch.
bool may_take_several_micro_batches(const StepShape& step, const rl::Split& split);

// Counts what the loss that balances the experts of a sparse model (trainer/balance_loss.h) takes for such a
// micro-batch: as long as the batch, and while the gradient of a layer's logits is computed.
struct BalanceBytes {
  Size batch = 0, work = 0;
};
BalanceBytes balance_bytes(const model::ModelConfig& config, const MicroBatchShape& batch);

// Returns the bytes that a teacher's forward over a micro-batch leaves until the loss of the whole distributions
// (trainer/distillation.h) is differentiated: its last hidden state of each row.
Size teacher_rows_bytes(const model::ModelConfig& teacher, const MicroBatchShape& batch);

// Describes the forward, loss and backward of that micro-batch, and the optimizer's update.
struct TrainShape {
  MicroBatchShape batch;
  Size recomputed_layers = 0;
  Size logprob_chunk_rows = 0;
  bool has_entropy_term = false;
  bool balances = false;               // the loss has a term that balances experts
  const device::Footprint& footprint;  // of the backend that computes
  const weights::Layout& trained;      // of the trained tensors
  bool offloads_optimizer = false;
  int64_t data_ranks = 1;
  std::span<const model::ModelConfig> teachers =
      {};  // those of a loss of the whole distributions; empty: there is none
};

// Adds the peaks of the train phase; `standing` is the bytes that last through it.
void add_train_peaks(const model::ModelConfig& config, const TrainShape& shape, const memory::TagBytes& standing,
                     memory::MemoryPlan& plan);

// Adds the peaks of a pass without gradients: log-probs under a reference.
void add_scoring_peaks(const model::ModelConfig& config, const TrainShape& shape, const memory::TagBytes& standing,
                       memory::MemoryPlan& plan);

// Returns the activations of a micro-batch with `recomputed_layers` blocks' graphs dropped; the block that is being
// re-run counts.
Size activation_bytes(const model::ModelConfig& config, Size num_tokens, Size recomputed_layers);

// Returns the fewest blocks to recompute so that activation_bytes() stays within `budget_bytes` (0: no limit). It is
// all of them where even that does not fit: one block's graph is the least that backward needs.
Size recomputed_layers_for(const model::ModelConfig& config, Size num_tokens, Size budget_bytes);

}  // namespace tandem::trainer
