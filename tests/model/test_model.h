// A model over its own weights, and the operations that tests compute with.
#pragma once

#include <memory>
#include <string>

#include "device/ops.h"
#include "model/model.h"
#include "tests/model/small_models.h"
#include "weights/store.h"

namespace tandem::model {

// The exact operations of this machine; and the readable reference, on two threads. One thread is quicker where a test
// machine's cores are busy: no waiting for each other.
const device::Ops& test_ops(int num_threads);
const device::Ops& reference_ops();

struct TestModel {
  ModelConfig config;
  std::unique_ptr<weights::WeightStore> store;
  std::unique_ptr<Model> model;

  // New random weights, and the next version.
  void change_weights(uint64_t seed);
};

// Random weights (random_weights.h) in the configuration's dtype; the same for the same arguments.
TestModel random_model(const ModelConfig& config, const device::Ops& ops);
// A Hugging Face directory in a float32 store.
TestModel load_model(const std::string& directory, const device::Ops& ops);

}  // namespace tandem::model
