#include "trainer/gradients.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <utility>

#include "base/check.h"
#include "base/size.h"
#include "memory/arena_allocator.h"
#include "weights/weights_plan.h"

namespace tandem::trainer {

using base::kFloatBytes;

Gradients::Gradients(const weights::WeightStore& store, const Shard& shard)
    : options_(at::TensorOptions().dtype(at::kFloat).device(store.device())) {
  for (const weights::PackedTensor& packed : store.layout().tensors) {
    const int64_t num_elements = elements_of(packed.shape, shard);
    std::vector<int64_t> shape = packed.shape;
    shape.front() = rows_of(packed.shape, shard).count();
    gradients_.push_back({.shape = std::move(shape), .num_elements = num_elements, .first_element = num_elements_});
    num_elements_ += weights::aligned_elements(num_elements, kFloatBytes);
  }
}

void Gradients::allocate() {
  const at::NoGradGuard without_graph;
  const memory::TagScope scope(memory::Tag::kGradients);
  const at::Tensor all = at::empty({num_elements_}, options_);
  for (Gradient& g : gradients_) g.values = all.narrow(0, g.first_element, g.num_elements).view(g.shape);
}

void Gradients::begin_step() {
  if (!gradients_.empty() && !gradients_.front().values.defined()) allocate();
  for (Gradient& g : gradients_) g.is_filled = false;
}

const at::Tensor& Gradients::accumulator(size_t tensor) {
  target(tensor).accumulator();
  return gradients_[tensor].values;
}

model::GradientTarget Gradients::target(size_t tensor) {
  Gradient& g = gradients_[tensor];
  TANDEM_CHECK(g.values.defined(), "a gradient outside of a step");
  const bool is_first = !std::exchange(g.is_filled, true);
  return {.memory = g.values, .use = is_first ? device::GradientUse::kSet : device::GradientUse::kAdd};
}

const at::Tensor& Gradients::last(size_t tensor) const {
  TANDEM_CHECK(gradients_[tensor].is_filled, "no step has ended, or its gradients were released");
  return gradients_[tensor].values;
}

void Gradients::release() {
  for (Gradient& g : gradients_) {
    g.values.reset();
    g.is_filled = false;
  }
}

}  // namespace tandem::trainer
