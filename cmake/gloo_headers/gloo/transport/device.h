// Stands for Gloo's header of this name, which LibTorch's wheel does not bring: types that LibTorch's own header holds
// pointers to.
#pragma once

namespace gloo::transport {

class Device;

class UnboundBuffer {
 public:
  virtual ~UnboundBuffer() = 0;
};

}  // namespace gloo::transport
