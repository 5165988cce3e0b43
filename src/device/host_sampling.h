// Ops::sample() for a backend whose own kernels draw nothing. Tokens are drawn on the host, from logits that are copied
// there where they lie elsewhere, and the policy's log-probs are those of the backend's logprob().
#pragma once

#include <vector>

#include "device/ops.h"
#include "device/sampler.h"
#include "device/thread_pool.h"

namespace tandem::device {

// This class keeps a sampler for each thread. Calls come from one thread at a time.
class HostSampling {
 public:
  explicit HostSampling(ThreadPool& threads) : threads_(threads) {}

  // Does what ops.sample() promises.
  void sample(const Ops& ops, const Tensor& logits_RV, const Tensor& draws, const Tensor& token_n,
              const Tensor& logprob_n, const Tensor& behavior_n);

 private:
  ThreadPool& threads_;
  std::vector<Sampler> samplers_;
};

// Does what Ops::take_drawn() promises, where both tensors lie on the host.
void take_drawn_on_host(const Tensor& ids_T, const Tensor& drawn_n);

}  // namespace tandem::device
