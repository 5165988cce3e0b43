#include "device/cuda/ranks/peer_communicator.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty_like.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "device/cuda/ranks/peer_copies.h"
#include "device/cuda/ranks/peer_expert_exchange.h"
#include "device/cuda/ranks/peer_memory.h"
#include "device/cuda/ranks/peer_sum.h"
#include "device/cuda/ranks/stream_communicator.h"

namespace tandem::device {
namespace {

using cuda::check_runtime;
using cuda::PeerMemory;

constexpr std::chrono::seconds kLongestEnd{10};
constexpr double kLongestTrial = 20.0;  // seconds

class PeerCommunicator final : public cuda::StreamCommunicator {
 public:
  PeerCommunicator(int index, double timeout_s, std::unique_ptr<PeerMemory> memory);
  ~PeerCommunicator() override;

  bool sum(const at::Tensor& part, const at::Tensor& residual, const at::Tensor& out) override;
  std::unique_ptr<ExpertExchange> share_experts(const SharedExperts& shared, Communicator& hosts) override {
    return make_peer_expert_exchange(index(), shared, hosts, sums_.is_given_up);
  }

 private:
  void queue(const std::vector<Piece>& to, const std::vector<Piece>& from, Lock& /*lock*/) override {
    copies_.queue(to, from, stream());
  }
  void end_queued() noexcept override;

  const std::unique_ptr<PeerMemory> memory_;  // SumMemory of each rank, and the words and places of the copies
  cuda::PeerCopies copies_;
  cuda::Peers sums_;
  uint32_t* is_given_up_ = nullptr;  // word in host memory
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

// Exchanges in flight end by themselves, or after a while by force; then none of them uses the memory.
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

// Returns the bytes that rank `from` sends in a trial.
at::Tensor trial_bytes(int from, int64_t count, at::Device device) {
  return at::arange(count, at::TensorOptions(at::kInt).device(device)).mul_(from + 1);
}

// Every rank sends to every other one, through all places and one of them twice; then all ranks sum.
bool try_exchange(Communicator& ranks, at::Device device, int64_t count) {
  const at::Tensor mine = trial_bytes(ranks.rank(), count, device);
  TensorLists parts;
  for (int rank = 0; rank < ranks.size(); ++rank) {
    parts.push_back({rank == ranks.rank() ? mine : at::empty_like(mine)});
  }
  all_gather(ranks, parts);
  bool is_right = true;
  for (int rank = 0; rank < ranks.size(); ++rank) {
    is_right &= parts[static_cast<size_t>(rank)][0].equal(trial_bytes(rank, count, device));
  }
  return is_right;
}

bool try_sum(Communicator& ranks, at::Device device) {
  constexpr int64_t kCount = 1 << 16;  // whole numbers: their sums are exact
  const at::Tensor part = trial_bytes(ranks.rank(), kCount, device).to(at::kFloat);
  const at::Tensor sum = at::empty_like(part);
  ranks.sum(part, {}, sum);
  const int factors = ranks.size() * (ranks.size() + 1) / 2;
  return sum.equal(trial_bytes(factors - 1, kCount, device).to(at::kFloat));
}

// Memory that can be mapped need not carry what is written (GPUs behind an IOMMU), so it is tried before it is used.
bool works(cuda::StreamCommunicator& ranks, at::Device device) {
  const int64_t count = cuda::PeerCopies::bytes(ranks.size()) / (ranks.size() - 1) / 4;
  try {
    const bool is_right =
        try_exchange(ranks, device, 1000) && try_exchange(ranks, device, count + count / 8) && try_sum(ranks, device);
    ranks.throw_if_failed();
    return is_right;
  } catch (const PeerLost&) {
    return false;
  }
}

}  // namespace

std::unique_ptr<Communicator> make_peer_communicator(int index, const DeviceRanks& ranks) {
  if (ranks.hosts.size() > cuda::kMostPeers) return nullptr;
  const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(index));
  const auto bytes = static_cast<int64_t>(sizeof(cuda::SumMemory)) + cuda::PeerCopies::bytes(ranks.hosts.size());
  std::unique_ptr<PeerMemory> memory = PeerMemory::open(index, bytes, ranks.hosts);
  if (!memory) return nullptr;
  auto communicator = std::make_unique<PeerCommunicator>(index, kLongestTrial, std::move(memory));
  const bool has_worked = works(*communicator, at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(index)));
  c10::cuda::CUDACachingAllocator::emptyCache();
  if (any_of(ranks.hosts, !has_worked)) {
    base::log_warning(
        "GPUs of this machine map each other's memory, but what one writes does not reach the other: NCCL "
        "moves tensors between them");
    return nullptr;
  }
  communicator->set_timeout(ranks.timeout_s);
  return communicator;
}

}  // namespace tandem::device
