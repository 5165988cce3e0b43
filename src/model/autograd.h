// Makes a piece of the forward differentiable without autograd looking inside: the piece is computed with gradients
// off, by the operations of device::Ops, and one graph node stands for it with a hand-written backward.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace tandem::model {

using Tensors = std::vector<at::Tensor>;

// A backward is given the gradients of the outputs, contiguous, and returns those of the inputs, each in order; an
// undefined one is zero. Gradients of weights are its side effect: they go to the GradientSink.
using Backward = std::function<Tensors(const Tensors& doutputs)>;

// The result of computing a piece: new tensors, not its inputs or views of them, and their backward. `backward`
// captures what it needs, which is what the graph keeps. It may capture an output only as a detach(), because a graph
// that holds its own end is never freed.
struct Piece {
  Tensors outputs;
  Backward backward;
};

// Returns whether a piece of these inputs will be differentiated: gradients are on, and an input requires one.
bool is_differentiated(const Tensors& inputs);

// Runs forward() with gradients off and returns its outputs. Where is_differentiated(inputs), they are
// differentiable functions of `inputs`, once: `backward` is dropped with all it holds as soon as it has run. Otherwise
// it is dropped at once. Intermediate results live no longer than forward().
Tensors differentiable(const Tensors& inputs, const std::function<Piece()>& forward);

}  // namespace tandem::model
