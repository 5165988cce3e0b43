#include "bench/ceilings.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/sum.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "model/dtype.h"

namespace tandem::bench {

namespace {

constexpr int64_t kManyBytes = int64_t{256} << 20;  // far more than any cache holds

int64_t weight_bytes(const BenchModel& bench) { return static_cast<int64_t>(ModelWork(bench.config()).weight_bytes()); }

void measure_memory(const BenchModel& bench, int64_t bytes, Ceilings& ceilings) {
  const at::TensorOptions on_device = at::TensorOptions().device(bench.ops().device()).dtype(at::kFloat);
  const at::Tensor from = at::full({std::max<int64_t>(1, bytes / 4)}, 1.0, on_device), to = at::empty_like(from);
  const auto moved = static_cast<double>(from.nbytes());
  // There are so many calls that the clock's own time does not count.
  const int calls =
      static_cast<int>(std::clamp<int64_t>(2 * kManyBytes / bytes, 1, 200)) * (bench.is_on_host() ? 1 : 8);
  const auto take = [&](double& ceiling, double per_call, const std::function<void()>& call) {
    ceiling = std::max(ceiling, per_call / bench.best_seconds(calls, call));
  };
  take(ceilings.copy_bytes_per_s, 2.0 * moved, [&] { to.copy_(from); });
  take(ceilings.read_bytes_per_s, moved, [&] { at::sum(from); });
}

// Measures the product of two n x n matrices in the model's dtype: LibTorch's, and on the CPU Tandem's too, because
// LibTorch may not use the units for a dtype there.
void measure_product(const BenchModel& bench, int64_t n, Ceilings& ceilings) {
  const at::ScalarType dtype = model::scalar_type(bench.config().dtype);
  // Elements must not be all alike: a GPU takes less power, and so runs faster, if nothing changes.
  const at::Tensor a = at::empty({n, n}, at::TensorOptions().device(bench.ops().device()).dtype(dtype)).normal_();
  const at::Tensor b = at::empty_like(a).normal_();
  at::Tensor c = at::empty_like(a);
  const double flops = 2.0 * static_cast<double>(n) * static_cast<double>(n) * static_cast<double>(n);
  const auto take = [&](double seconds) { ceilings.flops_per_s = std::max(ceilings.flops_per_s, flops / seconds); };
  const auto multiply = [&] { at::mm_out(c, a, b); };
  const int calls = n <= 256 ? 16 : bench.is_on_host() ? 1 : 4;
  if (bench.is_on_host()) {
    take(bench.best_seconds(calls, [&] { c = bench.ops().linear(a, b, dtype); }));
    // Without those units a product takes a hundred times as long, which one round shows.
    constexpr double kFarFromBest = 8.0;
    const double seconds = bench.seconds([&] {
      for (int i = 0; i < calls; ++i) multiply();
    });
    if (flops * calls / seconds < ceilings.flops_per_s / kFarFromBest) return;
  }
  take(bench.best_seconds(calls, multiply));
}

}  // namespace

Ceilings measure_ceilings(const BenchModel& bench) {
  const at::NoGradGuard without_graph;
  Ceilings ceilings;
  std::vector<int64_t> sizes = {bench.is_on_host() ? kManyBytes : 16 * kManyBytes};
  // A tiny model lies in the CPU's caches, which give more than the memory behind them: the faster of both counts.
  if (bench.is_on_host() && weight_bytes(bench) < kManyBytes) sizes.push_back(weight_bytes(bench));
  for (const int64_t bytes : sizes) {
    measure_memory(bench, bytes, ceilings);
    bench.release_unused();
  }
  // The larger product exceeds the caches, the smaller one fits them.
  for (const int64_t n : bench.is_on_host() ? std::vector<int64_t>{1024, 256} : std::vector<int64_t>{8192}) {
    measure_product(bench, n, ceilings);
    bench.release_unused();
  }
  return ceilings;
}

}  // namespace tandem::bench
