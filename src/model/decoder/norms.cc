#include "model/decoder/norms.h"

#include <ATen/ops/zeros.h>

namespace tandem::model::decoder {

using at::Tensor;

RmsNorm norm_of(const Layer& layer, const std::string& tensor) {
  return {layer.ops, layer.stream, layer.packed_name(tensor), {layer.config.rms_norm_eps, layer.family.norm_offset}};
}

Tensor RmsNorm::forward(const Tensor& x_TE, int64_t num_tokens) const {
  return stream_.whole(ops_.rms_norm(x_TE, weight_E_, norm_), num_tokens);
}

Tensor RmsNorm::backward(const Tensor& dy_TE, const Tensor& x_TE, const GradientSlot& sink) const {
  if (!stream_.is_cut()) return ops_.rms_norm_backward(dy_TE, x_TE, weight_E_, norm_, sink(name_).accumulator());
  const Tensor own_E = at::zeros({x_TE.size(1)}, x_TE.options().dtype(at::kFloat));
  Tensor dx_TE = ops_.rms_norm_backward(dy_TE, x_TE, weight_E_, norm_, own_E);
  sink.add(name_, stream_.ranks().sum(own_E, /*residual=*/{}, at::kFloat));
  return dx_TE;
}

PieceNorms::PieceNorms(const Layer& layer, const std::string& input, const std::string& output) : ops_(layer.ops) {
  if (!input.empty()) input_.emplace(norm_of(layer, input));
  if (!output.empty()) output_.emplace(norm_of(layer, output));
}

void PieceNorms::bind(const weights::WeightsView& view) {
  if (input_) input_->bind(view);
  if (output_) output_->bind(view);
}

Tensor PieceNorms::input(const Tensor& hidden_TE, int64_t num_tokens) const {
  return input_ ? input_->forward(hidden_TE, num_tokens) : hidden_TE;
}

Tensor PieceNorms::input_backward(const Tensor& dinput_TE, const Tensor& hidden_TE, const GradientSlot& sink) const {
  return input_ ? input_->backward(dinput_TE, hidden_TE, sink) : dinput_TE;
}

PieceNorms::Sum PieceNorms::add(const Linear& matrix, const Tensor& x_TK, const Tensor& residual_TE) const {
  if (!output_) return {.sum_TE = matrix.forward_add(x_TK, residual_TE), .given_TE = {}};
  Tensor given_TE = matrix.forward(x_TK);
  Tensor sum_TE = ops_.add(residual_TE, output_->forward(given_TE, given_TE.size(0)));
  return {.sum_TE = std::move(sum_TE), .given_TE = std::move(given_TE)};
}

Tensor PieceNorms::output_backward(const Tensor& dsum_TE, const Tensor& given_TE, const GradientSlot& sink) const {
  return output_ ? output_->backward(dsum_TE, given_TE, sink) : dsum_TE;
}

}  // namespace tandem::model::decoder
