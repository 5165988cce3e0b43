// Multiplies by a weight matrix of a model. Every product with weights goes through here, so what changes such a
// product (adapters, shards, quantised weights) has one home.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "device/ops.h"
#include "model/lora.h"
#include "model/residual_stream.h"
#include "weights/store.h"

namespace tandem::model {

// The gradient of a packed tensor accumulates in this memory: float32, in the packed shape. It is undefined where the
// tensor is frozen: then the gradient is not computed.
struct GradientTarget {
  at::Tensor memory = {};
  device::GradientUse use = device::GradientUse::kSet;  // kSet: nothing has been added yet, the memory holds anything

  bool is_wanted() const { return memory.defined(); }
  // Returns memory for operations that only add: zeroed where nothing has been added yet, undefined where no gradient
  // is wanted.
  const at::Tensor& accumulator() const;
};

// Receives the gradients of weights.
class GradientSink {
 public:
  virtual ~GradientSink() = default;
  // Returns the target of a tensor. The caller fills it before it asks for the next one of that tensor.
  virtual GradientTarget of(const std::string& packed_name) = 0;
  // The driver of a backward pass calls this when the pass has no more gradients of a bucket (model/bucket.h).
  virtual void end_of_bucket(int64_t /*bucket*/) {}
};

// The sink of a model, which the model's pieces refer to: it may be set and changed after they are made.
class GradientSlot {
 public:
  void set(GradientSink* sink) { sink_ = sink; }  // null: none
  // Returns the sink's target of a tensor. BugError where there is no sink.
  GradientTarget operator()(const std::string& packed_name) const;
  // Adds a float32 gradient that was computed elsewhere, if it is wanted.
  void add(const std::string& packed_name, const at::Tensor& gradient) const;

 private:
  GradientSink* sink_ = nullptr;
};

// The dropout of what adapters read, in the forward and the backward of one batch (PEFT's lora_dropout).
struct AdapterDropout {
  double rate = 0.0;      // the share that is dropped, in (0, 1)
  at::Tensor row_keys_T;  // int64: the key of each row (device/dropout.h)
};

// The LoRA adapter of a packed matrix (model/lora.h): the windows are the columns of its result that have one. The
// adapter's own matrices are a_RK, the A of each window one below the other, and b_NR, their B.
struct Adapter {
  double scale = 0.0;
  std::vector<AdapterWindow> windows;  // empty: there is none
  // The model's dropout, which is set and unset, or null; and the stream of the packed matrix's first column, from
  // which those of the other columns count on.
  const AdapterDropout* const* dropout = nullptr;
  uint64_t dropout_stream = 0;
};

// A matrix w_NK may be spread over tensor ranks in two ways. Cut by rows, each rank computes as many columns of y; cut
// by columns, it has these columns of x too and computes a part of each of y's sums. One rank alone ignores the cut.
enum class Cut : uint8_t { kNone, kRows, kColumns };

// A packed matrix w_NK, by name, with its bias_N and its adapter if it has them, computes
//   y = x w^T + bias;  then for each window j, u = scale * (x a^T): y_j += u_j b_j^T
// in the model dtype, each product rounded. Where the adapter has dropout at present, each window's a reads x with
// other elements dropped, as PEFT's modules do. A new adapter's B is zero, and adding the products changes no value of
// y.
//
// Over several tensor ranks N or K is that of the part, each sum that the cut splits is ResidualStream::sum() of
// products in float32, and all ranks make the same calls. A matrix that is cut by rows reads all rows of x, and returns
// what this rank keeps of the input's gradient; one that is cut by columns adds to the stream, and takes what this rank
// keeps of the gradient of its result. The latter has no bias, and no part has an adapter. The class knows no autograd:
// the pieces of a block call forward() and backward() themselves.
//
// A quantised matrix computes with the bfloat16 weights that it stands for. It is frozen, and no part of a matrix.
class Linear {
 public:
  // An empty bias_name means that there is no bias.
  Linear(const device::Ops& ops, const ResidualStream& stream, std::string packed_name, Cut cut,
         std::string bias_name = "", Adapter adapter = {})
      : ops_(ops),
        stream_(stream),
        cut_(cut),
        name_(std::move(packed_name)),
        bias_name_(std::move(bias_name)),
        a_name_(name_ + kLoraA),
        b_name_(name_ + kLoraB),
        adapter_(std::move(adapter)) {}

