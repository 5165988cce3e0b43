// Stands for Gloo's header of this name, which LibTorch's wheel does not bring: what LibTorch's own header calls.
#pragma once

#include <chrono>
#include <memory>

namespace gloo {

class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};

}  // namespace gloo
