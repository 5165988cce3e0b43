// A decoder block is two pieces, which its family's row chooses: attention, then an MLP.
//
//   hidden -> q, k, v              AttentionPiece::project(); keeps hidden, and with norms on q and k their input
//   q, k, v -> attended            the caller's attention (model/attention.h)
//   hidden, attended -> middle     AttentionPiece::add_output(); keeps attended, and what an output norm reads
//   middle -> next hidden          an MlpPiece; GatedMlp keeps middle, gate_up, and what an output norm reads;
//                                  SparseMlp keeps the routing too
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

#include "model/attention.h"
#include "model/autograd.h"
#include "model/decoder/layer.h"
#include "model/decoder/norms.h"
#include "model/decoder/rotation.h"
#include "model/linear.h"
#include "weights/store.h"

namespace tandem::model::decoder {

// The attention piece computes q, k and v of what its input norm gives, with a bias if the family has one, and rotates
// them (decoder/rotation.h). It adds what o and the output norm make of attention to the hidden state.
class AttentionPiece {
 public:
  explicit AttentionPiece(const Layer& layer);
  void bind(const weights::WeightsView& view);
  // Returns q_THK, k_TGK and v_TGK.
  Tensors project(const at::Tensor& hidden_TE, const at::Tensor& positions_T) const;
  // Returns middle_TE.
  at::Tensor add_output(const at::Tensor& hidden_TE, const at::Tensor& attended_THK) const;

 private:
  const ResidualStream& stream_;
  const GradientSlot& sink_;
  PieceNorms norms_;
  Linear qkv_, o_;
  Rotation rotation_;
};

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
  const int64_t layer_, window_;
  AttentionPiece attention_;
  std::unique_ptr<MlpPiece> mlp_;
};

}  // namespace tandem::model::decoder