  const std::string& name() const { return name_; }
  void bind(const weights::WeightsView& view);

  // Returns y_TN in the model dtype, or in `out` (without bias and adapter). The bias is added to the rounded product.
  // BugError for a matrix that is cut by columns.
  at::Tensor forward(const at::Tensor& x_TK) const { return forward(x_TK, x_TK.scalar_type()); }
  at::Tensor forward(const at::Tensor& x_TK, at::ScalarType out) const;

  // Returns residual_TN + forward(x_TK) in the model dtype. A matrix that is cut by columns takes what the stream keeps
  // of the residual, and returns what it keeps of the sum.
  at::Tensor forward_add(const at::Tensor& x_TK, const at::Tensor& residual_TN) const;

  // The gradients take dy_TN of all rows: where a matrix is cut by columns, the stream gives those that it has not
  // kept. dx_TK has the model dtype. du_TR is the gradient of what the adapter makes of x first, undefined without one.
  struct InputGradient {
    at::Tensor dx_TK, du_TR;
  };
  InputGradient input_gradient(const at::Tensor& dy_TN) const;
  // Adds the gradients of weight, bias and adapter to the sink, as far as it wants them. x_TK is what forward() was
  // given.
  void add_weight_gradient(const at::Tensor& dy_TN, const at::Tensor& du_TR, const at::Tensor& x_TK,
                           const GradientSlot& sink) const;
  // Does both, and returns dx_TK.
  at::Tensor backward(const at::Tensor& dy_TN, const at::Tensor& x_TK, const GradientSlot& sink) const;

 private:
  bool has_adapter() const { return !adapter_.windows.empty(); }
  bool is_alone() const { return stream_.ranks().is_alone(); }
  bool is_cut_by(Cut cut) const { return cut_ == cut && !is_alone(); }
  at::Tensor product(const at::Tensor& x_TK, at::ScalarType out) const;
  at::Tensor gradient_by_weight(const at::Tensor& dy_TN) const;
  // Returns the dropout that holds at present, or null.
  const AdapterDropout* dropout() const { return adapter_.dropout == nullptr ? nullptr : *adapter_.dropout; }
  // Returns x as window j reads it, or the gradient of x from that of what the window reads.
  at::Tensor dropped(const at::Tensor& x_TK, size_t j) const;
  // Returns scale * (x a^T), which forward() drops and backward() computes again: it is narrow.
  at::Tensor narrowed(const at::Tensor& x_TK) const;
  // Returns the columns of narrowed() that belong to window j; and its rows of a, or of a's gradient.
  at::Tensor part_of(const at::Tensor& u_TR, size_t j) const;
  at::Tensor a_of(const at::Tensor& a_RK, size_t j) const;
  void add_adapter(const at::Tensor& x_TK, const at::Tensor& y_TN) const;
  // Returns the gradient of x a^T.
  at::Tensor narrowed_gradient(const at::Tensor& dy_TN) const;
  // Adds the adapter's part of the input's gradient to dx, and the adapter's gradients to the sink.
  void add_adapter_gradient_to(const at::Tensor& dx_TK, const at::Tensor& du_TR) const;
  void add_adapter_gradient(const at::Tensor& dy_TN, const at::Tensor& du_TR, const at::Tensor& x_TK,
                            const GradientSlot& sink) const;

  const device::Ops& ops_;
  const ResidualStream& stream_;
  Cut cut_;
  std::string name_, bias_name_, a_name_, b_name_;
  Adapter adapter_;
  at::Tensor weight_NK_, bias_N_;  // weight_NK_: undefined if it is quantised; bias_N_: where there is none
  std::optional<device::QuantisedMatrix> quantised_NK_;
  at::Tensor a_RK_, b_NR_;  // undefined without an adapter
};

}  // namespace tandem::model
