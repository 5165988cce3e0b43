#include "device_check/numbers.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "device/transfer.h"
#include "device_check/operations.h"
#include "model/dtype.h"

namespace tandem::device_check {

namespace {

constexpr uint64_t kSeed = 7;
constexpr at::ScalarType kDtypes[] = {at::kFloat, at::kBFloat16};

std::vector<at::Tensor> run(const Operation& operation, const device::Ops& ops, at::ScalarType dtype, bool is_reference,
                            const Sizes& sizes) {
  Draws draws(ops, dtype, is_reference, kSeed);
  std::vector<at::Tensor> results = operation.run(draws, sizes);
  for (at::Tensor& result : results) result = device::to_host(result).contiguous();
  return results;
}

// Counts elements that are further from the reference's than the tolerance and one rounding allow. An id is right or
// not.
Comparison compare(const at::Tensor& got, const at::Tensor& want, double tolerance) {
  const bool is_exact = !got.is_floating_point();
  const at::Tensor a = got.to(at::kDouble).flatten(), b = want.to(at::kDouble).flatten();
  const double largest = std::max(b.abs().max().item<double>(), 1e-3);
  const double rounding = got.scalar_type() == at::kBFloat16 ? 0x1.0p-8 : 0.0;
  Comparison result{.compared = a.numel()};
  const auto *const x = a.const_data_ptr<double>(), *const y = b.const_data_ptr<double>();
  for (int64_t i = 0; i < a.numel(); ++i) {
    const double error = std::abs(x[i] - y[i]);
    const double allowed = is_exact ? 0.0 : tolerance * largest + rounding * std::abs(y[i]);
    if (error <= allowed) continue;  // false for NaN
    ++result.different;
    result.largest = std::max(result.largest, std::isnan(error) ? INFINITY : error);
  }
  return result;
}

}  // namespace

Comparison compare_bits(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = device::to_host(a).contiguous(), y = device::to_host(b).contiguous();
  Comparison result{.compared = x.numel()};
  const auto size = static_cast<size_t>(x.element_size());
  const auto *const left = static_cast<const char*>(x.const_data_ptr()), *const right = static_cast<const char*>(
                                                                             y.const_data_ptr());
  for (size_t i = 0; i < static_cast<size_t>(x.numel()); ++i) {
    if (std::equal(left + i * size, left + (i + 1) * size, right + i * size)) continue;
    ++result.different;
  }
  if (result.different > 0) result.largest = x.to(at::kDouble).sub(y.to(at::kDouble)).abs().max().item<double>();
  return result;
}

void ask_numbers(const device::Ops& ops, Answers& answers) {
  const std::unique_ptr<device::Ops> reference = device::make_cpu_ops("scalar", /*num_threads=*/0);
  answers.begin("numbers");
  for (const Operation& operation : operations()) {
    for (const at::ScalarType dtype : kDtypes) {
      const double tolerance = dtype == at::kFloat ? operation.tolerance : operation.bfloat16_tolerance;
      Comparison numbers;
      for (const Sizes& sizes : {kOddSizes, kFullSizes}) {
        const std::vector<at::Tensor> got = run(operation, ops, dtype, /*is_reference=*/false, sizes);
        const std::vector<at::Tensor> want = run(operation, *reference, dtype, /*is_reference=*/true, sizes);
        for (size_t i = 0; i < got.size(); ++i) numbers += compare(got[i], want[i], tolerance);
      }
      answers.answer(fmt::format("{}, {}", operation.name, dtype == at::kFloat ? "float32" : "bfloat16"), numbers);
    }
  }
}

void ask_repeats(const device::Ops& ops, Answers& answers) {
  answers.begin("repeat");
  for (const Operation& operation : operations()) {
    Comparison bits;
    for (const at::ScalarType dtype : kDtypes) {
      const std::vector<at::Tensor> first = run(operation, ops, dtype, /*is_reference=*/false, kFullSizes);
      const std::vector<at::Tensor> again = run(operation, ops, dtype, /*is_reference=*/false, kFullSizes);
      for (size_t i = 0; i < first.size(); ++i) bits += compare_bits(first[i], again[i]);
    }
    answers.answer(fmt::format("{}, called again", operation.name), bits);
  }
}

}  // namespace tandem::device_check
