// A block has a strip of kStrip rows of the weight for each of its warps but the last one, which copies: pieces of the
// strips and of x, kDepth terms each, pass through a ring in shared memory, where all warps read those of x. The weight
// is the wide side of each mma.sync, and each eight rows of x have a sum of their own, so that the products of a step
// do not wait for one another.
//
// A multiprocessor takes in its strips and all of x, some 50 bytes a nanosecond (bench/results/decode_gpu.md). So where
// a block has few strips, many rows are the library's, whose blocks share less.
#include "device/cuda/products/some_rows.h"

#include <algorithm>

#include "device/cuda/gpu_limits.h"
#include "device/cuda/launch.cuh"
#include "device/cuda/tensor_cores.cuh"
#include "device/cuda/tensor_map.h"
#include "device/cuda/vectors.cuh"
#include "device/cuda/warpgroups.cuh"

namespace tandem::device::cuda {
namespace {

using bf16 = __nv_bfloat16;

constexpr int kStrip = 16;                                    // rows of the weight that a warp has
constexpr int kColumns = static_cast<int>(kSwizzledRow) / 2;  // terms of a box
constexpr int kBoxes = 2, kDepth = kBoxes * kColumns;         // terms of a piece
constexpr int kSteps = kDepth / 16;                           // products of a piece, one after the other
constexpr int kMostWarps = 12;                                // of a block, beside the one that copies
constexpr int kMostSlots = 16, kFewestSlots = 3;              // pieces of a ring
constexpr int kBarrierBytes = 1024;                           // they come first in a block's shared memory
constexpr int64_t kRingBytes = kSomeRowsSharedBytes - kBarrierBytes;
static_assert(2 * kMostSlots * sizeof(Barrier) <= kBarrierBytes);

struct Params {
  CUtensorMap x, weight;  // [64, T, K / 64] and [64, N, K / 64]: a piece is one box of each
  int T, N, pieces, warps, slots;
  bool weight_is_old;
};

// Returns the element of a box where the sixteen bytes `n` of its row lie.
__device__ int box_at(int row, int n) { return row * kColumns + ((n ^ (row & 7)) << 3); }

// Holds what a warp multiplies in one step: sixteen terms of its strip, and of 8 kEights rows of x.
template <int kEights>
struct Operands {
  uint32_t weight[4], x[kEights / 2][4];

  // Step `s` of a piece whose boxes have `weight_rows` and eight kEights rows.
  __device__ void read(const bf16* weights, int weight_rows, const bf16* rows, int strip_row, int s) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp, box = s / (kSteps / kBoxes), n = s % (kSteps / kBoxes) * 2;
    read_matrices(weight, weights + box * weight_rows * kColumns + box_at(strip_row + lane % 16, n + lane / 16));
#pragma unroll
    for (int pair = 0; pair < kEights / 2; ++pair) {
      read_matrices(x[pair], rows + box * kEights * 8 * kColumns +
                                 box_at(pair * 16 + lane / 16 * 8 + lane % 8, n + lane / 8 % 2));
    }
  }
  __device__ void multiply(float (&sum)[kEights][4]) const {
#pragma unroll
    for (int pair = 0; pair < kEights / 2; ++pair) {
      multiply_add(sum[pair * 2], weight, x[pair]);
      multiply_add(sum[pair * 2 + 1], weight, x[pair] + 2);
    }
  }
};

template <int kEights, typename Out>
__global__ __launch_bounds__((kMostWarps + 1) * kWarp, 1) void some_rows_kernel(const __grid_constant__ Params p,
                                                                                const Out* added, Out* out) {
  extern __shared__ __align__(1024) std::byte memory[];
  Barrier* const is_full = reinterpret_cast<Barrier*>(memory);
  Barrier* const is_free = is_full + kMostSlots;
  bf16* const ring = reinterpret_cast<bf16*>(memory + kBarrierBytes);
  const int warp = __shfl_sync(~0U, static_cast<int>(threadIdx.x) / kWarp, 0);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int rows = p.warps * kStrip, weight_elements = rows * kDepth;
  const int piece_elements = weight_elements + kEights * 8 * kDepth;

  if (threadIdx.x == 0) {
    for (int slot = 0; slot < p.slots; ++slot) {
      is_full[slot].init(1);
      is_free[slot].init(static_cast<uint32_t>(p.warps));
    }
    show_to_products();
  }
  __syncthreads();

  if (warp == p.warps) {
    if (!is_elected()) return;
    const int first_row = static_cast<int>(blockIdx.x) * rows;
    const auto start_weights = [&](int piece, int slot) {
      is_full[slot].arrive_and_expect(static_cast<uint32_t>(piece_elements) * sizeof(bf16));
      copy_box(p.weight, 0, first_row, piece * kBoxes, shared_address(ring + slot * piece_elements), is_full[slot]);
    };
    const auto start_rows = [&](int piece, int slot) {
      copy_box(p.x, 0, 0, piece * kBoxes, shared_address(ring + slot * piece_elements + weight_elements),
               is_full[slot]);
    };
    const int at_first = min(p.slots, p.pieces);
    if (!p.weight_is_old) wait_for_inputs();
    for (int piece = 0; piece < at_first; ++piece) start_weights(piece, piece);
    wait_for_inputs();
    let_next_begin();
    for (int piece = 0; piece < at_first; ++piece) start_rows(piece, piece);
    int slot = 0;
    uint32_t parity = 0;
    for (int piece = at_first; piece < p.pieces; ++piece) {
      is_free[slot].wait(parity);
      start_weights(piece, slot);
      start_rows(piece, slot);
      slot = slot + 1 == p.slots ? 0 : slot + 1;
      parity ^= slot == 0 ? 1U : 0U;
    }
    return;
  }

  float sum[kEights][4] = {};
  Operands<kEights> operands[2];
  int slot = 0;
  uint32_t parity = 0;
  const bf16* piece_weights = ring;
  is_full[0].wait(0);
  operands[0].read(piece_weights, rows, piece_weights + weight_elements, warp * kStrip, 0);
  for (int piece = 0; piece < p.pieces; ++piece) {
#pragma unroll
    for (int s = 0; s + 1 < kSteps; ++s) {
      operands[(s + 1) % 2].read(piece_weights, rows, piece_weights + weight_elements, warp * kStrip, s + 1);
      operands[s % 2].multiply(sum);
    }
    // The change of pieces lies behind products, which take longer.
    operands[(kSteps - 1) % 2].multiply(sum);
    __syncwarp();
    if (lane == 0) is_free[slot].arrive();
    slot = slot + 1 == p.slots ? 0 : slot + 1;
    parity ^= slot == 0 ? 1U : 0U;
    if (piece + 1 == p.pieces) break;
    piece_weights = ring + slot * piece_elements;
    is_full[slot].wait(parity);
    operands[0].read(piece_weights, rows, piece_weights + weight_elements, warp * kStrip, 0);
  }

  wait_for_inputs();  // they are written over, or added
  const int row = (static_cast<int>(blockIdx.x) * p.warps + warp) * kStrip + lane / 4;
#pragma unroll
  for (int eight = 0; eight < kEights; ++eight) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int t = eight * 8 + lane % 4 * 2 + e % 2, n = row + e / 2 * 8;
      if (t >= p.T || n >= p.N) continue;
      const int64_t at = static_cast<int64_t>(t) * p.N + n;
      write(out + at, added == nullptr ? sum[eight][e] : sum[eight][e] + widen(added[at]));
    }
  }
}

