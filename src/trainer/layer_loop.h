// The layers of one micro-batch, forward and backward, without a graph that spans them: the hidden state is detached
// at each block's input, so a block's graph stands alone and is either kept, or dropped and re-run from that input.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "memory/tag.h"
#include "model/model.h"
#include "trainer/packed_batch.h"
#include "trainer/varlen_attention.h"

namespace tandem::trainer {

// Serves one forward() and one backward(). Model and batch are borrowed and outlive the loop. Gradients of weights go
// to the model's sink, with the same bits whatever num_recomputed is.
class LayerLoop {
 public:
  // The first `num_recomputed` blocks keep only their input: their graphs would live longest.
  LayerLoop(const model::Model& model, const PackedBatch& batch, int64_t num_recomputed);

  // Runs embed, blocks and final norm. Returns normed_TE, without graph.
  at::Tensor forward();
  // dnormed_TE has the dtype of normed_TE. Tells `sink`, which is the model's, when a bucket has ended.
  void backward(at::Tensor dnormed_TE, model::GradientSink& sink);

 private:
  // Holds a stretch of the network with its own graph, from a leaf to an output. The output is undefined where it was
  // dropped.
  struct Piece {
    at::Tensor input, output;
  };
  Piece run_block(int64_t layer, const at::Tensor& hidden_TE, memory::Tag output);  // output: tag of the result
  static at::Tensor differentiate(const Piece& piece, const at::Tensor& doutput);

  const model::Model& model_;
  const PackedBatch& batch_;
  int64_t num_recomputed_;
  VarlenAttention attention_;
  std::vector<Piece> blocks_;
  Piece final_norm_;
};

}  // namespace tandem::trainer
