// A block computes tiles of kRows x kColumns outputs of one expert, one after another. Its first warpgroup copies rows
// of dy and x, kDepth places at a time, to a ring of pieces in shared memory. Two more multiply, each for half of the
// tile's rows. So the copies for the next tile begin while the outputs of the last one are written.
//
// Blocks take tiles from a common counter, those of the experts with most places first, so that all multiprocessors end
// at about the same time. It changes no bit which block computes a tile.
#include "device/cuda/experts/experts_grad_weight.h"

#include <algorithm>

#include "device/cuda/gpu_limits.h"
#include "device/cuda/vectors.cuh"
#include "device/cuda/warpgroups.cuh"

namespace tandem::device::cuda {
namespace {

using bf16 = __nv_bfloat16;

constexpr int kRows = 128, kColumns = 256;  // of a tile: columns of dy, columns of x
constexpr int kDepth = 64;                  // places of a piece
constexpr int kPieces = 4;                  // as many as shared memory holds
constexpr int kMultipliers = 2, kThreads = (1 + kMultipliers) * kWarpgroup, kWarps = kWarpgroup / kWarp;
constexpr int kShare = kDepth / kWarps;  // places of a piece that a warp copies
// Registers of a thread that copies and of one that multiplies; the multiprocessor has 65,536.
constexpr int kCopyRegisters = 72, kMultiplyRegisters = 216;
constexpr int kNoTile = -1;

struct Problem {
  const bf16* dy;
  const bf16* x;
  const int32_t* offsets;
  const int32_t* dy_sources;  // null: place p has row p
  const int32_t* x_sources;
  int num_experts, num_chosen, N, K;
  int tiles_of_rows, tiles_of_columns;
  int32_t* tiles_taken;  // beyond the first one of each block
};

struct Piece {
  bf16 dy[kRows * kDepth], x[kColumns * kDepth];
};

struct Expert {
  int id, first, count;  // its places are [first, first + count)
};

struct Shared {
  Piece pieces[kPieces];
  Barrier full[kPieces], empty[kPieces];
  int tile_of[kPieces];  // the index of the tile that a piece belongs to, or kNoTile after the last
  int next_tile;
  Expert experts[kMostExperts];  // those with most places first
};

// A position in the ring of pieces.
struct Turn {
  int piece = 0;
  uint32_t round = 0;
  __device__ void advance() {
    if (++piece < kPieces) return;
    piece = 0;
    ++round;
  }
};

struct Tile {
  Expert expert;
  int row, column;  // of its first output
  // Returns how many pieces it has. Without places it has one of zeros.
  __device__ int pieces() const { return max(1, (expert.count + kDepth - 1) / kDepth); }
};
__device__ Tile tile_at(const Problem& p, const Shared& shared, int index) {
  const int of_expert = p.tiles_of_rows * p.tiles_of_columns, rest = index % of_expert;
  return {.expert = shared.experts[index / of_expert],
          .row = rest % p.tiles_of_rows * kRows,
          .column = rest / p.tiles_of_rows * kColumns};
}

__device__ int count_of(const Problem& p, int expert) { return p.offsets[expert + 1] - p.offsets[expert]; }

__device__ void order_experts(const Problem& p, Shared& shared) {
  for (int e = static_cast<int>(threadIdx.x); e < p.num_experts; e += kThreads) {
    const int count = count_of(p, e);
    int before = 0;
    for (int other = 0; other < p.num_experts; ++other) {
      const int others = count_of(p, other);
      if (others > count || (others == count && other < e)) ++before;
    }
    shared.experts[before] = {.id = e, .first = p.offsets[e], .count = count};
  }
}

// Copies a warp's share of a piece, kWidth columns of each place, sixteen bytes a lane. The first lanes have the rows
// of the share's places. Of these the expert has `count`; the others become zeros.
template <int kWidth>
__device__ void copy_rows(bf16* boxes, const bf16* from, uint32_t rows, int count, int width, int column) {
  constexpr int kLanes = kWidth / 8, kAtOnce = kWarp / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, eight = lane % kLanes;
  const int first_place = static_cast<int>(threadIdx.x) / kWarp * kShare;
  bf16* const box = boxes + eight * 8 / kBoxLines * kBoxLines * kDepth;
  from += column + eight * 8;
  if (column + eight * 8 >= width) count = 0;
#pragma unroll
  for (int i = 0; i < kShare; i += kAtOnce) {
    const int place = i + lane / kLanes;
    const uint32_t row = __shfl_sync(kAllLanes, rows, place);
    // The product of 32-bit numbers is one instruction; the copies are what limits this kernel.
    copy_16(box + line_at(first_place + place, eight % (kBoxLines / 8)),
            from + static_cast<uint64_t>(row) * static_cast<uint32_t>(width), place < count);
  }
}

// The pieces that a block copies, in order: those of a tile, then those of the next. It looks one piece ahead, so that
// the places' sources have arrived when the piece is copied. Every thread of the copying warpgroup has one.
class Pieces {
 public:
  __device__ Pieces(const Problem& p, Shared& shared, int num_tiles)
      : p_(p), shared_(shared), num_tiles_(num_tiles), index_(static_cast<int>(blockIdx.x)) {
    begin_tile();
  }
  __device__ bool has_piece() const { return index_ < num_tiles_; }
  __device__ int tile_index() const { return index_; }
  __device__ const Tile& tile() const { return tile_; }
  // Returns how many places of this warp's share the expert has; it may be negative, or more than kShare.
  __device__ int count() const { return tile_.expert.count - first_place(); }
  // The rows of dy and x for the place of the share that is this lane's; 0 where the expert has none.
  __device__ uint32_t row_of_dy() const { return row(p_.dy_sources, source_of_dy_); }
  __device__ uint32_t row_of_x() const { return row(p_.x_sources, source_of_x_); }