// So many rows are multiplied as if they were this many, whatever the weight is.
constexpr int64_t kFewRows = 16, kMostRows = 32;

// The division of a product's work, whose rows of x are padded to `rows`.
struct Cut {
  int64_t rows, warps, blocks, slots, bytes;
};
Cut cut(int64_t T, int64_t N, int64_t K) {
  const int64_t rows = T <= kFewRows ? kFewRows : kMostRows, strips = N / kStrip;
  const int64_t warps = (strips + gpu_limits().multiprocessors - 1) / gpu_limits().multiprocessors;
  const int64_t piece_bytes = (warps * kStrip + rows) * kDepth * static_cast<int64_t>(sizeof(bf16));
  const int64_t slots = std::min({kRingBytes / piece_bytes, K / kDepth, int64_t{kMostSlots}});
  return {rows, warps, (strips + warps - 1) / warps, slots, kBarrierBytes + slots * piece_bytes};
}

template <int kEights, typename Out>
cudaError_t launch(const FewRowsProduct& p, const Cut& c, cudaStream_t stream) {
  Params params = {.x = {},
                   .weight = {},
                   .T = static_cast<int>(p.T),
                   .N = static_cast<int>(p.N),
                   .pieces = static_cast<int>(p.K / kDepth),
                   .warps = static_cast<int>(c.warps),
                   .slots = static_cast<int>(c.slots),
                   .weight_is_old = p.weight_is_old};
  const int64_t row_bytes = p.K * static_cast<int64_t>(sizeof(bf16));
  if (!describe_rows(params.x, p.x, p.T, row_bytes, c.rows, kBoxes) ||
      !describe_rows(params.weight, p.w, p.N, row_bytes, c.warps * kStrip, kBoxes))
    return cudaErrorInvalidValue;
  const auto kernel = some_rows_kernel<kEights, Out>;
  const cudaError_t status =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(kSomeRowsSharedBytes));
  if (status != cudaSuccess) return status;
  return launch_dependent(kernel, p.T, static_cast<unsigned>(c.blocks), static_cast<unsigned>((c.warps + 1) * kWarp),
                          static_cast<size_t>(c.bytes), stream, params, static_cast<const Out*>(p.added),
                          static_cast<Out*>(p.out));
}

template <typename Out>
cudaError_t launch(const FewRowsProduct& p, cudaStream_t stream) {
  const Cut c = cut(p.T, p.N, p.K);
  return c.rows == kFewRows ? launch<kFewRows / 8, Out>(p, c, stream) : launch<kMostRows / 8, Out>(p, c, stream);
}

}  // namespace

bool supports_some_rows(int64_t T, int64_t N, int64_t K) {
  if (T < 1 || T > kMostRows || N < kStrip || N % kStrip != 0 || K < kDepth || K % kDepth != 0) return false;
  if (!runs_some_rows(gpu_limits())) return false;
  const Cut c = cut(T, N, K);
  const bool reads_few_rows = c.rows == kFewRows || 4 * c.blocks * c.rows <= 3 * N;
  return reads_few_rows && c.warps <= kMostWarps && c.slots >= std::min<int64_t>(kFewestSlots, K / kDepth);
}

cudaError_t linear_of_some_rows(const FewRowsProduct& product, cudaStream_t stream) {
  if (!supports_some_rows(product.T, product.N, product.K)) return cudaErrorInvalidValue;
  return product.is_float32 ? launch<float>(product, stream) : launch<bf16>(product, stream);
}

}  // namespace tandem::device::cuda
