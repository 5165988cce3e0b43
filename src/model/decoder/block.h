// A decoder block, and the two pieces that it is made of as its family's row says: attention, then an MLP.
//
//   hidden -> q, k, v              AttentionPiece::project(); keeps hidden, and with norms on q and k their input
//   q, k, v -> attended            the caller's attention (model/attention.h)
//   hidden, attended -> middle     AttentionPiece::add_output(); keeps attended
//   middle -> next hidden          an MlpPiece; SwigluMlp keeps middle and gate_up
//
// hidden and middle are the residual stream (model/residual_stream.h): all rows, or this rank's own.
//
// The results of norms and of silu_mul are not kept: their cost is linear in the width where the products beside them
// are quadratic, and keeping them would take 2 E + F values per token and layer. decoder/cost.cc counts what this file
// allocates.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "device/ops.h"
#include "model/attention.h"
#include "model/autograd.h"
#include "model/config.h"
#include "model/family.h"
#include "model/linear.h"
#include "model/residual_stream.h"
#include "weights/store.h"

namespace tandem::model::decoder {

// The layer that a block computes. All of it outlives the block.
struct Layer {
  const ModelConfig& config;
  const Family& family;
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
};

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

// q, k and v of the normalised hidden state, with a bias if the family has one; each head of q and k normalised if it
// has those norms, then rotated; and the product with o of what attention makes of them, added to the hidden state.
class AttentionPiece {
 public:
  explicit AttentionPiece(const Layer& layer);
  void bind(const weights::WeightsView& view);
  // q_THK, k_TGK, v_TGK
  Tensors project(const at::Tensor& hidden_TE, const at::Tensor& positions_T) const;
  at::Tensor add_output(const at::Tensor& hidden_TE, const at::Tensor& attended_THK) const;

 private:
  // From the gradients of q, k and v to that of qkv. qkv_TN: what was normalised; undefined without the norms.
  at::Tensor qkv_backward(const Tensors& d, const at::Tensor& qkv_TN, const at::Tensor& positions_T) const;
  at::Tensor normed_qkv_backward(const Tensors& d, const at::Tensor& qkv_TN, const at::Tensor& positions_T) const;

  const device::Ops& ops_;
  const TensorRanks& ranks_;
  const GradientSlot& sink_;
  const device::Ops::QkvShape shape_;
  const bool has_norms_;
  const std::string q_norm_name_, k_norm_name_;
  RmsNorm input_norm_;
  Linear qkv_, o_;
  at::Tensor q_norm_K_, k_norm_K_;  // undefined without the norms
};

// What a block does with its middle, one class for each MlpKind.
class MlpPiece {
 public:
  virtual ~MlpPiece() = default;
  virtual void bind(const weights::WeightsView& view) = 0;
  // The next hidden state: middle, and what the MLP makes of it. Differentiable (model/autograd.h).
  virtual at::Tensor forward(const at::Tensor& middle_TE, int64_t num_tokens) const = 0;
};

// Graphs point to a block, so it does not move.
class Block {
 public:
  explicit Block(const Layer& layer);
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  void bind(const weights::WeightsView& view);
  // Model::block().
  at::Tensor forward(const at::Tensor& hidden_TE, const at::Tensor& positions_T, Attention& attention) const;

 private:
  const int64_t layer_;
  AttentionPiece attention_;
  std::unique_ptr<MlpPiece> mlp_;
};

}  // namespace tandem::model::decoder
