// The kernel of attention where items are few, on Hopper (compute capability 9.0): the tail of a rollout, whose
// sequences are long, or a single one. attention.cu gives an item and KV head one block, whose four warps walk four
// parts of the keys one unit after the other; most of the GPU then waits for them. Here each part has a block of its
// own, in a cluster of four, and four warps walk four of the part's units at once. Each warp computes
//   the scores of its own unit;
//   the references of all four units, from their largest scores, as one warp would have found them in turn;
//   the weights of its own unit, which all four warps then read;
//   a quarter of the columns of the sum of values, unit after unit.
// So every sum has its terms in the order of attention_softmax.cuh, and its bits are those of attention.cu. At the end
// the blocks of a cluster send each other their sums, and each folds a quarter of the columns.
#include <cuda_bf16.h>

#include "device/cuda/attention/attention_items.cuh"
#include "device/cuda/gpu_limits.h"
#include "device/cuda/launch.cuh"
#include "device/cuda/warpgroups.cuh"

namespace tandem::device::cuda {
namespace {

constexpr uint32_t kWarps = 4;  // of a block: units that are walked at once

// A block's shared memory. With heads of 128 it leaves room for the product of few rows that follows, which reads its
// weight meanwhile (kFewRowsSharedBytes).
template <uint32_t kHeadDim>
struct Storage {
  static constexpr uint32_t kTiles = kUnitTiles<kHeadDim>;  // of 16 keys, in a unit
  static constexpr uint32_t kEights = kHeadDim / 8;         // of 8 columns
  union {
    alignas(128) __nv_bfloat16 keys[kWarps][kTiles * 16 * kHeadDim];
    // The blocks of the cluster fill this when all of them have walked: each sends its sums of this block's quarter of
    // the columns, and its sums of weights.
    struct {
      float4 columns[kParts][kEights / kParts][32];
      float2 reference_sum[kParts][2][8];
    } sums;
  };
  alignas(128) __nv_bfloat16 values[kWarps][kTiles * 16 * kHeadDim];
  union {
    alignas(128) __nv_bfloat16 q[kTile * kHeadDim];  // until each lane has its own part
    uint4 weights[kWarps][kTiles][32];               // in bfloat16, as each lane multiplies them
  };
  float2 sums_of_weights[kWarps][32];
  float largest[kWarps][2][8];
  Barrier sums_there;
};

// Names an address of this block's shared memory in another block of the cluster.
__device__ uint32_t address_in(uint32_t block, uint32_t address) {
  uint32_t there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(block));
  return there;
}
// Sends numbers to another block of the cluster, whose barrier counts their bytes.
__device__ void send(uint32_t block, const float4* to, float4 x, Barrier& arrives) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
                   address_in(block, shared_address(to))),
               "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w), "r"(address_in(block, arrives.address()))
               : "memory");
}
__device__ void send(uint32_t block, const float2* to, float2 x, Barrier& arrives) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(
                   address_in(block, shared_address(to))),
               "f"(x.x), "f"(x.y), "r"(address_in(block, arrives.address()))
               : "memory");
}

// Shows a barrier that was initialised to the blocks of the cluster that this one meets afterwards.
__device__ void show_to_cluster() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
// Tells the blocks of the cluster that this thread has come; wait_for_cluster() waits until all threads have. What
// others write to this block's shared memory after that is not seen by reads that this thread has done before. What
// this thread has written is not shown to others.
__device__ void come_to_cluster() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
__device__ void wait_for_cluster() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

__device__ uint32_t packed(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<const uint32_t&>(pair);
}

