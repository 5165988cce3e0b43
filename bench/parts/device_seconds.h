// Times work on a device from the host, for benchmarks of operations.
#pragma once

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>

#include "device/ops.h"

// Returns the seconds of one call of `work`, the least of five rounds of so many calls, after one that warms up.
template <typename Work>
double device_seconds(const tandem::device::Ops& ops, int calls, const Work& work) {
  constexpr int kRounds = 5;
  const auto wait = [&] { ops.fetch(at::zeros({1}, at::TensorOptions(at::kFloat).device(ops.device())))->wait(); };
  work();
  wait();
  double least = 1e9;
  for (int round = 0; round < kRounds; ++round) {
    const auto start = std::chrono::steady_clock::now();
    for (int call = 0; call < calls; ++call) work();
    wait();
    least = std::min(least, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return least / calls;
}
