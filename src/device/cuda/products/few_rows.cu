// A warp has a strip of kStrip rows of the weight at a time, which pass through its own ring of pieces in shared
// memory, kDepth terms each. The strip is the narrow side of each mma.sync, whose wide side has
// the rows of x. All of x lies in shared memory.
//
// The sums of a strip are a chain: each product on the tensor core waits for the one before it. So operands of later
// products are read between products, and a piece is copied by one instruction of the copy engine. Copies of its eight
// rows are issued lane after lane, which made a layer of Qwen3-4B 102 us instead of 74.
//
// The weight of a router has fewer strips than the GPU has multiprocessors. Then more blocks are launched, each with
// other rows of x: they read the same strip at the same time, and the product takes no longer with more rows.
//
// Sixteen terms and the sum before them make one sum on the tensor core, whatever the order of the sixteen. So a lane
// takes four neighbouring terms of each sixteen, of x as of the weight, where the instruction's own order would be two
// and two: one read of eight bytes in the place of two.
#include "device/cuda/products/few_rows.h"

#include <algorithm>

#include "device/cuda/gpu_limits.h"
#include "device/cuda/kernel_choice.h"
#include "device/cuda/launch.cuh"
#include "device/cuda/tensor_cores.cuh"
#include "device/cuda/tensor_map.h"
#include "device/cuda/vectors.cuh"
#include "device/cuda/warpgroups.cuh"

namespace tandem::device::cuda {
namespace {

using bf16 = __nv_bfloat16;

constexpr int kStrip = 8;  // rows of the weight
constexpr int kRowBytes = static_cast<int>(kSwizzledRow), kBoxBytes = kStrip * kRowBytes;

constexpr int kMostWarps = 12;
// The instruction has room for eight rows. With so many of bfloat16, the kernel is as fast as the library's at best
// (bench/results/decode_gpu.md).
constexpr int64_t kMostRows = 4, kMostRowsOfBlock = 8;
constexpr int kMostSlots = 32, kFewestSlots = 3;  // pieces of a ring
// Barriers come first in a block's shared memory. Their address is that of the rings then, which a warp keeps; that of
// a variable of their own would be computed anew for every piece.
constexpr int kBarrierBytes = kMostWarps * kMostSlots * static_cast<int>(sizeof(Barrier));
static_assert(kBarrierBytes % kSwizzledRows == 0);
// A row of x in shared memory is followed by so many unused elements, so that four rows that are read at once share no
// bank.
constexpr int kPadding = 16;
// Products with larger weights are the library's: they take so long that the launch does not matter.
constexpr int64_t kMostWeightBytes = 128 << 20;

struct Params {
  const bf16* x;
  int T, N, K, strips, slots;
  int rows_of_block;  // at most; a block of the grid's second dimension has the next ones
  bool weight_is_old;
};

// The pieces of a warp's strips.
struct Pieces {
  int strip, term, stride, strips, K;
  __device__ bool is_past_end() const { return strip >= strips; }
  __device__ void advance(int depth) {
    term += depth;
    if (term < K) return;
    term = 0;
    strip += stride;
  }
};

// A lane has the terms `quarter` * 4 and on of each sixteen, of the row of a strip that is `line` of the instruction's.
struct Lane {
  int line = static_cast<int>(threadIdx.x) % kWarp / 4, quarter = static_cast<int>(threadIdx.x) % 4;
  // Returns the row of a strip that is line `n` of the instruction's. Lines that are read at once share no bank.
  static __device__ int strip_row(int n) { return n % 4 * 2 + n / 4; }
  __device__ int row() const { return strip_row(line); }
};

// Returns where the sixteen bytes `n` of a row of a box lie.
__device__ int swizzled(int row, int n) { return row * kRowBytes + ((n ^ row) << 4); }

// The weights of a piece, and how a lane reads its own: four neighbours of each sixteen terms.
template <int kBoxesOfPiece>
class PieceOf {
 public:
  static constexpr int kBoxes = kBoxesOfPiece, kColumns = kRowBytes / 2, kDepth = kBoxes * kColumns, kGroup = 128;
  static constexpr int kPieceBytes = kBoxes * kBoxBytes;

  __device__ PieceOf() {
    const Lane lane;
#pragma unroll
    for (int s = 0; s < 4; ++s) at_[s] = swizzled(lane.row(), s * 2 + lane.quarter / 2) + lane.quarter % 2 * 8;
  }
  __device__ uint2 read(const std::byte* piece, int group, int s) const {
    return *reinterpret_cast<const uint2*>(piece + (group * (kGroup / kColumns) + s / 4) * kBoxBytes + at_[s % 4]);
  }