template <uint32_t kHeadDim, bool kPadded>
__global__ __cluster_dims__(1, kParts, 1)
    __launch_bounds__(32 * kWarps) void few_attention_kernel(const __grid_constant__ ItemParams params) {
  using T = Traits<kHeadDim>;
  using Loader = UnitLoader<kHeadDim, kPadded>;
  using Block = Storage<kHeadDim>;
  namespace fi = flashinfer;
  namespace cp_async = flashinfer::cp_async;
  constexpr uint32_t kStep = Loader::kStep, kRow = Loader::kRow, kTiles = Block::kTiles, kEights = Block::kEights;
  constexpr uint32_t kOwnTiles = kHeadDim / 16 / kWarps;  // of 16 columns, of each warp

  extern __shared__ __align__(128) uint8_t shared_memory[];
  auto& storage = reinterpret_cast<Block&>(shared_memory);
  let_next_begin();
  const Walk walk(params);
  if (walk.first_row < 0) return wait_for_inputs();
  const uint32_t lane = threadIdx.x, warp = threadIdx.y, part = blockIdx.y, kv_head = blockIdx.z;
  if (lane == 0 && warp == 0) {
    storage.sums_there.init(1);
    storage.sums_there.arrive_and_expect(sizeof(storage.sums));
    show_to_cluster();
  }

  fi::smem_t<T::SWIZZLE_MODE_Q> q_tile(storage.q);
  typename Loader::Tile key_tile(storage.keys[warp]), value_tile(storage.values[warp]);

  const Loader loader(params, kv_head, part, lane);
  const TileRows rows(params, walk, lane);
  const Walk::Step first = walk.first(params.group_size, rows.first_of_all, kStep);
  bool is_left = first.is_left();
  const auto further = [&](Walk::Step step, uint32_t steps) {
    for (uint32_t i = 0; i < steps; ++i) step = walk.after(step, kStep);
    return step;
  };
  typename Loader::Unit unit = loader.look_up(further(first, warp));
  typename Loader::Unit next = loader.look_up(further(unit.step, kWarps));
  wait_for_inputs();
  if (warp == 0) loader.load_queries(q_tile, walk, gridDim.z);
  cp_async::commit_group();
  loader.load_keys(key_tile, unit);
  cp_async::commit_group();
  loader.load_values(value_tile, unit);
  cp_async::commit_group();

  float reference[2] = {kNoKey, kNoKey}, sum[2] = {};
  float out[kOwnTiles][8] = {};
  uint32_t q[kHeadDim / 16][4];
  cp_async::wait_group<2>();
  __syncthreads();
#pragma unroll
  for (uint32_t d = 0; d < kHeadDim / 16; ++d) {
    q_tile.ldmatrix_m8n8x4(q_tile.template get_permuted_offset<kRow>(lane % 16, 2 * d + lane / 16), q[d]);
  }

  if (!is_left) {
    cp_async::wait_group<0>();  // zeros of padded heads, whose place the sums take
    come_to_cluster();
  }
#pragma unroll 1
  while (is_left) {
    cp_async::wait_group<1>();
    __syncwarp();
    float scores[1][kTiles][8] = {};
#pragma unroll
    for (uint32_t d = 0; d < kHeadDim / 16; ++d) {
#pragma unroll
      for (uint32_t i = 0; i < kTiles; ++i) {
        uint32_t b[4];
        key_tile.ldmatrix_m8n8x4(
            key_tile.template get_permuted_offset<kRow>(i * 16 + 8 * (lane / 16) + lane % 8, 2 * d + lane % 16 / 8), b);
        fi::mma::mma_sync_m16n16k16_row_col_f16f16f32<__nv_bfloat16>(scores[0][i], q[d], b);
      }
    }
    __syncwarp();
    if (next.step.is_left()) loader.load_keys(key_tile, next);
    cp_async::commit_group();
    rows.mask(unit.step, loader.first_key(), scores);
    const float2 largest = largest_of_unit(params.scale_log2, scores);
    if (lane % 4 == 0) {
      storage.largest[warp][0][lane / 4] = largest.x;
      storage.largest[warp][1][lane / 4] = largest.y;
    }
    is_left = __syncthreads_or(next.step.is_left());
    if (!is_left) come_to_cluster();  // whose sums may take the place of the keys from now on

    float factor[kWarps][2], own_reference[2];
    bool stays = true;
#pragma unroll
    for (uint32_t u = 0; u < kWarps; ++u) {
#pragma unroll
      for (uint32_t j = 0; j < 2; ++j) {
        factor[u][j] = move_reference(reference[j], storage.largest[u][j][lane / 4]);
        stays = stays && factor[u][j] == 1.0F;
        if (u == warp) own_reference[j] = reference[j];
      }
    }
    stays = __all_sync(kEveryLane, stays);
    storage.sums_of_weights[warp][lane] = weigh(params.scale_log2, own_reference, scores);
#pragma unroll
    for (uint32_t i = 0; i < kTiles; ++i) {
      const float(&w)[8] = scores[0][i];
      storage.weights[warp][i][lane] = {packed(w[0], w[1]), packed(w[2], w[3]), packed(w[4], w[5]), packed(w[6], w[7])};
    }
    cp_async::wait_group<1>();
    __syncthreads();  // weights and values of all units are there

#pragma unroll
    for (uint32_t u = 0; u < kWarps; ++u) {
      const float2 weights = storage.sums_of_weights[u][lane];
      sum[0] = sum[0] * factor[u][0] + weights.x;
      sum[1] = sum[1] * factor[u][1] + weights.y;
      if (!stays) rescale(out, factor[u]);
      typename Loader::Tile values(storage.values[u]);
#pragma unroll
      for (uint32_t i = 0; i < kTiles; ++i) {
        uint4 a = storage.weights[u][i][lane];
#pragma unroll
        for (uint32_t d = 0; d < kOwnTiles; ++d) {
          uint32_t b[4];
          values.ldmatrix_m8n8x4_trans(
              values.template get_permuted_offset<kRow>(i * 16 + lane % 16, 2 * (warp * kOwnTiles + d) + lane / 16), b);
          fi::mma::mma_sync_m16n16k16_row_col_f16f16f32<__nv_bfloat16>(out[d], &a.x, b);
        }
      }
    }
    __syncthreads();
    loader.load_values(value_tile, next);
    cp_async::commit_group();
    unit.step = next.step;
    next = loader.look_up(further(unit.step, kWarps));
  }
  cp_async::wait_group<0>();

  // Eight columns go to the block of their number modulo four, which folds them.
  wait_for_cluster();
#pragma unroll
  for (uint32_t d = 0; d < kOwnTiles; ++d) {
#pragma unroll
    for (uint32_t half = 0; half < 2; ++half) {
      const uint32_t eight = 2 * (warp * kOwnTiles + d) + half;
      const float* const x = out[d] + 4 * half;
      send(eight % kParts, &storage.sums.columns[part][eight / kParts][lane], {x[0], x[1], x[2], x[3]},
           storage.sums_there);
    }
  }
  // Every block needs the sums of weights. Four lanes have the same, and each tells one block.
  if (warp == 0) {
#pragma unroll
    for (uint32_t j = 0; j < 2; ++j) {
      send(lane % 4, &storage.sums.reference_sum[part][j][lane / 4], {reference[j], sum_of_four(sum[j])},
           storage.sums_there);
    }
  }
  storage.sums_there.wait(0);

  const ItemOutput output(params, rows, walk, kv_head, gridDim.z);
  const FoldedRows folded([&](uint32_t p, uint32_t j) { return storage.sums.reference_sum[p][j][lane / 4]; });
  if (part == 0 && warp == 0) output.write_log_sums(folded);
#pragma unroll
  for (uint32_t place = warp; place < kEights / kParts; place += kWarps) {
    float values[4] = {};
#pragma unroll
    for (uint32_t p = 0; p < kParts; ++p) {
      const float4 sums = storage.sums.columns[p][place][lane];
      const float part_of[4] = {sums.x, sums.y, sums.z, sums.w};
#pragma unroll
      for (uint32_t r = 0; r < 4; ++r) {
        values[r] = values[r] * folded.factors[r / 2][p].folded + part_of[r] * folded.factors[r / 2][p].part;
      }
    }
#pragma unroll
    for (uint32_t j = 0; j < 2; ++j) {
      output.template write<kPadded>(j, place * kParts + part, loader.head_dim(),
                                     finished(values[2 * j], folded.reciprocal[j]),
                                     finished(values[2 * j + 1], folded.reciprocal[j]));
    }
  }
}

