// Measures how long a stream stands still in waits for other ranks, by the device's clock: from before each wait until
// after it. No torch.
#pragma once

#include <cuda_runtime_api.h>

#include <deque>
#include <vector>

namespace tandem::device::cuda {

class WaitClock {
 public:
  WaitClock() = default;
  ~WaitClock();
  WaitClock(const WaitClock&) = delete;
  WaitClock& operator=(const WaitClock&) = delete;

  // begin() and end() enclose the work that makes the stream wait. They must not be called while a graph is recorded.
  void begin(cudaStream_t stream);
  void end(cudaStream_t stream);
  // Returns the seconds of all waits that are over.
  double seconds();

 private:
  struct Wait {
    cudaEvent_t begin = nullptr, end = nullptr;
  };
  void add_up();

  std::deque<Wait> waits_;  // waits that are not added up yet
  std::vector<Wait> free_;
  double seconds_ = 0.0;
};

}  // namespace tandem::device::cuda
