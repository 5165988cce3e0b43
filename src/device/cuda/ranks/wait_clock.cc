#include "device/cuda/ranks/wait_clock.h"

#include "device/cuda/event.h"

namespace tandem::device::cuda {

WaitClock::~WaitClock() {
  for (const auto& waits : {std::vector<Wait>(waits_.begin(), waits_.end()), free_}) {
    for (const Wait& wait : waits) {
      cudaEventDestroy(wait.begin);
      cudaEventDestroy(wait.end);
    }
  }
}

void WaitClock::begin(cudaStream_t stream) {
  add_up();
  if (free_.empty()) {
    Wait wait;
    check_runtime(cudaEventCreate(&wait.begin), "cudaEventCreate");
    check_runtime(cudaEventCreate(&wait.end), "cudaEventCreate");
    free_.push_back(wait);
  }
  waits_.push_back(free_.back());
  free_.pop_back();
  check_runtime(cudaEventRecord(waits_.back().begin, stream), "cudaEventRecord");
}

void WaitClock::end(cudaStream_t stream) {
  check_runtime(cudaEventRecord(waits_.back().end, stream), "cudaEventRecord");
}

double WaitClock::seconds() {
  add_up();
  return seconds_;
}

void WaitClock::add_up() {
  while (!waits_.empty()) {
    const cudaError_t state = cudaEventQuery(waits_.front().end);
    if (state == cudaErrorNotReady) cudaGetLastError();  // it is not an error, and must not be taken for one later
    if (state != cudaSuccess) return;
    float ms = 0.0F;
    if (cudaEventElapsedTime(&ms, waits_.front().begin, waits_.front().end) == cudaSuccess) seconds_ += ms * 1e-3;
    free_.push_back(waits_.front());
    waits_.pop_front();
  }
}

}  // namespace tandem::device::cuda
