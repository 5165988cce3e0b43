// A decoder-only model as the layer loop sees it: embed, blocks, final norm, head. Trainer and engine run this one
// forward.
//
// In a tensor-parallel group (model/tensor_ranks.h) each rank has a model of its part. All of them make the same calls,
// forward and backward, in the same order with the same arguments, and get the same results bit for bit: final_norm()
// gives all of them all rows, each gets the gradients of its part of the weights, and each has its columns of the
// logits. Hidden states and their gradients are whole too, or, where config().shard.cuts_rows(), the rank's own rows
// (model/residual_stream.h).
//
// With gradients on, each block is a differentiable function of its input (model/autograd.h); weight gradients go
// into a GradientSink, float32, never through autograd leaves.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>

#include "device/communicator.h"
#include "device/expert_exchange.h"
#include "device/ops.h"
#include "model/attention.h"
#include "model/config.h"
#include "model/linear.h"
#include "model/routing_loss.h"
#include "model/routing_sink.h"
#include "model/tensor_ranks.h"
#include "weights/store.h"

namespace tandem::model {

// A model borrows its Ops. Graphs that block() and final_norm() record point into the model and its weights: it
// outlives them, and set_weights() waits until they are differentiated. With gradients on, the hidden state given to
// block() must require a gradient (a leaf will do), or autograd records nothing and the weights get none.
class Model {
 public:
  virtual ~Model() = default;
  virtual const ModelConfig& config() const = 0;
  virtual const device::Ops& ops() const = 0;
  // Returns the dtype of weights and hidden states.
  virtual at::ScalarType dtype() const = 0;

  // Returns hidden_TE for ids_T, int32.
  virtual at::Tensor embed(const at::Tensor& ids_T) const = 0;
  // Computes one decoder block. positions_T is int32.
  virtual at::Tensor block(int64_t layer, const at::Tensor& hidden_TE, const at::Tensor& positions_T,
                           Attention& attention) const = 0;
  // Returns normed_TE: all rows of a batch of so many tokens.
  virtual at::Tensor final_norm(const at::Tensor& hidden_TE, int64_t num_tokens) const = 0;
  // Returns float32 logits_RV for normed hidden rows: the columns vocab_rows(config()) of the vocabulary, which are all
  // where the model is whole.
  virtual at::Tensor head(const at::Tensor& hidden_RE) const = 0;
  // Returns those of head()'s rows that this rank scores or draws from, ranks().own_rows(), over the whole vocabulary.
  virtual at::Tensor own_logits(const at::Tensor& logits_RV) const = 0;
  // Returns the tensor-parallel group that holds the model.
  virtual const TensorRanks& ranks() const = 0;

  // These are the backward of embed and head, outside autograd: gradients go to the sink. dhidden_TE may be
  // overwritten. dlogits_RV is float32 or dtype(), with the columns that head() gives.
  virtual void embed_backward(const at::Tensor& dhidden_TE, const at::Tensor& ids_T) const = 0;
  virtual at::Tensor head_backward(const at::Tensor& dlogits_RV, const at::Tensor& hidden_RE) const = 0;  // dhidden_RE

  // Takes a new view of the weights, after a sync; its layout is the same.
  virtual void set_weights(const weights::WeightsView& view) = 0;
  virtual uint64_t weight_version() const = 0;
  // block() and *_backward() compute the gradients that the sink wants, and put them there. It is borrowed; null or
  // never set makes a forward-only model.
  virtual void set_gradient_sink(GradientSink* sink) = 0;
  // From now on block() tells the sink how a sparse layer routes, each time that it is called. It is borrowed; null, as
  // at first: nobody is told.
  virtual void set_routing_sink(RoutingSink* sink) = 0;
  // From now on the backward of a sparse layer adds the gradient of this term of the loss. It is borrowed; null, as at
  // first: there is no such term.
  virtual void set_routing_loss(RoutingLoss* loss) = 0;
  // From now on block() and its backward drop elements of what adapters read. The keys are those of the batch that
  // block() is given. It is borrowed; null, as at first: nothing is dropped. Experts have no adapter.
  virtual void set_adapter_dropout(const AdapterDropout* dropout) = 0;
  // From now on block(), without gradients, computes the experts of a sparse model together with the ranks of this
  // exchange, each of which calls it with as many rows; the bits are the same. It is borrowed; null, as at first: this
  // rank computes all of its rows. The model is whole, and its experts have no adapter.
  virtual void share_experts(device::ExpertExchange* exchange) = 0;
};

// Makes the model that `config.architecture` names, over these weights, and those of its adapter where `config.lora` is
// set. Ops is borrowed and outlives the model.
std::unique_ptr<Model> make_model(const ModelConfig& config, const weights::WeightsView& view, const device::Ops& ops);
// Makes the part of a model that config.shard says, over that part's weights. `ranks` connects the ranks that have the
// parts, in their order, on the device of the operations; it is borrowed.
std::unique_ptr<Model> make_model(const ModelConfig& config, const weights::WeightsView& view, const device::Ops& ops,
                                  device::Communicator& ranks);

// Runs embed, every block and final norm without gradients. Returns hidden_TE ready for head().
at::Tensor forward_hidden(const Model& model, const at::Tensor& ids_T, const at::Tensor& positions_T,
                          Attention& attention);

}  // namespace tandem::model
