// Doubles the memory that one process exports to another, within one process: a handle is a number, which stands for
// the tensor itself.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "device/registry.h"

namespace tandem::weights {

// Makes every device's memory exportable for as long as it lives.
class ShownMemory {
 public:
  // Makes the tensor that the importing side gets from the exported bytes: it may be undefined, as if the import
  // failed, or different.
  using Seen = std::function<at::Tensor(const at::Tensor& bytes)>;
  void set_seen(Seen seen) {
    const std::scoped_lock lock(mutex_);
    seen_ = std::move(seen);
  }

 private:
  std::string show(const at::Tensor& tensor) {
    const std::scoped_lock lock(mutex_);
    shown_.push_back(tensor);
    return std::to_string(shown_.size() - 1);
  }
  at::Tensor map(const std::string& word) {
    const std::scoped_lock lock(mutex_);
    return seen_(shown_.at(std::stoul(word)).view(at::kByte));
  }

  std::mutex mutex_;
  std::vector<at::Tensor> shown_;
  Seen seen_ = [](const at::Tensor& bytes) { return bytes; };
  device::ScopedFakeBackend backend_{{.show_memory = [this](const at::Tensor& tensor) { return show(tensor); },
                                      .map_memory = [this](const std::string& word) { return map(word); }}};
};

}  // namespace tandem::weights
