// The cost of a decoder: the walk of a block, as decoder/block.cc runs it, with the bytes of device/ops_plan in the
// place of tensors; and what a forward computes. No torch.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "device/ops_plan.h"
#include "model/config.h"
#include "model/family.h"
#include "model/model_plan.h"
#include "model/tensor_ranks_plan.h"

namespace tandem::model::decoder {

// Counts the bytes that are alive, and the most that ever were.
class Walk {
 public:
  void run(const device::OpBytes& op);
  void take(Size bytes);
  void drop(Size bytes) { alive_ -= bytes; }
  Size most() const { return most_; }

 private:
  Size alive_ = 0, most_ = 0;
};

// Counts the bytes of a block's tensors. `stream` is what a rank keeps of the hidden state between pieces.
struct Sizes {
  Sizes(const ModelConfig& config, Dtype dtype, Size rows);
  Size hidden, stream, q, kv, qkv, gate_up, activated;  // gate_up, activated: of all places of a sparse model
};

// The memory that model/linear.cc takes for the products of a block's matrices, with one tensor rank or several.
class LinearCost {
 public:
  LinearCost(const ModelConfig& config, Dtype dtype, const device::OpsPlan& ops, Size rows);
  // Counts Linear::forward() of a matrix that reads so many columns, and gives so many.
  void forward(Walk& walk, Size inner, Size outer) const;
  // Counts Linear::forward_add() of a matrix that reads so many columns, and is cut by them.
  void forward_add(Walk& walk, Size inner) const;
  // Counts the gradient of forward_add()'s input, from that of all rows of the result.
  void gradient_of_add(Walk& walk, Size inner) const;
  // Returns the bytes of the gradient of all rows, where it is gathered from what the stream keeps; else 0.
  Size gathered() const { return cuts_rows_ ? rows_ * hidden_ * element_ : Size(0); }
  // Counts the input's gradient of a matrix that reads the hidden state, has so many rows and is cut by them.
  void hidden_gradient(Walk& walk, Size outer) const;
  const TensorRanksPlan& ranks() const { return ranks_; }

 private:
  // Returns what the product of the rows, or the gradient of the input, takes in the model dtype.
  device::OpBytes product(Size inner, Size outer) const;
  device::OpBytes input_gradient(Size inner, Size outer) const;
  // Counts the sum of parts in float32, to what the stream keeps.
  void sum(Walk& walk, const device::OpBytes& part) const;

  const device::OpsPlan& ops_;
  const TensorRanksPlan ranks_;
  const bool cuts_rows_, is_quantised_;
  const Size rows_, hidden_, element_;
};

// The memory that the adapters of a block's matrices take on top of the matrices' products (model/linear.cc). Without
// adapters it is nothing.
class AdapterCost {
 public:
  AdapterCost(const ModelConfig& config, Dtype dtype, const device::OpsPlan& ops, Size rows);
  // Counts what follows the product of a packed matrix, such as "qkv"; what follows the gradient of its input, of which
  // the gradient of x a^T stays; and the gradients of A and B, after which it is gone.
  void forward(Walk& walk, const std::string& matrix) const;
  void input_gradient(Walk& walk, const std::string& matrix) const;
  void weight_gradient(Walk& walk, const std::string& matrix) const;
  // Returns the widths of the windows of a packed matrix (AdapterWindow): none where it has no adapter.
  std::vector<Size> widths(const std::string& matrix) const;
  Size rank() const { return rank_; }

 private:
  struct Shape {
    Size inner = 0, outer = 0;  // of the packed matrix
    std::vector<Size> widths;   // of its windows
  };
  // Counts what gives x a^T of all windows, which stays.
  void narrowed(Walk& walk, const Shape& shape) const;
  // Returns the bytes of a window's columns of a gradient, which are copied unless they are all.
  Size copied(const Shape& shape, Size width) const;

  const device::OpsPlan& ops_;
  const Size rows_, element_, rank_;
  const bool has_dropout_;
  std::map<std::string, Shape> matrices_;
};

// The numbers and counters that the pieces of a layer are counted with. It borrows what it is made of.
struct LayerCost {
  LayerCost(const ModelConfig& config, const Family& family, Dtype dtype, const device::OpsPlan& ops, Size rows,
            Size routing_loss);

  const ModelConfig& config;
  const Family& family;
  const Dtype dtype;
  const device::OpsPlan& ops;
  const Size rows, element, routing_loss;
  const Sizes size;
  const LinearCost linear;
  const AdapterCost adapters;

  Size qkv_width() const { return (config.num_heads + 2 * config.num_kv_heads) * config.head_dim; }
  device::OpBytes norm() const { return norm_bytes(config, dtype, ops, rows); }
  device::OpBytes norm_backward() const { return norm_backward_bytes(config, ops, rows); }
};

// The memory that a packed matrix of experts takes with its adapter, if it has one (model/experts_linear.h). One
// expert's part has `outer` rows and `inner` columns. `gathers` says that an operand has rows of tokens, which may be
// copied to places. It borrows the layer.
class ExpertsLinearCost {
 public:
  ExpertsLinearCost(const LayerCost& layer, const std::string& matrix, Size inner, Size outer);
  // Counts forward(), and returns the bytes of its result, which stays.
  Size forward(Walk& walk, Size out_bytes, bool gathers) const;
  void input_gradient(Walk& walk, Size out_bytes, bool gathers) const;
  void weight_gradient(Walk& walk, bool gathers_dy, bool gathers_x) const;

 private:
  Size narrow_bytes(Size windows) const { return windows * places_ * rank_ * element_; }
  // These count narrowed() and narrowed_gradient(), whose results stay.
  void narrowed(Walk& walk, bool gathers) const;
  void narrowed_gradient(Walk& walk, bool gathers) const;
  // Returns the bytes of a window's columns of dy, which are copied unless they are all.
  Size copied(Size width, bool gathers) const;
  // Return the bytes of the products with the packed matrix itself.
  device::OpBytes product(Size out_bytes, bool gathers) const;
  device::OpBytes product_with_gradient(Size out_bytes, bool gathers) const;

  const device::OpsPlan& ops_;
  const bool is_quantised_;
  const Size rows_, places_, element_, rank_, inner_, outer_;
  const std::vector<Size> widths_;
  const Size num_windows_;
};

// Counts what one of the two pieces of a block costs.
struct PieceCost {
  Size graph = 0;  // what its backward reads; the block's input is its caller's
  // Walks from the piece's input to its result. Both stay, as does all that lives until the block has run.
  std::function<void(Walk& walk, bool has_graph)> forward;
  // Walks from the gradient of its result to that of its input.
  std::function<void(Walk& walk)> backward;
};

// These are model::block_bytes() and model::forward_flops() for that family (model_plan.h).
BlockBytes block_bytes(const ModelConfig& config, const Family& family, Dtype dtype, const device::OpsPlan& ops,
                       Size rows, const AttentionBytes& attention, Size routing_loss);
double forward_flops(const ModelConfig& config, const Family& family, const ForwardWork& work);

}  // namespace tandem::model::decoder
