#include "model/autograd.h"

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "base/check.h"

namespace tandem::model {
namespace {

using torch::autograd::Node;
using torch::autograd::variable_list;

// The graph node that stands for one piece.
class PieceNode final : public Node {
 public:
  explicit PieceNode(Backward backward) : backward_(std::move(backward)) {}

  variable_list apply(variable_list&& doutputs) override {
    TANDEM_CHECK(backward_ != nullptr, "a graph was differentiated twice");
    for (at::Tensor& gradient : doutputs) {
      if (gradient.defined()) gradient = gradient.contiguous();
    }
    return backward_(doutputs);
  }
  void release_variables() override { backward_ = nullptr; }
  std::string name() const override { return "tandem::model::PieceNode"; }

 private:
  Backward backward_;
};

}  // namespace

bool is_differentiated(const Tensors& inputs) {
  return c10::GradMode::is_enabled() &&
         std::ranges::any_of(inputs, [](const at::Tensor& input) { return input.requires_grad(); });
}

Tensors differentiable(const Tensors& inputs, const std::function<Piece()>& forward) {
  const bool record = is_differentiated(inputs);
  Piece piece;
  {
    const c10::AutoGradMode off(false);
    piece = forward();
  }
  if (!record) return std::move(piece.outputs);
  // deleteNode frees chains of nodes without recursion.
  const std::shared_ptr<Node> node(new PieceNode(std::move(piece.backward)), torch::autograd::deleteNode);
  node->set_next_edges(torch::autograd::collect_next_edges(inputs));
  for (at::Tensor& output : piece.outputs) {
    TANDEM_CHECK(!output.requires_grad() && !output.is_view(),
                 "a differentiable piece returned a tensor that is not new");
    torch::autograd::create_gradient_edge(output, node);
  }
  return std::move(piece.outputs);
}

}  // namespace tandem::model
