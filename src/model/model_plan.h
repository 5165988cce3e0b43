// What one decoder block allocates while it runs and is differentiated, read off model/qwen3.cc line by line. Trainer
// and engine add it up for their batches. No torch.
#pragma once

#include <cstdint>

#include "device/ops_plan.h"
#include "model/config.h"

namespace tandem::model {

// Bytes of one row (token) of a batch. The block's input is its caller's.
struct BlockRowBytes {
  int64_t hidden = 0;  // of the stream between blocks
  // What the backward of a block reads besides its input, and besides the keys and values in the attention's cache.
  int64_t graph = 0;
  // The most that is alive at once beside input and graph: while the block runs; while its MLP's backward does; and
  // while the attention's does (which the MLP's graph has left: negative where that was more), beside the gradient of
  // its cache. The gradient of the block's output is among both, the new one of its input too.
  int64_t forward = 0;
  int64_t mlp_backward = 0;
  int64_t attention_backward = 0;
  // The most that is alive at once beside its input when it runs without a graph; its result is among it.
  int64_t inference = 0;
};
BlockRowBytes block_row_bytes(const ModelConfig& config, Dtype dtype);

// Keys and values of one layer for one block of device::kBlockTokens tokens.
int64_t layer_kv_block_bytes(const ModelConfig& config, int64_t element_bytes);

// The widths that operations are planned by; the batch's numbers are the caller's.
device::OpsShape ops_shape(const ModelConfig& config);

}  // namespace tandem::model
