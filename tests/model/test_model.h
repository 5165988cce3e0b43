// A model over its own weights, and the operations that tests compute with.
#pragma once

#include <memory>
#include <string>

#include "device/ops.h"
#include "model/model.h"
#include "tests/model/small_models.h"
#include "weights/store.h"

namespace tandem::model {

// These are the exact operations of this machine, and the readable reference on two threads. One thread is quicker
// where the cores of a test machine are busy, because threads would wait for each other.
const device::Ops& test_ops(int num_threads);
const device::Ops& reference_ops();

struct TestModel {
  ModelConfig config;
  std::unique_ptr<weights::WeightStore> store;
  std::unique_ptr<Model> model;

  // Draws new random weights, and publishes the next version.
  void change_weights(uint64_t seed);
};

// Makes a model with random weights (random_weights.h) in the configuration's dtype; equal arguments make equal
// weights.
TestModel random_model(const ModelConfig& config, const device::Ops& ops);
// Loads a Hugging Face directory into a float32 store.
TestModel load_model(const std::string& directory, const device::Ops& ops);

}  // namespace tandem::model
