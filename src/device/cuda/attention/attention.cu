// The kernel of attention for all rows and all GPUs: a loop of our own over keys, put together from the parts of
// FlashInfer's paged kernel (Ye et al. 2025), whose softmax is that of attention_softmax.cuh.
#include <cuda_bf16.h>

#include <cmath>

#include "device/cuda/attention/attention.h"
#include "device/cuda/attention/attention_items.cuh"
#include "device/cuda/attention/attention_softmax.cuh"
#include "device/cuda/kernel_choice.h"
#include "device/cuda/launch.cuh"

namespace tandem::device::cuda {
namespace {

constexpr uint32_t kWarps = kParts;               // warps of a block, each with its own part of every step's keys
constexpr int64_t kMaxOffset = int64_t{1} << 32;  // end of the kernel's 32 bit offsets

// Each warp has this shared memory. It holds the keys and values of a step while the warp walks them, and at the end
// the warp's sums, which the other warps read.
template <uint32_t kHeadDim>
union WarpStorage {
  struct {
    alignas(128) __nv_bfloat16 keys[kUnitTiles<kHeadDim> * 16 * kHeadDim];
    alignas(128) __nv_bfloat16 values[kUnitTiles<kHeadDim> * 16 * kHeadDim];
  };
  struct {
    float out[kHeadDim / 16][32][8];
    float2 reference_sum[2][8];
  } sums;
};
template <uint32_t kHeadDim>
struct BlockStorage {
  alignas(128) __nv_bfloat16 q[kTile * kHeadDim];
  WarpStorage<kHeadDim> warps[kWarps];
};

// A block has an item and a KV head. Its warps walk the keys, each its own part of every step, and none waits for
// another before all have walked; then their four sums become one.
template <uint32_t kHeadDim, bool kPadded>
__global__ __launch_bounds__(32 * kWarps, attention_blocks_at_once(kHeadDim)) void attention_kernel(
    const __grid_constant__ ItemParams params) {
  using T = Traits<kHeadDim>;
  using Loader = UnitLoader<kHeadDim, kPadded>;
  namespace fi = flashinfer;
  namespace cp_async = flashinfer::cp_async;
  constexpr uint32_t kStep = Loader::kStep, kRow = Loader::kRow;
  static_assert(T::NUM_WARPS == kWarps && T::NUM_WARPS_Q == 1 && T::NUM_MMA_Q == 1);

  extern __shared__ __align__(128) uint8_t shared_memory[];
  auto& storage = reinterpret_cast<BlockStorage<kHeadDim>&>(shared_memory);
  let_next_begin();
  const Walk walk(params);
  if (walk.first_row < 0) return wait_for_inputs();
  const uint32_t lane = threadIdx.x, warp = threadIdx.y, kv_head = blockIdx.z;
  auto& own = storage.warps[warp];

  fi::smem_t<T::SWIZZLE_MODE_Q> q_tile(storage.q);
  fi::smem_t<T::SWIZZLE_MODE_KV> key_tile(own.keys), value_tile(own.values);
  uint32_t q_read = q_tile.template get_permuted_offset<kRow>(lane % 16, lane / 16);
  uint32_t key_read = key_tile.template get_permuted_offset<kRow>(8 * (lane / 16) + lane % 8, (lane % 16) / 8);
  uint32_t value_read = value_tile.template get_permuted_offset<kRow>(lane % 16, lane / 16);

  const Loader loader(params, kv_head, warp, lane);
  const TileRows rows(params, walk, lane);
  Walk::Step step = walk.first(params.group_size, rows.first_of_all, kStep);
  const typename Loader::Unit first = loader.look_up(step);
  typename Loader::Unit next = loader.look_up(walk.after(step, kStep));
  wait_for_inputs();
  if (warp == 0) loader.load_queries(q_tile, walk, gridDim.z);
  cp_async::commit_group();
  loader.load_keys(key_tile, first);
  cp_async::commit_group();
  loader.load_values(value_tile, first);
  cp_async::commit_group();

  float scores[1][T::NUM_MMA_KV][8], reference[2] = {kNoKey, kNoKey}, sum[1][2] = {};
  alignas(16) float out[1][T::NUM_MMA_D_VO_TILE][8] = {};
  cp_async::wait_group<2>();
  __syncthreads();  // q is there

#pragma unroll 1
  while (step.is_left()) {
    cp_async::wait_group<1>();
    __syncwarp();
    fi::compute_qk<T>(&q_tile, &q_read, &key_tile, &key_read, /*k_sf_smem=*/nullptr, lane, scores);
    __syncwarp();
    loader.load_keys(key_tile, next);
    cp_async::commit_group();
    rows.mask(step, loader.first_key(), scores);
    const float2 largest = largest_of_unit(params.scale_log2, scores);
    const float factor[2] = {move_reference(reference[0], largest.x), move_reference(reference[1], largest.y)};
    const float2 weights = weigh(params.scale_log2, reference, scores);
    sum[0][0] = sum[0][0] * factor[0] + weights.x;
    sum[0][1] = sum[0][1] * factor[1] + weights.y;
    // A vote pays for a unit of 64 keys, and for sums of 256 columns. Otherwise it takes longer than to multiply by 1.
    constexpr bool kVotes = T::NUM_MMA_KV == 4 || T::NUM_MMA_D_VO_TILE == 16;
    if (!kVotes || !__all_sync(kEveryLane, factor[0] == 1.0F && factor[1] == 1.0F)) rescale(out[0], factor);

    cp_async::wait_group<1>();
    __syncwarp();
    fi::compute_sfm_v<T>(&value_tile, &value_read, /*v_sf_smem=*/nullptr, lane, scores, out, sum);
    __syncwarp();
    loader.load_values(value_tile, next);
    cp_async::commit_group();

    step = next.step;
    next = loader.look_up(walk.after(step, kStep));
  }
  cp_async::wait_group<0>();
  __syncwarp();

  sum[0][0] = sum_of_four(sum[0][0]);
  sum[0][1] = sum_of_four(sum[0][1]);
#pragma unroll
  for (uint32_t i = 0; i < T::NUM_MMA_D_VO_TILE; ++i) fi::vec_t<float, 8>::memcpy(own.sums.out[i][lane], out[0][i]);
  if (lane % 4 == 0) {
#pragma unroll
    for (uint32_t j = 0; j < 2; ++j) own.sums.reference_sum[j][lane / 4] = make_float2(reference[j], sum[0][j]);
  }
  __syncthreads();

  // Folds the four sums, in their order. Each warp has a quarter of the columns.
  const ItemOutput output(params, rows, walk, kv_head, gridDim.z);
  const FoldedRows folded([&](uint32_t w, uint32_t j) { return storage.warps[w].sums.reference_sum[j][lane / 4]; });
  if (warp == 0) output.write_log_sums(folded);
  constexpr uint32_t kQuarter = T::NUM_MMA_D_VO_TILE / kWarps;
#pragma unroll
  for (uint32_t q = 0; q < kQuarter; ++q) {
    const uint32_t i = warp * kQuarter + q;
    float values[8] = {};
#pragma unroll
    for (uint32_t w = 0; w < kWarps; ++w) {
      fi::vec_t<float, 8> part;
      part.load(storage.warps[w].sums.out[i][lane]);
#pragma unroll
      for (uint32_t r = 0; r < 8; ++r) {
        const Folded::Factors factor = folded.factors[r % 4 / 2][w];
        values[r] = values[r] * factor.folded + part[r] * factor.part;
      }
    }
#pragma unroll
    for (uint32_t r = 0; r < 8; r += 2) {
      const uint32_t j = r % 4 / 2;
      output.template write<kPadded>(j, 2 * i + r / 4, loader.head_dim(), finished(values[r], folded.reciprocal[j]),
                                     finished(values[r + 1], folded.reciprocal[j]));
    }
  }
}

template <uint32_t kHeadDim, bool kPadded>
cudaError_t launch_kernel(const ItemParams& params, int64_t num_items, int64_t num_kv_heads, cudaStream_t stream) {
  static_assert(!Traits<kHeadDim>::IsInvalid());
  constexpr int kSharedBytes = sizeof(BlockStorage<kHeadDim>);
  static_assert(kSharedBytes == attention_shared_bytes(kHeadDim) && kSharedBytes <= kLeastSharedBytes);
  const auto kernel = attention_kernel<kHeadDim, kPadded>;
  const cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  if (status != cudaSuccess) return status;
  const dim3 grid(static_cast<uint32_t>(num_items), 1, static_cast<uint32_t>(num_kv_heads)), block(32, kWarps);
  return launch_dependent(kernel, num_items, grid, block, kSharedBytes, stream, params);
}

}  // namespace

cudaError_t attention_forward(const AttentionForward& call, cudaStream_t stream) {
  const AttentionWork& work = call.work;
  const int64_t heads = call.num_heads, kv_heads = call.kv.num_kv_heads, head_dim = call.kv.head_dim;
  if (!supports_attention(head_dim, heads, kv_heads) || work.num_rows * heads * head_dim >= kMaxOffset ||
      work.num_sequences * work.max_blocks * kBlockTokens >= kMaxOffset / 2 || call.kv.block_stride >= kMaxOffset ||
      work.heads != AttentionHeads{heads / kv_heads, kv_heads, head_dim}) {
    return cudaErrorInvalidValue;
  }
  const int64_t large = work.num_large_items;
  if (large > 0) {
    const cudaError_t status = call.refillable ? cudaErrorInvalidValue : attention_of_large_items(call, stream);
    if (status != cudaSuccess) return status;
  }
  const int64_t num_items = call.refillable ? work.num_rows : work.num_items - large;
  if (num_items == 0) return cudaSuccess;

  auto* const keys = static_cast<__nv_bfloat16*>(call.kv.data);
  const ItemParams params = {.q = static_cast<__nv_bfloat16*>(const_cast<void*>(call.q_THK)),
                             .o = static_cast<__nv_bfloat16*>(call.out_THK),
                             .lse = call.lse_TH,
                             .keys = keys,
                             .values = keys + kv_heads * kBlockTokens * head_dim,
                             .block_stride = static_cast<size_t>(call.kv.block_stride),
                             .head_dim = static_cast<uint32_t>(head_dim),
                             .group_size = flashinfer::uint_fastdiv(static_cast<uint32_t>(heads / kv_heads)),
                             .scale_log2 = static_cast<float>(kLog2E / std::sqrt(static_cast<double>(head_dim))),
                             .window = keys_of_window(call.window),
                             .item_row = call.words + work.item_row + large,
                             .item_rows = call.words + work.item_rows + large,
                             .item_tile = call.words + work.item_tile + large,
                             .item_shared = call.words + work.item_shared + large,
                             .row_keys = call.words + work.row_keys,
                             .row_page = call.words + work.row_page,
                             .table = call.words + work.table};
  if (computes_few_items(head_dim, num_items, kv_heads)) {
    return attention_of_few_items(params, num_items, kv_heads, stream);
  }
  return launch_for_head(params.head_dim, [&](auto width, auto is_padded) {
    return launch_kernel<width(), is_padded()>(params, num_items, kv_heads, stream);
  });
}

}  // namespace tandem::device::cuda
