#include "device/cuda/experts/grouped_products.h"

#include <ATen/ops/_grouped_mm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "base/check.h"
#include "base/log.h"
#include "device/cuda/device_buffer.h"
#include "device/cuda/products/ordered_product.h"

namespace tandem::device::cuda {
namespace {

using at::Tensor;
using Bf16 = __nv_bfloat16;

// Groups have 230 rows on average, which the library multiplies in its larger tile. As many groups more without a row
// make it 115: its smaller one.
constexpr int64_t kGroupRows[] = {500, 0, 1, 129, 7, 16, 1500, 64, 127, 65, 128};
constexpr int64_t kGroups = std::size(kGroupRows);
// The order of a kernel's sums does not depend on how many outputs there are.
constexpr int64_t kMostOutputs = 256;

void check(cudaError_t error) {
  TANDEM_ENV_CHECK(error == cudaSuccess, "a matrix product on the GPU failed:", cudaGetErrorString(error),
                   "; give --device cpu");
}

Tensor ends_of_groups(const Tensor& offsets_X1) { return offsets_X1.narrow(0, 1, offsets_X1.size(0) - 1); }

Tensor by_expert(const Tensor& w_XNK, const Tensor& offsets_X1) {
  const int64_t X = offsets_X1.size(0) - 1;
  return w_XNK.view({X, w_XNK.size(0) / X, w_XNK.size(1)});
}

// Returns whether the library gives ordered_product()'s bits in sums of so many terms.
bool covers(bool is_forward, int64_t outputs, int64_t depth, at::Device device) {
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream().stream();
  const int64_t rows = std::accumulate(std::begin(kGroupRows), std::end(kGroupRows), int64_t{0});
  const DeviceBuffer x(rows * depth * 2), w(2 * kGroups * outputs * depth * 2), want(rows * outputs * 2);
  const DeviceBuffer count(sizeof(unsigned long long));
  check(fill_cancelling(x.as<Bf16>(), depth, 1, rows, depth, 1, 1.0F, stream));
  const int64_t line_stride = is_forward ? depth : 1, depth_stride = is_forward ? 1 : outputs;
  const Tensor ends_host = at::empty({2 * kGroups + 1}, at::kInt);
  auto* const ends = ends_host.mutable_data_ptr<int32_t>();
  ends[0] = 0;
  for (int64_t group = 0; group < 2 * kGroups; ++group) {
    Bf16* const weights = w.as<Bf16>() + group * outputs * depth;
    check(fill_cancelling(weights, line_stride, depth_stride, outputs, depth, static_cast<uint32_t>(2 + group), -1.0F,
                          stream));
    const int64_t first = ends[group], here = group < kGroups ? kGroupRows[group] : 0;
    check(ordered_product({x.as<Bf16>() + first * depth, depth, 1}, {weights, line_stride, depth_stride}, nullptr,
                          want.as<Bf16>() + first * outputs, /*is_float32=*/false, here, outputs, depth, stream));
    ends[group + 1] = static_cast<int32_t>(first + here);
  }
  const Tensor offsets = ends_host.to(device);
  const auto options = at::TensorOptions(at::kBFloat16).device(device);
  const Tensor x_PK = at::from_blob(x.data(), {rows, depth}, options);
  check(cudaMemsetAsync(count.data(), 0, sizeof(unsigned long long), stream));
  for (const int64_t groups : {kGroups, 2 * kGroups}) {
    const int64_t N = is_forward ? outputs : depth, K = is_forward ? depth : outputs;
    const Tensor w_XNK = at::from_blob(w.data(), {groups * N, K}, options);
    const Tensor some = offsets.narrow(0, 0, groups + 1);
    const Tensor got =
        is_forward ? GroupedProducts::forward(x_PK, w_XNK, some) : GroupedProducts::grad_input(x_PK, w_XNK, some);
    check(count_differences(got.const_data_ptr(), want.data(), /*is_float32=*/false, rows * outputs,
                            count.as<unsigned long long>(), stream));
  }
  unsigned long long different = 0;
  check(cudaMemcpyAsync(&different, count.data(), sizeof different, cudaMemcpyDeviceToHost, stream));
  check(cudaStreamSynchronize(stream));
  return different == 0;
}

}  // namespace

bool GroupedProducts::is_exact(ProductKind kind, int64_t N, int64_t K, at::Device device) {
  const auto [found, is_new] = answers_.try_emplace({kind, N, K}, false);
  bool& answer = found->second;
  if (!is_new) return answer;
  const bool is_forward = kind == ProductKind::kForward;
  const int64_t outputs = is_forward ? N : K, depth = is_forward ? K : N;
  const std::string words =
      fmt::format("{} of experts of {} x {}", is_forward ? "the product" : "the gradient of the input", N, K);
  try {
    answer = covers(is_forward, std::min(outputs, kMostOutputs), depth, device);
    if (!answer) base::log_warning("LibTorch's kernel does not compute {} exactly: a slower one does", words);
  } catch (const c10::Error& error) {
    base::log_warning("LibTorch has no kernel for {} on this GPU: a slower one computes it ({})", words,
                      error.what_without_backtrace());
  }
  return answer;
}

Tensor GroupedProducts::forward(const Tensor& x_PK, const Tensor& w_XNK, const Tensor& offsets_X1) {
  return at::_grouped_mm(x_PK, by_expert(w_XNK, offsets_X1).transpose(1, 2), ends_of_groups(offsets_X1));
}

Tensor GroupedProducts::grad_input(const Tensor& dy_PN, const Tensor& w_XNK, const Tensor& offsets_X1) {
  return at::_grouped_mm(dy_PN, by_expert(w_XNK, offsets_X1), ends_of_groups(offsets_X1));
}

}  // namespace tandem::device::cuda
