#include "device/cuda/ranks/peer_expert_exchange.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <fmt/format.h>

#include <utility>

#include "base/check.h"
#include "device/cuda/ranks/peer_experts.h"
#include "device/cuda/ranks/peer_memory.h"
#include "device/cuda/served_sizes.h"

namespace tandem::device {
namespace {

using at::Tensor;
using cuda::PeerMemory;

void check(cudaError_t error) {
  TANDEM_ENV_CHECK(error == cudaSuccess, "the GPU's exchange of experts failed:", cudaGetErrorString(error));
}

__nv_bfloat16* rows(const Tensor& x) { return static_cast<__nv_bfloat16*>(x.mutable_data_ptr()); }

class PeerExpertExchange final : public ExpertExchange {
 public:
  PeerExpertExchange(const SharedExperts& shared, std::unique_ptr<PeerMemory> memory, const uint32_t* is_given_up);
  ~PeerExpertExchange() override {
    cudaDeviceSynchronize();
    cudaFree(peers_.numbers);
  }
  int rank() const override { return peers_.rank; }
  int size() const override { return peers_.size; }

  Tensor gather(const Tensor& own_RE) override {
    TANDEM_CHECK(own_RE.is_contiguous() && own_RE.scalar_type() == at::kBFloat16 && own_RE.size(1) == shared_.hidden);
    TANDEM_CHECK(own_RE.size(0) <= shared_.most_rows, own_RE.size(0), "rows");
    Tensor all = at::empty({size() * own_RE.size(0), shared_.hidden}, own_RE.options());
    check(cuda::gather_rows_of_peers(peers_, rows(own_RE), own_RE.numel(), rows(all), stream()));
    return all;
  }

  Tensor results(const Tensor& rows_TE, const Routing& routing) override {
    return at::from_blob(
        peers_.results[rank()], {routing.num_places(), shared_.hidden}, [](void*) {}, rows_TE.options(),
        rows_TE.device());
  }

  Tensor sum(const Tensor& /*y_PE*/, const Routing& routing, const Tensor& residual_RE) override {
    const int64_t R = residual_RE.size(0);
    const Routing own = routing.of_tokens(rank() * R, R);
    const Tensor out = at::empty_like(residual_RE);
    const cuda::PeerPlaces places = {.ids = own.ids_TC.const_data_ptr<int32_t>(),
                                     .weights = own.weights_TC.const_data_ptr<float>(),
                                     .places = own.places_TC.const_data_ptr<int32_t>(),
                                     .num_chosen = static_cast<int>(own.num_chosen())};
    check(cuda::sum_of_peers_experts(peers_, places, rows(residual_RE), rows(out), R, shared_.hidden, stream()));
    return out;
  }

 private:
  static cudaStream_t stream() { return c10::cuda::getCurrentCUDAStream().stream(); }

  const SharedExperts shared_;
  const std::unique_ptr<PeerMemory> memory_;
  cuda::PeerExperts peers_;
};

PeerExpertExchange::PeerExpertExchange(const SharedExperts& shared, std::unique_ptr<PeerMemory> memory,
                                       const uint32_t* is_given_up)
    : shared_(shared), memory_(std::move(memory)) {
  peers_.rank = memory_->rank();
  peers_.size = memory_->size();
  peers_.is_given_up = is_given_up;
  for (int r = 0; r < peers_.size; ++r) {
    std::byte* const begin = memory_->of(r);
    peers_.flags[r] = reinterpret_cast<cuda::PeerExpertsFlags*>(begin);
    peers_.rows[r] = reinterpret_cast<__nv_bfloat16*>(begin + cuda::kPeerExpertsFlagBytes);
    peers_.results[r] = peers_.rows[r] + shared.most_rows * shared.hidden;
    const ExpertRange range = experts_of_rank(shared.experts, r, peers_.size);
    peers_.first_expert[r] = static_cast<int>(range.first);
    peers_.first_expert[r + 1] = static_cast<int>(range.first + range.count);
  }
  constexpr size_t kNumberBytes = 2 * cuda::kPeerExpertsBlocks * sizeof(uint32_t);
  check(cudaMalloc(&peers_.numbers, kNumberBytes));
  check(cudaMemset(peers_.numbers, 0, kNumberBytes));
  check(cudaDeviceSynchronize());
}

}  // namespace

std::unique_ptr<ExpertExchange> make_peer_expert_exchange(int index, const SharedExperts& shared, Communicator& hosts,
                                                          const uint32_t* is_given_up) {
  TANDEM_USER_CHECK(shared.dtype == at::kBFloat16 && cuda::supports_width(shared.hidden) &&
                        cuda::supports_routing(shared.experts, shared.chosen),
                    fmt::format("--rollout-expert-parallel: GPUs share experts of up to {} and of models in bfloat16 "
                                "whose hidden size is a multiple of 8; leave it out, or give --dtype bfloat16",
                                cuda::kMostExperts));
  const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(index));
  std::unique_ptr<PeerMemory> memory = PeerMemory::open(
      index, cuda::peer_experts_bytes(shared.most_rows, hosts.size(), shared.hidden, shared.chosen), hosts);
  if (!memory) return nullptr;
  return std::make_unique<PeerExpertExchange>(shared, std::move(memory), is_given_up);
}

}  // namespace tandem::device