  __device__ void advance() {
    if (++piece_ < tile_.pieces()) return find_sources();
    if (is_first()) shared_.next_tile = next_;
    sync_warpgroup(1);
    index_ = shared_.next_tile;
    sync_warpgroup(1);
    begin_tile();
  }

 private:
  __device__ static bool is_first() { return threadIdx.x == 0; }
  __device__ void begin_tile() {
    if (!has_piece()) return;
    // The answer arrives while the tile is copied.
    if (is_first()) next_ = static_cast<int>(gridDim.x) + atomicAdd(p_.tiles_taken, 1);
    tile_ = tile_at(p_, shared_, index_);
    piece_ = 0;
    find_sources();
  }
  __device__ int first_place() const { return piece_ * kDepth + static_cast<int>(threadIdx.x) / kWarp * kShare; }
  __device__ void find_sources() {
    const int place = first_place() + static_cast<int>(threadIdx.x) % kShare;
    has_place_ = place < tile_.expert.count;
    place_ = has_place_ ? tile_.expert.first + place : 0;
    if (has_place_ && p_.dy_sources != nullptr) source_of_dy_ = p_.dy_sources[place_];
    if (has_place_ && p_.x_sources != nullptr) source_of_x_ = p_.x_sources[place_];
  }
  __device__ uint32_t row(const int32_t* sources, int source) const {
    if (sources == nullptr || !has_place_) return static_cast<uint32_t>(place_);
    return static_cast<uint32_t>(source) / static_cast<uint32_t>(p_.num_chosen);
  }

