// Shared by the tests of the optimizer: stores and gradients drawn from a seed, and a device that does everything as
// late as its contracts allow.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "device/cpu/cpu_host_memory.h"
#include "tests/sim/forwarding_ops.h"
#include "trainer/adamw.h"
#include "weights/store.h"

namespace tandem::trainer {

using Shapes = std::vector<std::pair<std::string, std::vector<int64_t>>>;  // shapes of packed tensors, by name
inline const Shapes kSmallShapes = {{"matrix", {6, 8}}, {"norm", {8}}};

weights::Layout layout_of(const Shapes& shapes);
void fill_random(const at::Tensor& tensor, std::mt19937& random);
weights::WeightStore random_store(const Shapes& shapes, at::ScalarType dtype, uint32_t seed);
// Takes one whole step with gradients drawn from `seed`.
void random_step(AdamW& adamw, const weights::WeightStore& store, uint32_t seed);
// Compares weights, masters, moments and number of steps.
void expect_same_optimizer(const AdamW& a, const weights::WeightStore& a_store, const AdamW& b,
                           const weights::WeightStore& b_store);

// Counts its allocations, which begin as garbage, and checks that calls come from one thread at a time.
class CountingHostMemory : public device::HostMemory {
 public:
  // Says when a copy happens: when it is called, or at synchronize(), all of one direction before the other.
  enum class Copies : uint8_t { kAtOnce, kLateInFirst, kLateOutFirst };
  explicit CountingHostMemory(Copies copies = Copies::kAtOnce) : copies_(copies) {}

  int64_t allocated_bytes() const { return allocated_bytes_; }
  size_t num_queued() const { return in_.size() + out_.size(); }

  std::byte* allocate(int64_t bytes) override;
  void free(std::byte* host, int64_t bytes) override;
  void copy_to_host(std::byte* host, const std::byte* device, int64_t bytes) override;
  void copy_to_device(std::byte* device, const std::byte* host, int64_t bytes) override;
  void synchronize() override;

 private:
  using Queue = std::vector<std::function<void()>>;
  void queue(Queue& queue, std::function<void()> copy);
  static void run(Queue& queue);

  const Copies copies_;
  device::CpuHostMemory real_;
  Queue in_, out_;
  std::atomic<int64_t> allocated_bytes_ = 0;
  std::atomic<int> num_callers_ = 0;
};

// AdamW's updates wait in a queue, as on a device, until synchronize().
class LateOps final : public sim::ForwardingOps {
 public:
  using ForwardingOps::ForwardingOps;
  void adamw(const at::Tensor& weight, const at::Tensor& master, const at::Tensor& grad, const at::Tensor& m,
             const at::Tensor& v, const AdamW& p) const override {
    updates_.emplace_back([=, this] { inner_.adamw(weight, master, grad, m, v, p); });
  }
  void synchronize() const {
    for (const std::function<void()>& update : updates_) update();
    updates_.clear();
  }

 private:
  mutable std::vector<std::function<void()>> updates_;
};

}  // namespace tandem::trainer
