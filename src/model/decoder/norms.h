// The norms of the residual stream: one of them, and those around a piece of a block.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "device/ops.h"
#include "model/decoder/layer.h"
#include "model/linear.h"
#include "model/residual_stream.h"
#include "weights/store.h"

namespace tandem::model::decoder {

// The norm between the residual stream and what reads all of its rows. Its weight is whole on each rank.
class RmsNorm {
 public:
  RmsNorm(const device::Ops& ops, const ResidualStream& stream, std::string packed_name, const device::Norm& norm)
      : ops_(ops), stream_(stream), name_(std::move(packed_name)), norm_(norm) {}

  void bind(const weights::WeightsView& view) { weight_E_ = view[name_]; }
  // Returns all rows [num_tokens, E] normalised; x_TE is what the stream keeps of them.
  at::Tensor forward(const at::Tensor& x_TE, int64_t num_tokens) const;
  // Returns dx_TE, and adds the weight's gradient for all rows to the sink. dy_TE and x_TE are what the stream keeps.
  // With sequence parallelism each rank computes the weight's gradient of its own rows, and these are added in rank
  // order: the last bits differ from those of one rank.
  at::Tensor backward(const at::Tensor& dy_TE, const at::Tensor& x_TE, const GradientSlot& sink) const;

 private:
  const device::Ops& ops_;
  const ResidualStream& stream_;
  std::string name_;
  device::Norm norm_;
  at::Tensor weight_E_;
};

// Returns the norm of that packed name in the layer.
RmsNorm norm_of(const Layer& layer, const std::string& tensor);

// The norms around a piece of a block: of what it reads of the residual stream, and of what its last matrix gives
// before that is added to the stream. A family may have either, or both. Where it has not exactly the first, one rank
// has the whole model (Family::can_be_sharded).
class PieceNorms {
 public:
  // The packed names of the two norms. An empty one means that there is none.
  PieceNorms(const Layer& layer, const std::string& input, const std::string& output);

  void bind(const weights::WeightsView& view);
  // Returns what the piece reads: all rows, normalised if there is an input norm.
  at::Tensor input(const at::Tensor& hidden_TE, int64_t num_tokens) const;
  // Returns the gradient of hidden_TE, given that of input().
  at::Tensor input_backward(const at::Tensor& dinput_TE, const at::Tensor& hidden_TE, const GradientSlot& sink) const;

  struct Sum {
    at::Tensor sum_TE;
    at::Tensor given_TE;  // the product that was normalised; undefined without an output norm
  };
  // Returns residual_TE plus the product of x with the matrix, normalised if there is an output norm.
  Sum add(const Linear& matrix, const at::Tensor& x_TK, const at::Tensor& residual_TE) const;
  // Returns the gradient of the matrix's product, given that of the sum and what add() gave.
  at::Tensor output_backward(const at::Tensor& dsum_TE, const at::Tensor& given_TE, const GradientSlot& sink) const;

 private:
  const device::Ops& ops_;
  std::optional<RmsNorm> input_, output_;
};

}  // namespace tandem::model::decoder