 private:
  int at_[4];
};

// A warp's strips on their way through its ring.
template <typename Piece>
class Ring {
 public:
  // `source`: [64, N, K / 64], boxes of 64 x kStrip x kBoxes.
  __device__ Ring(const CUtensorMap& source, std::byte* ring, Barrier* is_full, const Pieces& first, int slots)
      : source_(source), ring_(ring), is_full_(is_full), next_(first), slots_(slots) {}
  // Starts the copy of the next piece, if there is one.
  __device__ void start_next() {
    if (next_.is_past_end()) return;
    if (is_elected()) {
      is_full_[slot_].arrive_and_expect(Piece::kPieceBytes);
      copy_box(source_, 0, next_.strip * kStrip, next_.term / Piece::kColumns,
               shared_address(ring_ + slot_ * Piece::kPieceBytes), is_full_[slot_]);
    }
    slot_ = slot_ + 1 == slots_ ? 0 : slot_ + 1;
    next_.advance(Piece::kDepth);
  }

 private:
  const CUtensorMap& source_;
  std::byte* ring_;
  Barrier* is_full_;
  Pieces next_;
  int slots_, slot_ = 0;
};

// A lane's operands of one group: four terms of each sixteen, of a row of the strip and of a row of x.
template <typename Piece>
struct Operands {
  static constexpr int kSteps = Piece::kGroup / 16;
  uint2 weight[kSteps], x[kSteps];
};

// Adds up strip after strip: sum[0] and sum[1] are those of two of a strip's lines with the lane's row of x.
template <typename Piece>
class Multiplier {
 public:
  // `T` counts the rows of `x`.
  __device__ Multiplier(int T, const Params& p, const std::byte* ring, const bf16* x, Barrier* is_full)
      : pieces_(p.K / Piece::kDepth), ring_(ring), is_full_(is_full), slots_(p.slots) {
    const Lane lane;
    has_row_ = lane.line < T;
    x_ = x + lane.line * (p.K + kPadding) + lane.quarter * 4;
  }

  __device__ void run(float (&sum)[4], Ring<Piece>& ring) {
    Operands<Piece> operands[2] = {};
    wait_for_piece();
#pragma unroll
    for (int s = 0; s < kSteps; ++s) read(operands[0], 0, 0, s);
    int group = 0;
    for (int piece = 1; piece < pieces_; ++piece) {
#pragma unroll
      for (int i = 0; i < kGroups; ++i) {
        multiply_and_read(sum, operands[i % 2], operands[(i + 1) % 2], ++group, (i + 1) % kGroups, ring);
      }
    }
#pragma unroll
    for (int i = 0; i + 1 < kGroups; ++i) {
      multiply_and_read(sum, operands[i % 2], operands[(i + 1) % 2], ++group, i + 1, ring);
    }
#pragma unroll
    for (int s = 0; s < kSteps; ++s) multiply(sum, operands[1], s);
    end_piece(ring);
  }

 private:
  static constexpr int kGroups = Piece::kDepth / Piece::kGroup;  // of a piece
  static constexpr int kSteps = Operands<Piece>::kSteps;
  static_assert(kGroups % 2 == 0, "the last group's operands are the second ones");

  __device__ void wait_for_piece() { is_full_[slot_].wait(parity_); }
  // Gives back the memory of a piece that all lanes have read.
  __device__ void end_piece(Ring<Piece>& ring) {
    __syncwarp();
    ring.start_next();
    slot_ = slot_ + 1 == slots_ ? 0 : slot_ + 1;
    parity_ ^= slot_ == 0 ? 1U : 0U;
  }
  static __device__ void multiply(float (&sum)[4], const Operands<Piece>& from, int s) {
    const uint32_t x[4] = {from.x[s].x, 0, from.x[s].y, 0}, weight[2] = {from.weight[s].x, from.weight[s].y};
    multiply_add(sum, x, weight);
  }

