// attention_forward(): a loop of our own over keys, put together from the parts of FlashInfer's paged kernel (Ye et al.
// 2025). Compile with -fmad=false: contracted, the factor by which FlashInfer rescales a row whose maximum stays is 2
// to a rounding error, not 1.
#include <cuda_bf16.h>

#include <cmath>
#include <flashinfer/attention/prefill.cuh>

#include "device/block.h"
#include "device/cuda/attention.h"

namespace tandem::device::cuda {
namespace {

constexpr uint32_t kTile = kAttentionTile, kEveryLane = 0xffffffff;
constexpr int32_t kBlock = kBlockTokens;
constexpr double kLog2E = 1.4426950408889634074, kLn2 = 0.69314718055994530942;
constexpr int64_t kMaxOffset = int64_t{1} << 32;  // of the kernel's 32 bit offsets

struct Params {
  __nv_bfloat16 *q, *o;
  float* lse;
  __nv_bfloat16 *keys, *values;  // of block 0
  size_t block_stride;
  flashinfer::uint_fastdiv group_size;
  float scale_log2;                                               // scores are powers of two
  const int32_t *item_row, *item_rows, *item_tile, *item_shared;  // as in AttentionWork
  const int32_t *row_keys, *row_page, *table;
};

// FlashInfer's parts are templates over a variant of attention, of which they read these two members.
struct Variant {
  static constexpr bool use_softmax = true;
  float sm_scale_log2;
};

// A score that is not finite becomes NaN, and so does its row: the maximum would hide -infinity as if there were no
// such key. Other scores keep their bits.
__device__ __forceinline__ float finite_or_nan(float score) { return __fmaf_rn(score, 0.0F, score); }

// Keys of a step, by head dim: 4 warps of 32 or 64 keys. Pinned, because FlashInfer's launcher would ask the GPU how
// much shared memory it has, and sums would depend on that. 64 KiB of keys and values in flight either way.
template <uint32_t kHeadDim>
constexpr uint32_t kWarpKeyTiles = kHeadDim == 64 ? 4 : 2;

template <uint32_t kHeadDim>
using Traits =
    flashinfer::KernelTraits<flashinfer::MaskMode::kCausal, kTile, flashinfer::get_num_mma_q(kTile),
                             kWarpKeyTiles<kHeadDim>, kHeadDim / 16, kHeadDim / 16, flashinfer::get_num_warps_q(kTile),
                             flashinfer::get_num_warps_kv(kTile), flashinfer::PosEncodingMode::kNone, __nv_bfloat16,
                             __nv_bfloat16, __nv_bfloat16, float, int32_t, Variant>;

// An item's rows, and the steps of keys that they walk. Of a run: its keys from position 0 to the last that the tile
// sees. Of sequences that begin alike: the keys that they share, then what each row has alone.
class Walk {
 public:
  struct Step {
    int32_t begin, end;  // its first position, and where the keys end that are walked from here
    int32_t page;        // where their sequence begins in the table
    int32_t owner;       // the row that alone sees them; -1: rows see them by position
    __device__ bool is_left() const { return begin < end; }
  };

  __device__ explicit Walk(const Params& params)
      : first_row(params.item_row[blockIdx.x]),
        num_rows(params.item_rows[blockIdx.x]),
        tile(params.item_tile[blockIdx.x]),
        shared_(params.item_shared[blockIdx.x]) {
    if (first_row < 0) return;
    // Lane i keeps what belongs to row i where each row walks by itself, else all what belongs to the last row.
    const int32_t last = num_rows - 1;
    const int32_t row = first_row + (shared_ > 0 ? min(static_cast<int32_t>(threadIdx.x), last) : last);
    keys_ = params.row_keys[row];
    page_ = params.row_page[row];
  }

  // Rows up to here are asked for, of those that the tile has.
  __device__ int32_t end_row(uint32_t group) const {
    return min(num_rows, static_cast<int32_t>((tile + 1) * kTile + group - 1) / static_cast<int32_t>(group));
  }

  __device__ Step first(uint32_t group) const {
    const int32_t end = shared_ > 0 ? shared_ : keys_ - num_rows + end_row(group);
    return {.begin = 0, .end = max(end, 0), .page = __shfl_sync(kEveryLane, page_, 0), .owner = -1};
  }

  __device__ Step after(Step step, int32_t num_keys) const {
    step.begin += num_keys;
    while (!step.is_left() && shared_ > 0 && step.owner + 1 < num_rows) {
      ++step.owner;
      step.begin = shared_;
      step.end = __shfl_sync(kEveryLane, keys_, step.owner);
      step.page = __shfl_sync(kEveryLane, page_, step.owner);
    }
    return step;
  }

  // How many positions of a step's keys a row sees, counted from 0.
  __device__ int32_t visible(const Step& step, int32_t row) const {
    if (step.owner >= 0) return row == step.owner ? step.end : 0;
    return shared_ > 0 ? shared_ : keys_ - num_rows + 1 + row;
  }