template <uint32_t kHeadDim, bool kPadded>
cudaError_t launch_kernel(const ItemParams& params, int64_t num_items, int64_t num_kv_heads, cudaStream_t stream) {
  constexpr int kSharedBytes = sizeof(Storage<kHeadDim>);
  static_assert(kSharedBytes <= few_attention_shared_bytes(kHeadDim));
  const auto kernel = few_attention_kernel<kHeadDim, kPadded>;
  const cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  if (status != cudaSuccess) return status;
  const dim3 grid(static_cast<uint32_t>(num_items), kParts, static_cast<uint32_t>(num_kv_heads));
  return launch_dependent(kernel, num_items, grid, dim3(32, kWarps), kSharedBytes, stream, params);
}

}  // namespace

bool computes_few_items(int64_t head_dim, int64_t num_items, int64_t num_kv_heads) {
  return runs_few_attention(gpu_limits(), head_dim, num_items * num_kv_heads);
}

cudaError_t attention_of_few_items(const ItemParams& params, int64_t num_items, int64_t num_kv_heads,
                                   cudaStream_t stream) {
  return launch_for_head(params.head_dim, [&](auto width, auto is_padded) {
    return launch_kernel<width(), is_padded()>(params, num_items, num_kv_heads, stream);
  });
}

}  // namespace tandem::device::cuda
