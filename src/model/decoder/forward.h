// What dense decoder families share of their forward: the model around the blocks, and the pieces that blocks are made
// of. A family's own forward.cc puts the pieces of its block together and adds what the others do not have.
//
// A block is a few differentiable pieces around the attention, which is the caller's:
//
//   hidden -> q, k, v              the rotary block's, which keeps hidden; or the family's own
//   hidden, attn_out -> middle     AttentionOutput; keeps attn_out
//   middle -> next hidden          SwigluMlp; keeps middle and gate_up
//
// hidden and middle are the residual stream (model/residual_stream.h): all rows, or this rank's own.
//
// The norms' and silu_mul's results are not kept: their cost is linear in the width where the products beside them are
// quadratic, and keeping them would take 2 E + F values per token and layer. decoder/cost.cc counts what this file and
// the families' allocate.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

#include "device/ops.h"
#include "model/attention.h"
#include "model/autograd.h"
#include "model/config.h"
#include "model/linear.h"
#include "model/model.h"
#include "model/residual_stream.h"
#include "weights/store.h"

namespace tandem::model::decoder {

// Where a block stands. All of it outlives the block.
struct Layer {
  const ModelConfig& config;
  const device::Ops& ops;
  const ResidualStream& stream;
  const GradientSlot& sink;
  const AdapterWindows& adapters;
  int64_t index;
  // "layers.3.qkv"
  std::string packed_name(const std::string& tensor) const { return "layers." + std::to_string(index) + "." + tensor; }
  // That matrix of this layer, cut so where there are several tensor ranks, with its adapter where it has one. bias: ""
  // for none.
  Linear linear(const std::string& tensor, Cut cut, const std::string& bias = "") const;
  device::Ops::QkvShape qkv_shape() const;
};

// Graphs point to a block and its pieces, so they do not move.
class Block {
 public:
  virtual ~Block() = default;
  virtual void bind(const weights::WeightsView& view) = 0;
  // Model::block().
  virtual at::Tensor forward(const at::Tensor& hidden_TE, const at::Tensor& positions_T,
                             Attention& attention) const = 0;
};

// Embedding, `num_layers` blocks, final norm, and a head that is the embedding where it is tied.
std::unique_ptr<Model> make_decoder(const ModelConfig& config, const weights::WeightsView& view, const device::Ops& ops,
                                    const TensorRanks& ranks, std::unique_ptr<Block> (*make_block)(const Layer& layer));

// The norm between the residual stream and what reads all of its rows. Its weight, by packed name, is whole on each
// rank.
class RmsNorm {
 public:
  RmsNorm(const device::Ops& ops, const ResidualStream& stream, std::string packed_name, double eps)
      : ops_(ops), stream_(stream), name_(std::move(packed_name)), eps_(eps) {}

  void bind(const weights::WeightsView& view) { weight_E_ = view[name_]; }
  // Of what the stream keeps, all rows: [num_tokens, E].
  at::Tensor forward(const at::Tensor& x_TE, int64_t num_tokens) const;
  // Of what the stream keeps of dy and x: adds the gradient of the weight, of all rows, to the sink and returns dx_TE.
  // Where the stream is cut that gradient is the sum of the ranks' in their order, with other last bits than of one.
  at::Tensor backward(const at::Tensor& dy_TE, const at::Tensor& x_TE, const GradientSlot& sink) const;

 private:
  const device::Ops& ops_;
  const ResidualStream& stream_;
  std::string name_;
  double eps_;
  at::Tensor weight_E_;
};

// hidden + attn_out o^T. Tensors: o.
class AttentionOutput {
 public:
  explicit AttentionOutput(const Layer& layer);
  void bind(const weights::WeightsView& view) { o_.bind(view); }
  at::Tensor forward(const at::Tensor& hidden_TE, const at::Tensor& attended_THK) const;

 private:
  const device::Ops& ops_;
  const GradientSlot& sink_;
  Linear o_;
};

// middle + down(silu(gate) * up), gate and up of the normalised middle. Tensors: post_norm, gate_up, down.
class SwigluMlp {
 public:
  explicit SwigluMlp(const Layer& layer);
  void bind(const weights::WeightsView& view);
  at::Tensor forward(const at::Tensor& middle_TE, int64_t num_tokens) const;

 private:
  const device::Ops& ops_;
  const GradientSlot& sink_;
  RmsNorm norm_;
  Linear gate_up_, down_;
};

// The block of a family that has nothing of its own: q, k and v are `qkv` of the normalised hidden state, with its bias
// if it has one, and q and k are rotated. Tensors: input_norm, those of `qkv`, of AttentionOutput and of SwigluMlp.
std::unique_ptr<Block> make_rotary_block(const Layer& layer, Linear qkv);

}  // namespace tandem::model::decoder
