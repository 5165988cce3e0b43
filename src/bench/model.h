// The model that is measured, its weights on the device, and a clock that waits for the device. LibTorch's own
// allocator holds everything: there is no arena.
#pragma once

#include <functional>
#include <memory>

#include "config/bench_config.h"
#include "device/memory_driver.h"
#include "device/ops.h"
#include "device/registry.h"
#include "model/model.h"
#include "weights/store.h"

namespace tandem::bench {

class BenchModel {
 public:
  // Starts the device; no weights are read yet. Throws UserError if --hf-checkpoint names no model.
  explicit BenchModel(const config::BenchConfig& config);
  // Draws the weights, those of a large model on the device itself; those of --hf-checkpoint are read.
  void load_weights();

  const model::ModelConfig& config() const { return config_; }
  const device::Ops& ops() const { return *ops_; }
  bool is_on_host() const { return ops_->is_on_host(); }
  weights::WeightStore& store() const { return *store_; }
  std::unique_ptr<model::Model> make_model() const;

  // Returns the seconds of `work`, from an idle device to an idle device.
  double seconds(const std::function<void()>& work) const;
  // Returns the seconds of a call in the best of a few rounds of `calls`: a disturbance is no property of the machine.
  // The first rounds warm up. Where rounds are slow there are fewer, at least one of each kind.
  double best_seconds(int calls, const std::function<void()>& call) const;
  // Makes LibTorch give back what nobody uses: the next measurement needs it in other sizes.
  void release_unused() const;

 private:
  const config::ModelOptions options_;
  model::ModelConfig config_;
  device::DeviceSpec device_;
  std::unique_ptr<device::Ops> ops_;
  device::MemoryDriver memory_;
  std::unique_ptr<weights::WeightStore> store_;
};

// Runs LibTorch on as many threads as the kernels, for measurements that are compared with them: a run on the CPU
// leaves it one.
class LibTorchThreads {
 public:
  explicit LibTorchThreads(const BenchModel& bench);
  ~LibTorchThreads();
  LibTorchThreads(const LibTorchThreads&) = delete;
  LibTorchThreads& operator=(const LibTorchThreads&) = delete;

 private:
  const int before_;
};

}  // namespace tandem::bench
