// A decoder-only model as the layer loop sees it: embed, blocks, final norm, head. One forward for both sides.
//
// Where several ranks hold a model between them (model/tensor_ranks.h), each has a model of its part. All of them make
// the same calls, forward and backward, in the same order with the same arguments, and get the same results bit for
// bit: what final_norm() gives is whole, of weights each gets the gradients of its part, and of logits each has its
// columns of the vocabulary. Hidden states and their gradients are whole too, or, where config().shard.cuts_rows(), the
// rank's own rows (model/residual_stream.h).
//
// With gradients on, each block is a differentiable function of its input (model/autograd.h); weight gradients go
// into a GradientSink, float32, never through autograd leaves.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>

#include "device/communicator.h"
#include "device/ops.h"
#include "model/attention.h"
#include "model/config.h"
#include "model/linear.h"
#include "model/tensor_ranks.h"
#include "weights/store.h"

namespace tandem::model {

// Borrows its Ops. Graphs that block() and final_norm() record point into the model and its weights: it outlives them,
// and set_weights() waits until they are differentiated. With gradients on, the hidden state given to block() must
// require a gradient (a leaf will do), or autograd records nothing and the weights get none.
class Model {
 public:
  virtual ~Model() = default;
  virtual const ModelConfig& config() const = 0;
  virtual const device::Ops& ops() const = 0;
  // Of the weights, and of hidden states.
  virtual at::ScalarType dtype() const = 0;

  // ids_T int32 -> hidden_TE
  virtual at::Tensor embed(const at::Tensor& ids_T) const = 0;
  // One decoder block. positions_T int32.
  virtual at::Tensor block(int64_t layer, const at::Tensor& hidden_TE, const at::Tensor& positions_T,
                           Attention& attention) const = 0;
  // Of a batch of so many tokens: normed_TE, all of its rows.
  virtual at::Tensor final_norm(const at::Tensor& hidden_TE, int64_t num_tokens) const = 0;
  // Normed hidden rows -> float32 logits_RV: of the vocabulary rows vocab_rows(config()), which are all where the model
  // is whole.
  virtual at::Tensor head(const at::Tensor& hidden_RE) const = 0;
  // Of head()'s rows those that are this rank's to score or to draw from, ranks().own_rows(), of the whole vocabulary.
  virtual at::Tensor own_logits(const at::Tensor& logits_RV) const = 0;
  // Those that hold the model between them.
  virtual const TensorRanks& ranks() const = 0;

  // The backward of embed and head, outside autograd: gradients go to the sink. dlogits_RV: float32 or dtype(), of the
  // vocabulary rows that head() gives.
  virtual void embed_backward(const at::Tensor& dhidden_TE, const at::Tensor& ids_T) const = 0;
  virtual at::Tensor head_backward(const at::Tensor& dlogits_RV, const at::Tensor& hidden_RE) const = 0;  // dhidden_RE

  // A new view of the weights (after a sync); same layout.
  virtual void set_weights(const weights::WeightsView& view) = 0;
  virtual uint64_t weight_version() const = 0;
  // Where block() and *_backward() put gradients, of which they compute those that it wants. Borrowed; unset or
  // null: a forward-only model.
  virtual void set_gradient_sink(GradientSink* sink) = 0;
};

// The model that `config.architecture` names, over these weights, and those of its adapter where `config.lora` is set.
// Ops is borrowed and outlives the model.
std::unique_ptr<Model> make_model(const ModelConfig& config, const weights::WeightsView& view, const device::Ops& ops);
// The part of a model that config.shard says, over that part's weights. `ranks`: those that have its parts, by number,
// where the operations compute; borrowed.
std::unique_ptr<Model> make_model(const ModelConfig& config, const weights::WeightsView& view, const device::Ops& ops,
                                  device::Communicator& ranks);

// embed, every block, final norm: hidden_TE ready for head(). No gradient.
at::Tensor forward_hidden(const Model& model, const at::Tensor& ids_T, const at::Tensor& positions_T,
                          Attention& attention);

}  // namespace tandem::model
