#include "trainer/layer_loop.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include <utility>

namespace tandem::trainer {
namespace {

at::Tensor leaf(const at::Tensor& hidden_TE) { return hidden_TE.detach().set_requires_grad(true); }

}  // namespace

LayerLoop::LayerLoop(const model::Model& model, const PackedBatch& batch, int64_t num_recomputed)
    : model_(model), batch_(batch), num_recomputed_(num_recomputed), attention_(model.ops(), batch) {}

LayerLoop::Piece LayerLoop::run_block(int64_t layer, const at::Tensor& hidden_TE) {
  const c10::AutoGradMode with_gradients(true);
  Piece piece;
  piece.input = leaf(hidden_TE);
  piece.output = model_.block(layer, piece.input, batch_.positions_T, attention_);
  return piece;
}

at::Tensor LayerLoop::forward() {
  const at::NoGradGuard without_graph;
  at::Tensor hidden_TE = model_.embed(batch_.ids_T);
  for (int64_t layer = 0; layer < model_.config().num_layers; ++layer) {
    if (layer < num_recomputed_) {
      blocks_.push_back({.input = hidden_TE, .output = {}});
      hidden_TE = model_.block(layer, hidden_TE, batch_.positions_T, attention_);
    } else {
      blocks_.push_back(run_block(layer, hidden_TE));
      hidden_TE = blocks_.back().output.detach();
    }
  }
  const c10::AutoGradMode with_gradients(true);
  final_norm_.input = leaf(hidden_TE);
  final_norm_.output = model_.final_norm(final_norm_.input);
  return final_norm_.output.detach();
}

at::Tensor LayerLoop::differentiate(const Piece& piece, const at::Tensor& doutput) {
  return torch::autograd::grad({piece.output}, {piece.input}, {doutput})[0];
}

void LayerLoop::backward(at::Tensor dnormed_TE) {
  at::Tensor dhidden_TE = differentiate(std::exchange(final_norm_, {}), std::exchange(dnormed_TE, {}));
  while (!blocks_.empty()) {
    Piece piece = std::move(blocks_.back());
    blocks_.pop_back();
    if (!piece.output.defined()) piece = run_block(static_cast<int64_t>(blocks_.size()), piece.input);
    dhidden_TE = differentiate(piece, dhidden_TE);
  }
  model_.embed_backward(dhidden_TE, batch_.ids_T);
}

}  // namespace tandem::trainer
