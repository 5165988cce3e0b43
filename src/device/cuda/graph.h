// The device work of a function, captured as a CUDA graph: one launch does it again. No torch.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>

namespace tandem::device::cuda {

// Returns whether what is queued on the stream is captured.
bool is_capturing(cudaStream_t stream);

class Graph {
 public:
  // Calls `work` once. The work that it queues on `capturing`, a stream of its own that does not wait for the default
  // one, is captured and not done. `work` must not wait for the device. Throws EnvironmentError where something in it
  // cannot be captured.
  Graph(cudaStream_t capturing, const std::function<void()>& work);
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void launch(cudaStream_t stream);

 private:
  cudaGraphExec_t executable_ = nullptr;
};

}  // namespace tandem::device::cuda
