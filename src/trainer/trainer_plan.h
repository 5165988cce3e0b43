// The trainer's bytes, from a configuration alone: what it holds between steps, what a micro-batch holds, and how many
// blocks must drop their graphs to fit a budget. No torch.
#pragma once

#include <cstdint>

#include "model/config.h"

namespace tandem::trainer {

// Beside the weights; both last as long as the trainer.
struct OptimizerBytes {
  int64_t master = 0;    // float32; 0 in a float32 store, which is its own master
  int64_t moments = 0;   // two of float32
  int64_t gradient = 0;  // float32
  int64_t total() const { return master + moments + gradient; }
};
OptimizerBytes optimizer_bytes(const model::ModelConfig& config, model::Dtype store_dtype);

// What one token of a micro-batch keeps alive between forward and backward.
struct TokenBytes {
  int64_t block_input = 0;  // of each block, kept or recomputed: the hidden state
  int64_t block_graph = 0;  // of each kept block, besides its input: what its backward reads
  int64_t head = 0;         // once: final norm's input and output, and the gradient of the output in float32
};
TokenBytes token_bytes(const model::ModelConfig& config, model::Dtype dtype);

// Logits of one chunk (float32); backward turns them into their gradient in place.
int64_t logits_bytes(const model::ModelConfig& config, int64_t chunk_rows);

// Activations of a micro-batch with `recomputed_layers` blocks' graphs dropped; the block that is being re-run counts.
int64_t activation_bytes(const model::ModelConfig& config, model::Dtype dtype, int64_t num_tokens,
                         int64_t recomputed_layers);

// The fewest blocks to recompute so that activation_bytes() stays within `budget_bytes` (0: no limit). All of them
// where even that does not fit: one block's graph is the least that backward needs.
int64_t recomputed_layers_for(const model::ModelConfig& config, model::Dtype dtype, int64_t num_tokens,
                              int64_t budget_bytes);

}  // namespace tandem::trainer
