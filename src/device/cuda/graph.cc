#include "device/cuda/graph.h"

#include "base/check.h"

namespace tandem::device::cuda {
namespace {

void check(cudaError_t error, const char* what) {
  TANDEM_ENV_CHECK(error == cudaSuccess, what, "failed:", cudaGetErrorString(error));
}

}  // namespace

bool is_capturing(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(stream, &status), "asking whether a step is captured");
  return status == cudaStreamCaptureStatusActive;
}

Graph::Graph(cudaStream_t capturing, const std::function<void()>& work) {
  // The mode is relaxed because LibTorch may ask the driver for memory meanwhile.
  check(cudaStreamBeginCapture(capturing, cudaStreamCaptureModeRelaxed), "capturing a step");
  cudaGraph_t graph = nullptr;
  try {
    work();
  } catch (...) {
    cudaStreamEndCapture(capturing, &graph);
    if (graph != nullptr) cudaGraphDestroy(graph);
    cudaGetLastError();
    throw;
  }
  check(cudaStreamEndCapture(capturing, &graph), "capturing a step");
  const cudaError_t made = cudaGraphInstantiate(&executable_, graph, 0);
  cudaGraphDestroy(graph);
  check(made, "making a graph of a step");
}

Graph::~Graph() { cudaGraphExecDestroy(executable_); }

void Graph::launch(cudaStream_t stream) { check(cudaGraphLaunch(executable_, stream), "a recorded step"); }

}  // namespace tandem::device::cuda
