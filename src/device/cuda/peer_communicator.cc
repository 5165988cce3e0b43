#include "device/cuda/peer_communicator.h"

#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <utility>

#include "base/check.h"
#include "device/cuda/peer_copies.h"
#include "device/cuda/peer_memory.h"
#include "device/cuda/peer_sum.h"
#include "device/cuda/stream_communicator.h"

namespace tandem::device {
namespace {

using cuda::check_runtime;
using cuda::PeerMemory;

constexpr std::chrono::seconds kLongestEnd{10};

class PeerCommunicator final : public cuda::StreamCommunicator {
 public:
  PeerCommunicator(int index, double timeout_s, std::unique_ptr<PeerMemory> memory);
  ~PeerCommunicator() override;

  bool sum(const at::Tensor& part, const at::Tensor& residual, const at::Tensor& out) override;

 private:
  void queue(const std::vector<Piece>& to, const std::vector<Piece>& from, Lock& /*lock*/) override {
    copies_.queue(to, from, stream());
  }
  void end_queued() noexcept override;

  const std::unique_ptr<PeerMemory> memory_;  // of each rank: SumMemory, and what the copies need
  cuda::PeerCopies copies_;
  cuda::Peers sums_;
  uint32_t* is_given_up_ = nullptr;  // of the host
  cudaStream_t end_stream_ = nullptr;
};

PeerCommunicator::PeerCommunicator(int index, double timeout_s, std::unique_ptr<PeerMemory> memory)
    : StreamCommunicator("memory of other GPUs", index, memory->rank(), memory->size(), timeout_s),
      memory_(std::move(memory)),
      copies_(*memory_, sizeof(cuda::SumMemory)) {
  sums_.rank = rank();
  sums_.size = size();
  for (int r = 0; r < size(); ++r) sums_.memory[r] = reinterpret_cast<cuda::SumMemory*>(memory_->of(r));
  check_runtime(cudaMalloc(&sums_.num_sums, cuda::kPeerBlocks * sizeof(uint32_t)), "cudaMalloc");
  check_runtime(cudaMemset(sums_.num_sums, 0, cuda::kPeerBlocks * sizeof(uint32_t)), "cudaMemset");
  check_runtime(cudaHostAlloc(&is_given_up_, sizeof(uint32_t), cudaHostAllocMapped), "cudaHostAlloc");
  *is_given_up_ = 0;
  void* seen_by_device = nullptr;
  check_runtime(cudaHostGetDevicePointer(&seen_by_device, is_given_up_, 0), "cudaHostGetDevicePointer");
  sums_.is_given_up = static_cast<const uint32_t*>(seen_by_device);
  check_runtime(cudaStreamCreateWithFlags(&end_stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  check_runtime(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  begin_watching();
}

// What is under way ends by itself, or after a while by force; then nothing of it uses the memory.
PeerCommunicator::~PeerCommunicator() {
  const c10::cuda::CUDAGuard guard(index());
  const Clock::time_point give_up = Clock::now() + kLongestEnd;
  while (cudaStreamQuery(stream()) == cudaErrorNotReady && Clock::now() < give_up) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  {
    const Lock lock(mutex());
    fail("the communicator has ended");
  }
  cudaDeviceSynchronize();
  end_watching();
  cudaStreamDestroy(end_stream_);
  cudaFree(sums_.num_sums);
  cudaFreeHost(is_given_up_);
}

void PeerCommunicator::end_queued() noexcept {
  *static_cast<volatile uint32_t*>(is_given_up_) = 1;
  copies_.let_go(end_stream_);
}

bool PeerCommunicator::sum(const at::Tensor& part, const at::Tensor& residual, const at::Tensor& out) {
  const auto is_aligned = [](const at::Tensor& x) { return reinterpret_cast<uintptr_t>(x.const_data_ptr()) % 16 == 0; };
  constexpr int64_t kVector = 8;
  if (part.numel() % kVector != 0 || static_cast<int64_t>(part.nbytes()) > cuda::kPeerPartBytes) return false;
  TANDEM_CHECK(is_aligned(part) && is_aligned(out) && part.is_contiguous() && out.is_contiguous());
  TANDEM_CHECK(!residual.defined() || (is_aligned(residual) && residual.is_contiguous()));
  throw_if_failed();
  count_sent(static_cast<int64_t>(part.nbytes()) * (size() - 1));
  check_runtime(
      cuda::peer_sum(sums_, part.const_data_ptr(), part.scalar_type() == at::kFloat,
                     residual.defined() ? residual.const_data_ptr() : nullptr, out.mutable_data_ptr(),
                     out.scalar_type() == at::kFloat, part.numel(), c10::cuda::getCurrentCUDAStream().stream()),
      "sum over ranks");
  return true;
}

}  // namespace

std::unique_ptr<Communicator> make_peer_communicator(int index, const DeviceRanks& ranks) {
  if (ranks.hosts.size() > cuda::kMostPeers) return nullptr;
  const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(index));
  const auto bytes = static_cast<int64_t>(sizeof(cuda::SumMemory)) + cuda::PeerCopies::bytes(ranks.hosts.size());
  std::unique_ptr<PeerMemory> memory = PeerMemory::open(index, bytes, ranks.hosts);
  if (!memory) return nullptr;
  return std::make_unique<PeerCommunicator>(index, ranks.timeout_s, std::move(memory));
}

}  // namespace tandem::device
