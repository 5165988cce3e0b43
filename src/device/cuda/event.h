// A place in a stream's work, which other streams and the host can wait for. This file also turns failed calls of
// CUDA's runtime into our errors. No torch.
#pragma once

#include <cuda_runtime_api.h>

#include "base/check.h"

namespace tandem::device::cuda {

// Throws EnvironmentError unless `error` is cudaSuccess.
inline void check_runtime(cudaError_t error, const char* call) {
  TANDEM_ENV_CHECK(error == cudaSuccess, "the GPU's", call, "failed:", cudaGetErrorString(error));
}

class Event {
 public:
  Event() { check_runtime(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEventCreate"); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void record(cudaStream_t stream) { check_runtime(cudaEventRecord(event_, stream), "cudaEventRecord"); }
  void hold_up(cudaStream_t stream) const {
    check_runtime(cudaStreamWaitEvent(stream, event_, 0), "cudaStreamWaitEvent");
  }
  bool is_pending() const { return cudaEventQuery(event_) == cudaErrorNotReady; }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace tandem::device::cuda
