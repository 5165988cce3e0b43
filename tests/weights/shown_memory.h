// Memory that one process shows another, played by two parts of one process: a word is a number, and what it stands for
// is the tensor itself.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "device/registry.h"

namespace tandem::weights {

// For as long as it lives, every device's memory can be shown.
class ShownMemory {
 public:
  // Who maps gets what this makes of the bytes: a tensor that is undefined where it cannot, or is not what was shown.
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
