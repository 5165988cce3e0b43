// States what a decoder block, the head and what is around them allocate while they run and are differentiated, with
// the bytes of device/ops_plan in the place of tensors. Trainer and engine add it up for their batches. No torch.
#pragma once

#include <cstdint>
#include <memory>

#include "base/size.h"
#include "device/footprint.h"
#include "device/ops_plan.h"
#include "model/config.h"

namespace tandem::model {

using base::Size;

std::unique_ptr<const device::OpsPlan> ops_plan(const device::Footprint& footprint, const ModelConfig& config,
                                                Dtype dtype);

// The attention in the middle of a block, which is its caller's.
struct AttentionBytes {
  device::OpBytes forward;   // q, k, v to its result
  Size kept = 0;             // what its backward reads besides q and the result
  device::OpBytes backward;  // to the gradients of q, k and v
};

// Counts a block's bytes. Its input and, in the backward, its output's gradient are not among them: they are its
// caller's.
struct BlockBytes {
  Size graph = 0;      // what its backward reads
  Size mlp_graph = 0;  // of that, what is gone once its MLP is differentiated
  // The most that is alive at once: while the block runs and keeps its graph (graph and result are among it); while it
  // runs without one (the result is among it); in the backward of its MLP; and in the rest of the backward.
  Size forward = 0, inference = 0, mlp_backward = 0, attention_backward = 0;
  Size forward_again = 0;  // as `inference`, in a step whose backward will run the block again: with adapters' dropout
};
// routing_loss: the bytes that a RoutingLoss takes at most for the gradient of a layer's logits, which is among them; 0
// without one.
BlockBytes block_bytes(const ModelConfig& config, Dtype dtype, const device::OpsPlan& ops, Size rows,
                       const AttentionBytes& attention, Size routing_loss = 0);

// The size of a forward as far as its arithmetic depends on it.
struct ForwardWork {
  double rows = 0;        // tokens through the blocks
  double logit_rows = 0;  // tokens through the head
  double key_pairs = 0;   // queries, each times the keys that it sees
};
// Returns the floating-point operations of one forward: two per weight of a matrix and token, and attention's two
// products. For a part they are those of its rank alone.
double forward_flops(const ModelConfig& config, const ForwardWork& work);

// Model::head() of so many rows, which are not among the bytes; and Model::head_backward(), without rows and logits'
// gradient.
device::OpBytes head_bytes(const ModelConfig& config, const device::OpsPlan& ops, Size rows);
device::OpBytes head_backward_bytes(const ModelConfig& config, Dtype dtype, const device::OpsPlan& ops, Size rows);
// The steps after head() of so many rows, whose logits are not among the bytes: Model::own_logits(); the same and then
// Ops::logprob() of these rows; and Ops::logprob_backward() of all rows.
device::OpBytes own_logits_bytes(const ModelConfig& config, const device::OpsPlan& ops, Size rows);
Size scoring_bytes(const ModelConfig& config, const device::OpsPlan& ops, Size rows);
Size scoring_backward_bytes(const ModelConfig& config, const device::OpsPlan& ops, Size rows,
                            bool has_entropy_gradient);

// Returns the bytes of the hidden states of so many tokens.
Size hidden_bytes(const ModelConfig& config, Dtype dtype, Size rows);
// Returns the most rows that a rank keeps of the residual stream of so many tokens (model/residual_stream.h); and their
// bytes, which are those of the hidden states between blocks.
Size stream_rows(const ModelConfig& config, Size rows);
Size stream_bytes(const ModelConfig& config, Dtype dtype, Size rows);
// RmsNorm (model/decoder/block.h) of the stream of so many tokens, which gives all normalised rows; and its backward.
device::OpBytes norm_bytes(const ModelConfig& config, Dtype dtype, const device::OpsPlan& ops, Size rows);
device::OpBytes norm_backward_bytes(const ModelConfig& config, const device::OpsPlan& ops, Size rows);

// Returns the bytes of keys and values of one layer for one KV block, device::kBlockTokens tokens.
Size layer_kv_block_bytes(const ModelConfig& config, Size element_bytes);

// Returns the widths that operations are planned by.
device::OpsShape ops_shape(const ModelConfig& config);

}  // namespace tandem::model
