// A decoder block is two pieces, which its family's row chooses: attention, then an MLP.
//
//   hidden -> q, k, v              AttentionPiece::project(); keeps hidden, and with norms on q and k their input
//   q, k, v -> attended            the caller's attention (model/attention.h)
//   hidden, attended -> middle     AttentionPiece::add_output(); keeps attended
//   middle -> next hidden          an MlpPiece; SwigluMlp keeps middle and gate_up, SparseMlp the routing too
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
#include "model/routing_loss.h"
#include "model/routing_sink.h"
#include "weights/store.h"

namespace tandem::model::decoder {

// The layer that a block computes. All that it names outlives the block.
struct Layer {
  const ModelConfig& config;
  const Family& family;
  const device::Ops& ops;
  const ResidualStream& stream;
  const GradientSlot& sink;
  RoutingSink* const& routing_sink;  // the one that is set at present, or null
  RoutingLoss* const& routing_loss;  // the same
  const AdapterWindows& adapters;
  int64_t index;
  // Returns "layers.3.qkv" for "qkv".
  std::string packed_name(const std::string& tensor) const { return "layers." + std::to_string(index) + "." + tensor; }
  // Makes a matrix of this layer with its adapter, if it has one. `cut` says how several tensor ranks share it. An
  // empty `bias` means that it has none.
  Linear linear(const std::string& tensor, Cut cut, const std::string& bias = "") const;
  // Returns the adapter of that matrix of this layer: one without windows if it has none.
  Adapter adapter(const std::string& tensor) const;
};

// The norm between the residual stream and what reads all of its rows. Its weight is whole on each rank.
class RmsNorm {
 public:
  RmsNorm(const device::Ops& ops, const ResidualStream& stream, std::string packed_name, double eps)
      : ops_(ops), stream_(stream), name_(std::move(packed_name)), eps_(eps) {}

  void bind(const weights::WeightsView& view) { weight_E_ = view[name_]; }
  // Returns all rows [num_tokens, E] normalised; x_TE is what the stream keeps of them.
  at::Tensor forward(const at::Tensor& x_TE, int64_t num_tokens) const;
  // Returns dx_TE, and adds the weight's gradient for all rows to the sink. dy_TE and x_TE are what the stream keeps.
  // Where the stream is cut, the weight's gradient is the sum of the ranks' in their order, and its last bits differ
  // from those of one rank.
  at::Tensor backward(const at::Tensor& dy_TE, const at::Tensor& x_TE, const GradientSlot& sink) const;

 private:
  const device::Ops& ops_;
  const ResidualStream& stream_;
  std::string name_;
  double eps_;
  at::Tensor weight_E_;
};

// The attention piece computes q, k and v of the normalised hidden state, with a bias if the family has one, normalises
// each head of q and k if it has those norms, and rotates them. It adds the product of o and what attention makes of
// them to the hidden state.
class AttentionPiece {
 public:
  explicit AttentionPiece(const Layer& layer);
  void bind(const weights::WeightsView& view);
  // Returns q_THK, k_TGK and v_TGK.
  Tensors project(const at::Tensor& hidden_TE, const at::Tensor& positions_T) const;
  // Returns middle_TE.
  at::Tensor add_output(const at::Tensor& hidden_TE, const at::Tensor& attended_THK) const;

 private:
  // Returns the gradient of qkv, given those of q, k and v. qkv_TN is what was normalised, undefined without the norms.
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

// Returns the norm of that packed name in the layer.
RmsNorm norm_of(const Layer& layer, const std::string& tensor);

// The MLP piece makes the next hidden state of a block's middle. Each MlpKind has a class.
class MlpPiece {
 public:
  virtual ~MlpPiece() = default;
  virtual void bind(const weights::WeightsView& view) = 0;
  // Returns the middle plus what the MLP makes of it, which is differentiable (model/autograd.h).
  virtual at::Tensor forward(const at::Tensor& middle_TE, int64_t num_tokens) const = 0;
};

// Graphs point to a block, so it does not move.
class Block {
 public:
  explicit Block(const Layer& layer);
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  void bind(const weights::WeightsView& view);
  // Computes Model::block().
  at::Tensor forward(const at::Tensor& hidden_TE, const at::Tensor& positions_T, Attention& attention) const;

 private:
  const int64_t layer_;
  AttentionPiece attention_;
  std::unique_ptr<MlpPiece> mlp_;
};

}  // namespace tandem::model::decoder
