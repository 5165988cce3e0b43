#include "device/cuda/staging.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.h"

namespace tandem::device::cuda {
namespace {

void check(cudaError_t error, const char* what) {
  TANDEM_ENV_CHECK(error == cudaSuccess, what, "failed:", cudaGetErrorString(error));
}

}  // namespace

PinnedBuffer::PinnedBuffer(size_t bytes) : bytes_(bytes) {
  check(cudaHostAlloc(&data_, bytes, cudaHostAllocDefault), "pinning memory of the host");
  check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "an event");
}

PinnedBuffer::~PinnedBuffer() {
  if (event_ != nullptr) {
    cudaEventSynchronize(event_);
    cudaEventDestroy(event_);
  }
  cudaFreeHost(data_);
}

void PinnedBuffer::record(cudaStream_t stream) { check(cudaEventRecord(event_, stream), "an event"); }
bool PinnedBuffer::is_done() const { return cudaEventQuery(event_) == cudaSuccess; }
void PinnedBuffer::wait() const { check(cudaEventSynchronize(event_), "the GPU's work"); }

void Staging::to_device(const void* host, void* device, size_t bytes, cudaStream_t stream) {
  if (bytes == 0) return;
  const std::shared_ptr<PinnedBuffer> buffer = idle_buffer(bytes);
  std::memcpy(buffer->data(), host, bytes);
  check(cudaMemcpyAsync(device, buffer->data(), bytes, cudaMemcpyHostToDevice, stream), "a copy to the GPU");
  buffer->record(stream);
}

std::shared_ptr<PinnedBuffer> Staging::to_host(const void* device, size_t bytes, cudaStream_t stream) {
  std::shared_ptr<PinnedBuffer> buffer = idle_buffer(std::max<size_t>(bytes, 1));
  if (bytes > 0) {
    check(cudaMemcpyAsync(buffer->data(), device, bytes, cudaMemcpyDeviceToHost, stream), "a copy from the GPU");
  }
  buffer->record(stream);
  return buffer;
}

// Returns the smallest buffer that is large enough, that nobody holds, and whose last copy is done; a new one where
// there is none.
std::shared_ptr<PinnedBuffer> Staging::idle_buffer(size_t bytes) {
  std::shared_ptr<PinnedBuffer> best;
  for (const std::shared_ptr<PinnedBuffer>& buffer : buffers_) {
    const bool fits = buffer->bytes() >= bytes && (best == nullptr || buffer->bytes() < best->bytes());
    if (fits && buffer.use_count() == 1 && buffer->is_done()) best = buffer;
  }
  if (best == nullptr) {
    constexpr size_t kLeastBytes = size_t{64} << 10;
    best = buffers_.emplace_back(std::make_shared<PinnedBuffer>(std::bit_ceil(std::max(bytes, kLeastBytes))));
  }
  return best;
}

}  // namespace tandem::device::cuda