  // Reads a group of the strip, which is group `of_piece` of its piece.
  __device__ void read(Operands<Piece>& to, int group, int of_piece, int s) const {
    to.weight[s] = piece_.read(ring_ + slot_ * Piece::kPieceBytes, of_piece, s);
    if (has_row_) to.x[s] = *reinterpret_cast<const uint2*>(x_ + group * Piece::kGroup + s * 16);
  }
  // The change of pieces lies behind products, which take longer: the warp does not wait for both in turn.
  __device__ void multiply_and_read(float (&sum)[4], const Operands<Piece>& from, Operands<Piece>& to, int next,
                                    int of_piece, Ring<Piece>& ring) {
    constexpr int kBefore = 2;
    multiply(sum, from, 0);
    if (of_piece == 0) end_piece(ring);
    multiply(sum, from, 1);
    if (of_piece == 0) wait_for_piece();
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      read(to, next, of_piece, s);
      if (s + kBefore < kSteps) multiply(sum, from, s + kBefore);
    }
  }

  Piece piece_;
  int pieces_;  // of a strip
  const std::byte* ring_;
  const bf16* x_;
  Barrier* is_full_;
  int slots_, slot_ = 0;
  bool has_row_;
  uint32_t parity_ = 0;
};

template <typename Piece, typename Out>
__global__ __launch_bounds__(kMostWarps* kWarp, 1) void few_rows_kernel(const __grid_constant__ Params p,
                                                                        const __grid_constant__ CUtensorMap source,
                                                                        const Out* added, Out* out) {
  extern __shared__ __align__(1024) std::byte memory[];
  // The compiler keeps what all lanes of a warp have alike in registers of the warp, if it knows.
  const int warp = __shfl_sync(~0U, static_cast<int>(threadIdx.x) / kWarp, 0);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warps = static_cast<int>(blockDim.x) / kWarp, blocks = static_cast<int>(gridDim.x);
  const Pieces first = {.strip = static_cast<int>(blockIdx.x) + warp * blocks,
                        .term = 0,
                        .stride = blocks * warps,
                        .strips = p.strips,
                        .K = p.K};
  Barrier* const is_full = reinterpret_cast<Barrier*>(memory) + warp * kMostSlots;
  std::byte* const rings = memory + kBarrierBytes;
  std::byte* const own = rings + warp * p.slots * Piece::kPieceBytes;
  auto* const x = reinterpret_cast<bf16*>(rings + warps * p.slots * Piece::kPieceBytes);  // [T, K + kPadding]
  const int first_row = static_cast<int>(blockIdx.y) * p.rows_of_block;
  const int T = min(p.T - first_row, p.rows_of_block);  // the block's rows

  if (!p.weight_is_old) wait_for_inputs();
  if (lane == 0) {
    for (int slot = 0; slot < p.slots; ++slot) is_full[slot].init(1);
    show_to_products();
  }
  __syncwarp();
  Ring<Piece> ring(source, own, is_full, first, p.slots);
  for (int slot = 0; slot < p.slots; ++slot) ring.start_next();

  wait_for_inputs();
  let_next_begin();
  for (int row = 0; row < T; ++row) {
    for (int i = static_cast<int>(threadIdx.x) * 8; i < p.K; i += static_cast<int>(blockDim.x) * 8) {
      copy_16(x + row * (p.K + kPadding) + i, p.x + static_cast<int64_t>(first_row + row) * p.K + i, true);
    }
  }
  close_piece();
  wait_for_pieces<0>();
  __syncthreads();

  Multiplier<Piece> multiplier(T, p, own, x, is_full);
  for (int strip = first.strip; strip < p.strips; strip += first.stride) {
    float sum[4] = {};
    multiplier.run(sum, ring);
    if (lane / 4 >= T) continue;
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int column = strip * kStrip + Lane::strip_row(lane % 4 * 2 + e);
      const int64_t at = static_cast<int64_t>(first_row + lane / 4) * p.N + column;
      write(out + at, added == nullptr ? sum[e] : sum[e] + widen(added[at]));
    }
  }
}

// The division of a product's work.
struct Cut {
  int64_t strips, blocks, warps, slots, bytes;
};
// Takes sizes whose N and K are multiples of kStrip and kDepth.
template <typename Piece>
Cut cut(int64_t T, int64_t N, int64_t K) {
  const int64_t strips = N / kStrip, blocks = std::min(strips, gpu_limits().multiprocessors);
  const int64_t warps = std::min<int64_t>(kMostWarps, (strips + blocks - 1) / blocks);
  const int64_t strips_of_warp = (strips + blocks * warps - 1) / (blocks * warps);
  constexpr int64_t kElement = sizeof(bf16);
  const int64_t other_bytes = T * (K + kPadding) * kElement;
  const int64_t slots = std::min({(kFewRowsSharedBytes - other_bytes) / (warps * Piece::kPieceBytes),
                                  strips_of_warp * (K / Piece::kDepth), int64_t{kMostSlots}});
  return {strips, blocks, warps, slots, other_bytes + warps * slots * Piece::kPieceBytes};
}