  const Problem& p_;
  Shared& shared_;
  const int num_tiles_;
  int index_, next_ = 0, piece_ = 0;
  Tile tile_ = {};
  bool has_place_ = false;
  int place_ = 0, source_of_dy_ = 0, source_of_x_ = 0;
};

__device__ void copy_pieces(const Problem& p, Shared& shared, int num_tiles) {
  Turn turn;
  // A piece is full when the copies of all threads are done, and its tile is known.
  const auto end_piece = [&](int tile) {
    shared.full[turn.piece].arrive_after_copies();
    if (threadIdx.x == 0) {
      shared.tile_of[turn.piece] = tile;
      shared.full[turn.piece].arrive();
    }
    turn.advance();
  };
  for (Pieces pieces(p, shared, num_tiles); pieces.has_piece();) {
    const Tile tile = pieces.tile();
    const int index = pieces.tile_index(), count = pieces.count();
    const uint32_t row_of_dy = pieces.row_of_dy(), row_of_x = pieces.row_of_x();
    pieces.advance();
    shared.empty[turn.piece].wait((turn.round - 1) & 1U);
    __syncwarp();  // without it, the compiler makes a second, slower version of the copies for diverged warps
    copy_rows<kRows>(shared.pieces[turn.piece].dy, p.dy, row_of_dy, count, p.N, tile.row);
    copy_rows<kColumns>(shared.pieces[turn.piece].x, p.x, row_of_x, count, p.K, tile.column);
    end_piece(index);
  }
  shared.empty[turn.piece].wait((turn.round - 1) & 1U);
  end_piece(kNoTile);
  close_piece();
  wait_for_pieces<0>();
}

// Writes the outputs that a thread has after start_product(): of `row` and the eighth after it. Two neighbouring lanes
// exchange half of theirs, so that each has four columns. Old outputs are read a batch ahead.
template <bool kAdds>
__device__ void write(const Problem& p, const Tile& tile, int row, const float (&sum)[kColumns / 2], float* dw) {
  constexpr int kBatch = 4, kBatches = kColumns / 8 / kBatch;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const bool is_odd = lane % 2 == 1;
  const int column = tile.column + (is_odd ? 8 : 0) + lane % 4 / 2 * 4;
  float* const to = dw + (static_cast<int64_t>(tile.expert.id) * p.N + row) * p.K + column;
  // Four columns are number i of a batch. They lie in the upper or lower row, and `eight` times eight columns on.
  const auto is_upper = [](int batch) { return batch < kBatches / 2; };
  const auto eight = [](int batch, int i) { return (batch % (kBatches / 2) * kBatch + i) * 2; };
  const auto is_inside = [&](int batch, int i) {
    return row + (is_upper(batch) ? 0 : 8) < p.N && column + eight(batch, i) * 8 < p.K;
  };
  const auto address = [&](int batch, int i) {
    return reinterpret_cast<float4*>(to + (is_upper(batch) ? 0 : int64_t{8} * p.K) + eight(batch, i) * 8);
  };
  float4 old[2][kBatch];
  const auto read = [&](int batch) {
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (is_inside(batch, i)) old[batch % 2][i] = __ldcs(address(batch, i));
    }
  };
  if constexpr (kAdds) read(0);
#pragma unroll
  for (int batch = 0; batch < kBatches; ++batch) {
    if (kAdds && batch + 1 < kBatches) read(batch + 1);
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int at = 4 * eight(batch, i) + (is_upper(batch) ? 0 : 2), next = at + 4;
      const float given_x = is_odd ? sum[at] : sum[next], given_y = is_odd ? sum[at + 1] : sum[next + 1];
      const float taken_x = __shfl_xor_sync(kAllLanes, given_x, 1), taken_y = __shfl_xor_sync(kAllLanes, given_y, 1);
      float4 out =
          is_odd ? float4{taken_x, taken_y, sum[next], sum[next + 1]} : float4{sum[at], sum[at + 1], taken_x, taken_y};
      if constexpr (kAdds) {
        const float4& added = old[batch % 2][i];
        out = {out.x + added.x, out.y + added.y, out.z + added.z, out.w + added.w};
      }
      if (is_inside(batch, i)) __stcs(address(batch, i), out);
    }
  }
}

template <bool kAdds>
__device__ void multiply_pieces(const Problem& p, Shared& shared, float* dw) {
  // The old outputs of a tile are brought into the L2 cache when so many of its pieces are still to be multiplied:
  // earlier, the operands of other tiles would push them out again.
  constexpr int kFetchAhead = 8;
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
  const int box = static_cast<int>(threadIdx.x) / kWarpgroup - 1;  // the rows of this warpgroup
  const bool leads_warp = thread % kWarp == 0;  // arrives for its warp, and so is the one that reads tile_of
  const auto give_back = [&](int piece) {
    if (leads_warp) shared.empty[piece].arrive();
  };
  for (Turn turn;;) {
    shared.full[turn.piece].wait(turn.round & 1U);
    const int index = __shfl_sync(kAllLanes, leads_warp ? shared.tile_of[turn.piece] : 0, 0);
    if (index == kNoTile) return;
    const Tile tile = tile_at(p, shared, index);
    const int first_row = tile.row + box * kBoxLines, pieces = tile.pieces();
    float sum[kColumns / 2];
#pragma unroll
    for (int j = 0; j < kColumns / 2; ++j) sum[j] = 0.0F;
    int before = 0;
#pragma unroll 1
    for (int i = 0; i < pieces; ++i) {
      if (kAdds && i == max(0, pieces - kFetchAhead) && thread < min(kBoxLines, p.N - first_row)) {
        prefetch(dw + (static_cast<int64_t>(tile.expert.id) * p.N + first_row + thread) * p.K + tile.column,
                 min(kColumns, p.K - tile.column) * static_cast<int>(sizeof(float)));
      }
      shared.full[turn.piece].wait(turn.round & 1U);
      show_to_products();
      const Piece& piece = shared.pieces[turn.piece];
      const uint64_t dy = operand_by_lines(piece.dy + box * kBoxLines * kDepth, kDepth);
      const uint64_t x = operand_by_lines(piece.x, kDepth);
      pin(sum);
      begin_products();
#pragma unroll
      for (int step = 0; step < kDepth / kProductTerms; ++step) {
        start_product(sum, dy + step * kNextProduct, x + step * kNextProduct);
      }
      close_products();
      wait_for_products<1>();
      if (i > 0) give_back(before);
      before = turn.piece;
      turn.advance();
    }
    wait_for_products<0>();
    pin(sum);
    give_back(before);
    write<kAdds>(p, tile, first_row + thread / kWarp * 16 + thread % kWarp / 4, sum, dw);
  }
}

