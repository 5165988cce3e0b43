// The CPU's matrix products at the shapes of a 3 M and a 0.6 B model, ours beside ATen's, in GFLOP/s and in GB/s of
// weights read. Run: linear_bench [--benchmark_filter=...]; all cores, or those that taskset leaves.
#include <ATen/Parallel.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <benchmark/benchmark.h>

#include "device/ops.h"

namespace {

using tandem::device::Ops;

const Ops& ops() {
  static const std::unique_ptr<Ops> instance = tandem::device::make_cpu_ops("auto", 0);
  at::set_num_threads(instance->num_threads());  // ATen's products are on as many threads as ours
  return *instance;
}

struct Shape {
  at::Tensor x_MK, w_NK, y_MN;
};

Shape make_shape(const benchmark::State& state) {
  const auto dtype = state.range(3) != 0 ? at::kBFloat16 : at::kFloat;
  ops();
  return {at::randn({state.range(0), state.range(2)}).to(dtype), at::randn({state.range(1), state.range(2)}).to(dtype),
          at::randn({state.range(0), state.range(1)}).to(dtype)};
}

void report(benchmark::State& state) {
  const auto products = static_cast<double>(state.range(0) * state.range(1) * state.range(2));
  state.counters["GFLOP/s"] = benchmark::Counter(2e-9 * products, benchmark::Counter::kIsIterationInvariantRate);
  const double weight_bytes = static_cast<double>(state.range(1) * state.range(2)) * (state.range(3) != 0 ? 2 : 4);
  state.counters["GB/s"] = benchmark::Counter(1e-9 * weight_bytes, benchmark::Counter::kIsIterationInvariantRate);
}

void linear_ours(benchmark::State& state) {
  const Shape s = make_shape(state);
  for (auto _ : state) benchmark::DoNotOptimize(ops().linear(s.x_MK, s.w_NK, s.x_MK.scalar_type()));
  report(state);
}
void linear_aten(benchmark::State& state) {
  const Shape s = make_shape(state);
  for (auto _ : state) benchmark::DoNotOptimize(at::linear(s.x_MK, s.w_NK));
  report(state);
}
void grad_input_ours(benchmark::State& state) {
  const Shape s = make_shape(state);
  for (auto _ : state) benchmark::DoNotOptimize(ops().linear_grad_input(s.y_MN, s.w_NK, s.w_NK.scalar_type()));
  report(state);
}
void grad_input_aten(benchmark::State& state) {
  const Shape s = make_shape(state);
  for (auto _ : state) benchmark::DoNotOptimize(at::mm(s.y_MN, s.w_NK));
  report(state);
}
void grad_weight_ours(benchmark::State& state) {
  const Shape s = make_shape(state);
  const at::Tensor dw = at::zeros({state.range(1), state.range(2)});
  for (auto _ : state) ops().linear_grad_weight(s.y_MN, s.x_MK, dw, tandem::device::GradientUse::kAdd);
  report(state);
}
void grad_weight_aten(benchmark::State& state) {
  const Shape s = make_shape(state);
  for (auto _ : state) benchmark::DoNotOptimize(at::mm(s.y_MN.t(), s.x_MK));
  report(state);
}

void decode_shapes(benchmark::internal::Benchmark* b) {
  for (const int bf16 : {0, 1})
    for (const int m : {1, 4, 16, 64, 512}) b->Args({m, 6144, 1024, bf16});
  for (const int bf16 : {0, 1}) b->Args({256, 1536, 256, bf16});
  for (const int bf16 : {0, 1}) b->Args({16, 1024, 3072, bf16});
}
void train_shapes(benchmark::internal::Benchmark* b) {
  for (const int bf16 : {0, 1}) b->Args({4096, 1536, 256, bf16});
  for (const int bf16 : {0, 1}) b->Args({4096, 256, 768, bf16});
  for (const int bf16 : {0, 1}) b->Args({512, 6144, 1024, bf16});
}

BENCHMARK(linear_ours)->Apply(decode_shapes)->UseRealTime();
BENCHMARK(linear_aten)->Apply(decode_shapes)->UseRealTime();
BENCHMARK(linear_ours)->Apply(train_shapes)->UseRealTime();
BENCHMARK(linear_aten)->Apply(train_shapes)->UseRealTime();
BENCHMARK(grad_input_ours)->Apply(train_shapes)->UseRealTime();
BENCHMARK(grad_input_aten)->Apply(train_shapes)->UseRealTime();
BENCHMARK(grad_weight_ours)->Apply(train_shapes)->UseRealTime();
BENCHMARK(grad_weight_aten)->Apply(train_shapes)->UseRealTime();

}  // namespace

BENCHMARK_MAIN();
