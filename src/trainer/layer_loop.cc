#include "trainer/layer_loop.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include <iterator>
#include <utility>

#include "memory/arena_allocator.h"
#include "model/bucket.h"

namespace tandem::trainer {
namespace {

using memory::SavedForBackwardScope;
using memory::Tag;
using memory::TagScope;

at::Tensor leaf(const at::Tensor& hidden_TE) { return hidden_TE.detach().set_requires_grad(true); }

}  // namespace

LayerLoop::LayerLoop(const model::Model& model, const PackedBatch& batch, int64_t num_recomputed)
    : model_(model), batch_(batch), num_recomputed_(num_recomputed), attention_(model.ops(), batch) {}

LayerLoop::Piece LayerLoop::run_block(int64_t layer, const at::Tensor& hidden_TE, Tag output) {
  const c10::AutoGradMode with_gradients(true);
  const SavedForBackwardScope block(Tag::kBlockScratch, Tag::kBlockGraphs);
  Piece piece;
  piece.input = leaf(hidden_TE);
  piece.output = model_.block(layer, piece.input, batch_.positions_T, attention_);
  memory::retag(piece.output.const_data_ptr(), output);
  return piece;
}

at::Tensor LayerLoop::forward() {
  const at::NoGradGuard without_graph;
  at::Tensor hidden_TE;
  {
    const TagScope embedding(Tag::kBlockScratch);
    hidden_TE = model_.embed(batch_.ids_T);
    memory::retag(hidden_TE.const_data_ptr(), Tag::kBlockInputs);
  }
  const int64_t num_layers = model_.config().num_layers;
  for (int64_t layer = 0; layer < num_layers; ++layer) {
    const Tag output = layer + 1 < num_layers ? Tag::kBlockInputs : Tag::kHead;
    if (layer < num_recomputed_) {
      const TagScope block(Tag::kBlockScratch);
      blocks_.push_back({.input = hidden_TE, .output = {}});
      hidden_TE = model_.block(layer, hidden_TE, batch_.positions_T, attention_);
      memory::retag(hidden_TE.const_data_ptr(), output);
    } else {
      blocks_.push_back(run_block(layer, hidden_TE, output));
      hidden_TE = blocks_.back().output.detach();
    }
  }
  const c10::AutoGradMode with_gradients(true);
  const TagScope head(Tag::kHead);
  final_norm_.input = leaf(hidden_TE);
  final_norm_.output = model_.final_norm(final_norm_.input, batch_.num_tokens());
  return final_norm_.output.detach();
}

at::Tensor LayerLoop::differentiate(const Piece& piece, const at::Tensor& doutput) {
  return torch::autograd::grad({piece.output}, {piece.input}, {doutput})[0];
}

void LayerLoop::backward(at::Tensor dnormed_TE, model::GradientSink& sink) {
  at::Tensor dhidden_TE;
  {
    const TagScope head(Tag::kHead);
    dhidden_TE = differentiate(std::exchange(final_norm_, {}), std::exchange(dnormed_TE, {}));
  }
  const TagScope blocks(Tag::kBlockScratch);
  while (!blocks_.empty()) {
    Piece piece = std::move(blocks_.back());
    blocks_.pop_back();
    if (!piece.output.defined()) piece = run_block(static_cast<int64_t>(blocks_.size()), piece.input, Tag::kHead);
    dhidden_TE = differentiate(piece, dhidden_TE);
    sink.end_of_bucket(std::ssize(blocks_));
  }
  model_.embed_backward(dhidden_TE, batch_.ids_T);
  sink.end_of_bucket(model::kOuterBucket);
}

}  // namespace tandem::trainer