  int32_t first_row, num_rows, tile;

 private:
  int32_t shared_, keys_ = 0, page_ = 0;
};

template <uint32_t kHeadDim>
__global__ __launch_bounds__(Traits<kHeadDim>::NUM_THREADS) void attention_kernel(
    const __grid_constant__ Params params) {
  using T = Traits<kHeadDim>;
  namespace fi = flashinfer;
  namespace cp_async = flashinfer::cp_async;
  constexpr uint32_t kStep = T::CTA_TILE_KV, kBlocks = kStep / kBlock, kRow = kHeadDim / 8;  // in 16 bytes
  static_assert(kStep == attention_step(kHeadDim));
  static_assert(T::NUM_WARPS_Q == 1 && T::NUM_MMA_Q == 1 && T::NUM_WARPS * T::KV_THR_LAYOUT_ROW == kBlock,
                "the warps load a block at a time");

  extern __shared__ __align__(128) uint8_t shared_memory[];
  auto& storage = reinterpret_cast<typename T::SharedStoragePaged&>(shared_memory);
  const Walk walk(params);
  if (walk.first_row < 0) return;
  const uint32_t lane = threadIdx.x, warp = threadIdx.z, kv_head = blockIdx.z;
  const uint32_t group = params.group_size, num_heads = gridDim.z * group, packed_begin = walk.tile * kTile;
  const size_t first_head = size_t{static_cast<uint32_t>(walk.first_row)} * num_heads + kv_head * group;

  const Variant variant{params.scale_log2};
  float scores[1][T::NUM_MMA_KV][8], maximum[1][2], sum[1][2];
  alignas(16) float out[1][T::NUM_MMA_D_VO_TILE][8];
  fi::init_states<T>(variant, out, maximum, sum);

  fi::smem_t<T::SWIZZLE_MODE_Q> q_tile(storage.q_smem);
  fi::smem_t<T::SWIZZLE_MODE_KV> key_tile(storage.k_smem), value_tile(storage.v_smem);
  fi::load_q_global_smem<T>(packed_begin, walk.end_row(group), params.q + first_head * kHeadDim, num_heads * kHeadDim,
                            kHeadDim, params.group_size, &q_tile);
  cp_async::commit_group();

  const uint32_t key_in_warp = warp * T::NUM_MMA_KV * 16;
  uint32_t q_read = q_tile.template get_permuted_offset<kRow>(lane % 16, lane / 16);
  uint32_t key_read =
      key_tile.template get_permuted_offset<kRow>(key_in_warp + 8 * (lane / 16) + lane % 8, (lane % 16) / 8);
  uint32_t value_read = value_tile.template get_permuted_offset<kRow>(key_in_warp + lane % 16, lane / 16);
  const uint32_t token = warp * T::KV_THR_LAYOUT_ROW + lane / T::KV_THR_LAYOUT_COL;
  uint32_t key_write = key_tile.template get_permuted_offset<kRow>(token, lane % T::KV_THR_LAYOUT_COL);
  uint32_t value_write = key_write;
  const size_t in_block = (kv_head * kBlock + token) * kHeadDim + lane % T::KV_THR_LAYOUT_COL * 8;

  size_t offsets[kBlocks];  // of what this thread loads
  const auto look_up = [&](const Walk::Step& step) {
#pragma unroll
    for (uint32_t b = 0; b < kBlocks; ++b) {
      const int32_t position = step.begin + static_cast<int32_t>(b) * kBlock;
      const int32_t block = position < step.end ? __ldg(params.table + step.page + position / kBlock) : 0;
      offsets[b] = static_cast<uint32_t>(block) * params.block_stride + in_block;
    }
  };
  // Positions past step.end are not loaded: in shared memory their keys stay those of an earlier step, and their values
  // become 0.
  const auto load_keys = [&](const Walk::Step& step) {
    fi::page_produce_kv<false, T>(&storage, &key_write, params.keys, step.begin, offsets, step.end, warp, lane);
    cp_async::commit_group();
  };
  const auto load_values = [&](const Walk::Step& step) {
    fi::page_produce_kv<true, T>(&storage, &value_write, params.values, step.begin, offsets, step.end, warp, lane);
    cp_async::commit_group();
  };

  uint32_t row[2], head[2];  // of what this thread holds of scores and out
#pragma unroll
  for (uint32_t j = 0; j < 2; ++j) params.group_size.divmod(packed_begin + lane / 4 + 8 * j, row[j], head[j]);
  const int32_t tile_row = packed_begin / group;  // the first one, which sees the fewest keys of a run

  Walk::Step step = walk.first(group);
  look_up(step);
  load_keys(step);
  load_values(step);
#pragma unroll 1
  while (step.is_left()) {
    const Walk::Step next = walk.after(step, kStep);
    look_up(next);
    cp_async::wait_group<1>();
    __syncthreads();

    fi::compute_qk<T>(&q_tile, &q_read, &key_tile, &key_read, /*k_sf_smem=*/nullptr, lane, scores);
    const bool all_seen = step.owner < 0 && step.begin + static_cast<int32_t>(kStep) <= walk.visible(step, tile_row);
    if (all_seen) {
#pragma unroll
      for (uint32_t i = 0; i < T::NUM_MMA_KV; ++i) {
#pragma unroll
        for (uint32_t r = 0; r < 8; ++r) scores[0][i][r] = finite_or_nan(scores[0][i][r]);
      }
    } else {
      const int32_t visible[2] = {walk.visible(step, row[0]), walk.visible(step, row[1])};
#pragma unroll
      for (uint32_t i = 0; i < T::NUM_MMA_KV; ++i) {
#pragma unroll
        for (uint32_t r = 0; r < 8; ++r) {
          const int32_t position = step.begin + key_in_warp + i * 16 + 2 * (lane % 4) + 8 * (r / 4) + r % 2;
          scores[0][i][r] = position < visible[r % 4 / 2] ? finite_or_nan(scores[0][i][r]) : -fi::math::inf;
        }
      }
    }
    fi::update_mdo_states<T>(variant, scores, out, maximum, sum);

    __syncthreads();
    load_keys(next);
    cp_async::wait_group<1>();
    __syncthreads();

    fi::compute_sfm_v<T>(&value_tile, &value_read, /*v_sf_smem=*/nullptr, lane, scores, out, sum);

    __syncthreads();
    load_values(next);
    step = next;
  }
  cp_async::wait_group<0>();
  __syncthreads();

  fi::finalize_m<T>(variant, maximum);
  fi::threadblock_sync_mdo_states<T>(out, &storage, maximum, sum, warp, lane);
#pragma unroll
  for (uint32_t j = 0; j < 2; ++j) {
    const float scale = maximum[0][j] != -fi::math::inf ? fi::math::ptx_rcp(sum[0][j]) : 0.0F;
#pragma unroll
    for (uint32_t i = 0; i < T::NUM_MMA_D_VO_TILE; ++i) {
#pragma unroll
      for (uint32_t r = 0; r < 8; ++r) {
        if (r % 4 / 2 == j) out[0][i][r] *= scale;
      }
    }
    if (params.lse != nullptr && warp == 0 && lane % 4 == 0 && row[j] < static_cast<uint32_t>(walk.num_rows)) {
      params.lse[first_head + size_t{row[j]} * num_heads + head[j]] =
          (fi::math::ptx_log2(sum[0][j]) + maximum[0][j]) * static_cast<float>(kLn2);
    }
  }
  fi::write_o_reg_gmem<T>(out, &q_tile, params.o + first_head * kHeadDim, packed_begin, walk.num_rows,
                          num_heads * kHeadDim, kHeadDim, params.group_size);
}

template <uint32_t kHeadDim>
cudaError_t launch(const Params& params, int64_t num_items, int64_t num_kv_heads, cudaStream_t stream) {
  static_assert(!Traits<kHeadDim>::IsInvalid());
  constexpr int kSharedBytes = sizeof(typename Traits<kHeadDim>::SharedStoragePaged);
  const cudaError_t status =
      cudaFuncSetAttribute(attention_kernel<kHeadDim>, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  if (status != cudaSuccess) return status;
  const dim3 grid(static_cast<uint32_t>(num_items), 1, static_cast<uint32_t>(num_kv_heads));
  const dim3 block(32, Traits<kHeadDim>::NUM_WARPS_Q, Traits<kHeadDim>::NUM_WARPS_KV);
  attention_kernel<kHeadDim><<<grid, block, kSharedBytes, stream>>>(params);
  return cudaGetLastError();
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
  const int64_t num_items = call.refillable ? work.num_rows : work.num_items;
  if (num_items == 0) return cudaSuccess;

  auto* const keys = static_cast<__nv_bfloat16*>(call.kv.data);
  const Params params = {.q = static_cast<__nv_bfloat16*>(const_cast<void*>(call.q_THK)),
                         .o = static_cast<__nv_bfloat16*>(call.out_THK),
                         .lse = call.lse_TH,
                         .keys = keys,
                         .values = keys + kv_heads * kBlockTokens * head_dim,
                         .block_stride = static_cast<size_t>(call.kv.block_stride),
                         .group_size = flashinfer::uint_fastdiv(static_cast<uint32_t>(heads / kv_heads)),
                         .scale_log2 = static_cast<float>(kLog2E / std::sqrt(static_cast<double>(head_dim))),
                         .item_row = call.words + work.item_row,
                         .item_rows = call.words + work.item_rows,
                         .item_tile = call.words + work.item_tile,
                         .item_shared = call.words + work.item_shared,
                         .row_keys = call.words + work.row_keys,
                         .row_page = call.words + work.row_page,
                         .table = call.words + work.table};
  return head_dim == 64 ? launch<64>(params, num_items, kv_heads, stream)
                        : launch<128>(params, num_items, kv_heads, stream);
}

}  // namespace tandem::device::cuda