template <typename Piece>
bool supports(int64_t T, int64_t N, int64_t K) {
  if (N < kStrip || N % kStrip != 0 || K < Piece::kDepth || K % Piece::kDepth != 0) return false;
  return runs_few_rows(gpu_limits()) && cut<Piece>(T, N, K).slots >= std::min<int64_t>(kFewestSlots, K / Piece::kDepth);
}

// Returns how many rows a block has; 0 if so many rows are the library's. More than 64 were not measured.
int64_t rows_of_block(int64_t T, int64_t N) {
  constexpr int64_t kMostRowsOfAllBlocks = 64;
  if (T <= kMostRows) return T;
  if (T > kMostRowsOfAllBlocks) return 0;
  for (const int64_t rows : {kMostRows, kMostRowsOfBlock}) {
    if (N / kStrip * ((T + rows - 1) / rows) <= gpu_limits().multiprocessors) return rows;
  }
  return 0;
}

template <typename Piece, typename Out>
cudaError_t launch(const FewRowsProduct& p, const CUtensorMap& source, int64_t rows, cudaStream_t stream) {
  const Cut c = cut<Piece>(rows, p.N, p.K);
  const auto kernel = few_rows_kernel<Piece, Out>;
  const cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                  static_cast<int>(kFewRowsSharedBytes) + kBarrierBytes);
  if (status != cudaSuccess) return status;
  const Params params = {.x = p.x,
                         .T = static_cast<int>(p.T),
                         .N = static_cast<int>(p.N),
                         .K = static_cast<int>(p.K),
                         .strips = static_cast<int>(c.strips),
                         .slots = static_cast<int>(c.slots),
                         .rows_of_block = static_cast<int>(rows),
                         .weight_is_old = p.weight_is_old};
  const dim3 grid(static_cast<unsigned>(c.blocks), static_cast<unsigned>((p.T + rows - 1) / rows));
  return launch_dependent(kernel, p.T, grid, static_cast<unsigned>(c.warps * kWarp),
                          static_cast<size_t>(c.bytes + kBarrierBytes), stream, params, source,
                          static_cast<const Out*>(p.added), static_cast<Out*>(p.out));
}

template <typename Piece>
cudaError_t launch(const FewRowsProduct& p, const CUtensorMap& source, int64_t rows, cudaStream_t stream) {
  return p.is_float32 ? launch<Piece, float>(p, source, rows, stream) : launch<Piece, bf16>(p, source, rows, stream);
}

using SmallPieces = PieceOf<4>;
// A change of pieces costs a warp as much as some products. Where there is room for several large ones, they save 1 us
// of a layer of Qwen3-4B (o and down, three warps). With one or two warps they cost as much: nearly the whole share of
// a block is on its way from the start, and comes later.
using LargePieces = PieceOf<8>;
bool takes_large_pieces(int64_t T, int64_t N, int64_t K) {
  constexpr int64_t kFewestWarps = 3, kFewestLarge = 5;
  if (K % LargePieces::kDepth != 0) return false;
  const Cut c = cut<LargePieces>(T, N, K);
  return c.warps >= kFewestWarps && c.slots >= kFewestLarge;
}

template <typename Piece>
cudaError_t launch_bf16(const FewRowsProduct& p, cudaStream_t stream) {
  CUtensorMap source = {};
  if (!describe_rows(source, p.w, p.N, p.K * static_cast<int64_t>(sizeof(bf16)), kStrip, Piece::kBoxes))
    return cudaErrorInvalidValue;
  return launch<Piece>(p, source, rows_of_block(p.T, p.N), stream);
}

}  // namespace

bool supports_few_rows(int64_t T, int64_t N, int64_t K) {
  const int64_t rows = rows_of_block(T, N);
  return rows >= 1 && N * K * static_cast<int64_t>(sizeof(bf16)) <= kMostWeightBytes &&
         supports<SmallPieces>(rows, N, K);
}

cudaError_t linear_of_few_rows(const FewRowsProduct& product, cudaStream_t stream) {
  if (!supports_few_rows(product.T, product.N, product.K)) return cudaErrorInvalidValue;
  return takes_large_pieces(rows_of_block(product.T, product.N), product.N, product.K)
             ? launch_bf16<LargePieces>(product, stream)
             : launch_bf16<SmallPieces>(product, stream);
}

}  // namespace tandem::device::cuda
