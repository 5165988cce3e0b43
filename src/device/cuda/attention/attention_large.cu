// The kernel of attention for large items on Hopper (compute capability 9.0): many rows, whose keys are read once for
// 128 rows, products by warpgroups, copies by TMA. Its sums are those of attention_softmax.cuh, so its bits are those
// of attention.cu: a product of a warpgroup has the bits of the same product of a warp.
//
// An item walks the units of part 0, then those of part 1, and so on: so it needs one set of sums at a time, and folds
// them where a part ends. Four units of 32 keys (two of 64) are a tile of 128 keys, whatever parts they are of.
#include <cuda_bf16.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "device/cuda/attention/attention.h"
#include "device/cuda/attention/attention_large_consumer.cuh"
#include "device/cuda/attention/attention_large_loads.cuh"
#include "device/cuda/attention/attention_softmax.cuh"
#include "device/cuda/gpu_limits.h"
#include "device/cuda/tensor_map.h"

namespace tandem::device::cuda {
namespace large {
namespace {

template <uint32_t kHeadDim, bool kPadded>
__global__ __launch_bounds__(kThreads, 1) void large_attention_kernel(const __grid_constant__ Params params) {
  extern __shared__ __align__(kSwizzledRows) uint8_t shared_memory[];
  auto& storage = reinterpret_cast<Storage<kHeadDim>&>(shared_memory);
  constexpr uint32_t kWarps = kConsumers * kGroup / 32;
  if (threadIdx.x == 0) {
    storage.q_there.init(1);
    storage.q_free.init(kWarps);
    for (uint32_t i = 0; i < kItems; ++i) {
      storage.items_there[i].init(1);
      storage.items_free[i].init(kWarps + 2);
    }
    for (uint32_t s = 0; s < kStages; ++s) {
      storage.keys_there[s].init(1);
      storage.values_there[s].init(1);
      storage.keys_free[s].init(kWarps);
      storage.values_free[s].init(kWarps);
    }
    show_to_products();
  }
  __syncthreads();
  if (threadIdx.x / kGroup == kConsumers) {
    give_registers<40>();
    const uint32_t warp = threadIdx.x % kGroup / 32;
    if (warp == 0) load_queries(params, storage);
    if (warp == 1) load_tiles<kHeadDim, kPadded, false>(params, storage);
    if (warp == 2) load_tiles<kHeadDim, kPadded, true>(params, storage);
  } else {
    take_registers<232>();
    Consumer<kHeadDim, kPadded>(params, storage).compute_items();
  }
}

template <uint32_t kHeadDim, bool kPadded>
cudaError_t launch_kernel(const Params& params, cudaStream_t stream) {
  constexpr int kSharedBytes = sizeof(Storage<kHeadDim>);
  static_assert(kSharedBytes <= large_attention_shared_bytes(kHeadDim));
  const cudaError_t status = cudaFuncSetAttribute(large_attention_kernel<kHeadDim, kPadded>,
                                                  cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  if (status != cudaSuccess) return status;
  const auto blocks =
      std::min(static_cast<uint32_t>(gpu_limits().multiprocessors), params.num_items * params.num_kv_heads);
  large_attention_kernel<kHeadDim, kPadded><<<blocks, kThreads, kSharedBytes, stream>>>(params);
  return cudaGetLastError();
}

template <uint32_t kHeadDim>
cudaError_t launch(const Params& params, cudaStream_t stream) {
  return params.head_dim == kHeadDim ? launch_kernel<kHeadDim, false>(params, stream)
                                     : launch_kernel<kHeadDim, true>(params, stream);
}

}  // namespace
}  // namespace large

bool computes_large_items(int64_t head_dim) { return runs_large_attention(gpu_limits(), head_dim); }

cudaError_t attention_of_large_items(const AttentionForward& call, cudaStream_t stream) {
  const AttentionWork& work = call.work;
  const PagedKv& kv = call.kv;
  const auto heads = static_cast<uint64_t>(call.num_heads), kv_heads = static_cast<uint64_t>(kv.num_kv_heads),
             head_dim = static_cast<uint64_t>(kv.head_dim), group = heads / kv_heads;
  large::Params params = {.q = {},
                          .kv = {},
                          .kv_data = static_cast<const __nv_bfloat16*>(kv.data),
                          .block_stride = static_cast<size_t>(kv.block_stride),
                          .o = static_cast<__nv_bfloat16*>(call.out_THK),
                          .lse = call.lse_TH,
                          .scale_log2 = static_cast<float>(kLog2E / std::sqrt(static_cast<double>(head_dim))),
                          .group = static_cast<uint32_t>(group),
                          .num_kv_heads = static_cast<uint32_t>(kv_heads),
                          .num_items = static_cast<uint32_t>(work.num_large_items),
                          .item_row = call.words + work.item_row,
                          .item_rows = call.words + work.item_rows,
                          .item_tile = call.words + work.item_tile,
                          .row_keys = call.words + work.row_keys,
                          .row_page = call.words + work.row_page,
                          .table = call.words + work.table,
                          .next_item = call.words + work.counters,
                          .num_done = call.words + work.counters + 1,
                          .head_dim = static_cast<uint32_t>(head_dim),
                          .window = keys_of_window(call.window)};
  const auto num_rows = static_cast<uint64_t>(work.num_rows), num_blocks = static_cast<uint64_t>(kv.num_blocks);
  const bool is_described =
      describe_tensor(params.q, call.q_THK, {head_dim, heads, num_rows}, {head_dim * 2, heads * head_dim * 2},
                      {64, static_cast<uint32_t>(group), large::kRows / static_cast<uint32_t>(group)}) &&
      describe_tensor(params.kv, kv.data, {head_dim, 2 * kv_heads * large::kPage, num_blocks},
                      {head_dim * 2, static_cast<uint64_t>(kv.block_stride) * 2}, {64, large::kPage, 1});
  if (!is_described) return cudaErrorInvalidValue;
  switch (head_width(kv.head_dim)) {
    case 64: return large::launch<64>(params, stream);
    case 128: return large::launch<128>(params, stream);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace tandem::device::cuda