template <bool kAdds>
__global__ __launch_bounds__(kThreads, 1) void experts_grad_weight_kernel(Problem p, float* dw) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  if (threadIdx.x == 0) {
    for (int i = 0; i < kPieces; ++i) {
      shared.full[i].init(kWarpgroup + 1);
      shared.empty[i].init(kMultipliers * kWarps);
    }
  }
  order_experts(p, shared);
  __syncthreads();
  if (threadIdx.x < kWarpgroup) {
    give_registers<kCopyRegisters>();
    // Experts without places come last, and nothing is added to their outputs.
    int experts = p.num_experts;
    while (kAdds && experts > 0 && shared.experts[experts - 1].count == 0) --experts;
    copy_pieces(p, shared, experts * p.tiles_of_rows * p.tiles_of_columns);
  } else {
    take_registers<kMultiplyRegisters>();
    multiply_pieces<kAdds>(p, shared, dw);
  }
}

template <bool kAdds>
cudaError_t launch(const Problem& p, float* dw, cudaStream_t stream) {
  const auto kernel = experts_grad_weight_kernel<kAdds>;
  constexpr int kBytes = sizeof(Shared);
  static_assert(kBytes <= experts_grad_weight_shared_bytes());
  cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (status == cudaSuccess) status = cudaMemsetAsync(p.tiles_taken, 0, sizeof *p.tiles_taken, stream);
  if (status != cudaSuccess) return status;
  const int64_t tiles = int64_t{p.num_experts} * p.tiles_of_rows * p.tiles_of_columns;
  kernel<<<static_cast<unsigned>(std::min(gpu_limits().multiprocessors, tiles)), kThreads, kBytes, stream>>>(p, dw);
  return cudaGetLastError();
}

int tiles_of(int64_t outputs, int tile) { return static_cast<int>((outputs + tile - 1) / tile); }

}  // namespace

bool has_experts_grad_weight() { return runs_experts_grad_weight(gpu_limits()); }

cudaError_t experts_grad_weight(const ExpertsGradWeight& g, float* dw, bool adds, int32_t* scratch,
                                cudaStream_t stream) {
  if (g.num_experts > kMostExperts) return cudaErrorInvalidValue;
  if (g.num_experts == 0 || g.N == 0 || g.K == 0) return cudaSuccess;
  const Problem p = {.dy = g.dy,
                     .x = g.x,
                     .offsets = g.offsets,
                     .dy_sources = g.dy_is_of_tokens ? g.sources : nullptr,
                     .x_sources = g.x_is_of_tokens ? g.sources : nullptr,
                     .num_experts = static_cast<int>(g.num_experts),
                     .num_chosen = static_cast<int>(g.num_chosen),
                     .N = static_cast<int>(g.N),
                     .K = static_cast<int>(g.K),
                     .tiles_of_rows = tiles_of(g.N, kRows),
                     .tiles_of_columns = tiles_of(g.K, kColumns),
                     .tiles_taken = scratch};
  return adds ? launch<true>(p, dw, stream) : launch<false>(p, dw, stream);
}

}  // namespace tandem::device::cuda
