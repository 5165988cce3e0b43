// Random weights for tests of every family. Biases are random too: weights::initialize_random() leaves them at zero,
// where a test could not tell them from none.
#pragma once

#include <ATen/ops/empty.h>

#include <random>

#include "weights/store.h"

namespace tandem::model {

inline void draw_weights(weights::WeightStore& store, double initializer_range, uint64_t seed) {
  weights::initialize_random(store, initializer_range, seed);
  std::mt19937 random(static_cast<uint32_t>(seed));
  std::normal_distribution<float> normal(0.0F, 0.5F);
  for (const weights::PackedTensor& packed : store.layout().tensors) {
    if (packed.init != weights::Init::kZeros) continue;
    const at::Tensor values = at::empty(packed.shape, at::kFloat);
    for (int64_t i = 0; i < values.numel(); ++i) values.mutable_data_ptr<float>()[i] = normal(random);
    store.tensor(packed.name).copy_(values);
  }
}

}  // namespace tandem::model
