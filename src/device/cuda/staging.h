// Copies between the host's ordinary memory and the device that do not wait for the device: they pass through pinned
// buffers, each with an event that says when its copy is done. No torch.
//
// One thread at a time.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace tandem::device::cuda {

// Owns a pinned buffer, and the event after the last copy that used it.
class PinnedBuffer {
 public:
  explicit PinnedBuffer(size_t bytes);
  ~PinnedBuffer();
  PinnedBuffer(const PinnedBuffer&) = delete;
  PinnedBuffer& operator=(const PinnedBuffer&) = delete;

  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  void record(cudaStream_t stream);  // marks the copy that was queued last
  bool is_done() const;
  void wait() const;

 private:
  void* data_ = nullptr;
  size_t bytes_;
  cudaEvent_t event_ = nullptr;
};

// Keeps its buffers for later copies. Throws EnvironmentError where pinned memory cannot be had or a copy fails.
class Staging {
 public:
  // `host` may change when this returns.
  void to_device(const void* host, void* device, size_t bytes, cudaStream_t stream);
  // Copies the contents that `device` has when the stream gets there: they are in the buffer's data() after its wait().
  // The buffer is used again when nobody holds it any more.
  std::shared_ptr<PinnedBuffer> to_host(const void* device, size_t bytes, cudaStream_t stream);

 private:
  std::shared_ptr<PinnedBuffer> idle_buffer(size_t bytes);

  std::vector<std::shared_ptr<PinnedBuffer>> buffers_;
};

}  // namespace tandem::device::cuda
