#include "run/bench_ceilings.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/sum.h>

#include <algorithm>

#include "model/dtype.h"

namespace tandem::run {

namespace {

// The best of a few rounds: what disturbs one is no property of the machine. The first two warm up.
double best_seconds(const BenchModel& bench, int calls, const std::function<void()>& call) {
  constexpr int kWarmUps = 2, kRounds = 5;
  double best = 0.0;
  for (int round = 0; round < kWarmUps + kRounds; ++round) {
    const double seconds = bench.seconds([&] {
      for (int i = 0; i < calls; ++i) call();
    });
    if (round == kWarmUps || (round > kWarmUps && seconds < best)) best = seconds;
  }
  return std::max(best, 1e-9) / calls;
}

}  // namespace

Ceilings measure_ceilings(const BenchModel& bench) {
  const at::NoGradGuard without_graph;
  const bool is_cpu = bench.is_on_cpu();
  const at::TensorOptions on_device = at::TensorOptions().device(bench.ops().device());
  Ceilings ceilings;
  {
    // Far larger than any cache.
    const int64_t elements = (is_cpu ? int64_t{64} : int64_t{1024}) << 18;  // of 4 bytes
    const at::Tensor from = at::full({elements}, 1.0, on_device.dtype(at::kFloat)), to = at::empty_like(from);
    const auto bytes = static_cast<double>(from.nbytes());
    const int calls = is_cpu ? 1 : 8;
    ceilings.copy_bytes_per_s = 2.0 * bytes / best_seconds(bench, calls, [&] { to.copy_(from); });
    ceilings.read_bytes_per_s = bytes / best_seconds(bench, calls, [&] { at::sum(from); });
  }
  bench.release_unused();
  {
    const int64_t n = is_cpu ? 1024 : 8192;
    // Not all alike: a GPU takes less power, and so runs faster, where nothing changes.
    const at::Tensor a = at::empty({n, n}, on_device.dtype(model::scalar_type(bench.config().dtype))).normal_();
    const at::Tensor b = at::empty_like(a).normal_();
    at::Tensor c = at::empty_like(a);
    const double seconds = best_seconds(bench, is_cpu ? 1 : 4, [&] { at::mm_out(c, a, b); });
    ceilings.flops_per_s = 2.0 * static_cast<double>(n) * static_cast<double>(n) * static_cast<double>(n) / seconds;
  }
  bench.release_unused();
  return ceilings;
}

}  // namespace tandem::run
