// A block has one expert, some rows of its weights, kTiles x 16 for each warp, and up to kPlaces of its places. The
// weights are the wider side of each mma.sync, so that few places waste little of it. Both pass through shared memory in
// pieces of kDepth terms, of which several are in flight.
#include <algorithm>
#include <type_traits>

#include "device/cuda/experts.h"
#include "device/cuda/launch.cuh"
#include "device/cuda/tensor_cores.cuh"
#include "device/cuda/vectors.cuh"

namespace tandem::device::cuda {
namespace {

using bf16 = __nv_bfloat16;

constexpr int kDepth = 64;  // terms of a piece

// Returns the element where a row's sixteen bytes begin. A row of a piece has eight of them, permuted by the row, so
// that eight rows of a matrix share no bank.
__device__ int piece_at(int row, int sixteen) { return row * kDepth + ((sixteen ^ (row & 7)) << 3); }

// Up to kPlaces places of one expert; no places past the last item.
struct Item {
  int expert, first, count;
};
// Returns item `index`, in order of places. Every warp looks for itself.
template <int kPlaces>
__device__ Item find_item(const int32_t* offsets, int num_experts, int index) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, each = (num_experts + kWarp - 1) / kWarp;
  const int begin = min(lane * each, num_experts), end = min(begin + each, num_experts);
  int mine = 0, first = offsets[begin];
  for (int x = begin; x < end; ++x) {
    const int next = offsets[x + 1];
    mine += (next - first + kPlaces - 1) / kPlaces;
    first = next;
  }
  int through = mine;
#pragma unroll
  for (int offset = 1; offset < kWarp; offset *= 2) {
    const int other = __shfl_up_sync(kAllLanes, through, offset);
    if (lane >= offset) through += other;
  }
  Item item = {.expert = 0, .first = 0, .count = 0};
  int before = through - mine;
  const bool is_mine = before <= index && index < through;
  if (is_mine) {
    for (int x = begin; x < end; ++x) {
      const int places = offsets[x + 1] - offsets[x], items = (places + kPlaces - 1) / kPlaces;
      if (index < before + items) {
        const int skipped = (index - before) * kPlaces;
        item = {.expert = x, .first = offsets[x] + skipped, .count = min(kPlaces, places - skipped)};
        break;
      }
      before += items;
    }
  }
  const unsigned holder = __ballot_sync(kAllLanes, is_mine);
  if (holder == 0) return item;
  const int from = __ffs(static_cast<int>(holder)) - 1;
  return {.expert = __shfl_sync(kAllLanes, item.expert, from),
          .first = __shfl_sync(kAllLanes, item.first, from),
          .count = __shfl_sync(kAllLanes, item.count, from)};
}

__device__ void write(float* to, float x) { *to = x; }
__device__ void write(bf16* to, float x) { *to = __float2bfloat16_rn(x); }

// A thread's share of the copies of an operand, sixteen bytes at a time: those that begin kThreads apart.
template <int kRows, int kThreads>
struct Copies {
  static constexpr int kCount = (kRows * kDepth / 8 + kThreads - 1) / kThreads;
  const bf16* from[kCount];

  static __device__ int row(int i) { return (static_cast<int>(threadIdx.x) + i * kThreads) / (kDepth / 8); }
  static __device__ int sixteen() { return static_cast<int>(threadIdx.x) % (kDepth / 8); }

  // Starts the copies of the first `rows` rows, terms [k, k + kDepth), with zeros after K.
  __device__ void start(bf16* piece, int rows, int k, int K) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (row(i) < rows) copy_16(piece + piece_at(row(i), sixteen()), from[i] + k, k + sixteen() * 8 < K);
    }
  }
};

// The same for transposed weights: a piece has kDepth rows, each with the block's kColumns of the outputs.
template <int kColumns, int kThreads>
struct TransposedCopies {
  static constexpr int kSixteens = kColumns / 8, kCount = kDepth * kSixteens / kThreads;
  const bf16* from;
  int columns;  // from the first of the sixteen bytes to the last of the weights

  static __device__ int row(int i) { return (static_cast<int>(threadIdx.x) + i * kThreads) / kSixteens; }
  static __device__ int column() { return static_cast<int>(threadIdx.x) % kSixteens * 8; }
  static __device__ int element_at(int row, int column) {
    return row * kColumns + (((column / 8) ^ (row & 7)) << 3);
  }

  __device__ void start(bf16* piece, int k, int K, int N) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const bool inside = k + row(i) < K && columns > 0;
      copy_16(piece + element_at(row(i), column()), from + (inside ? static_cast<int64_t>(k + row(i)) * N : 0), inside);
    }
  }
};

template <int kWarps, int kTiles, int kPlaces, int kPieces, bool kTransposed, typename Out>
__global__ __launch_bounds__(kWarps* kWarp) void linear_of_experts_kernel(const bf16* rows, const bf16* weights,
                                                                         const int32_t* offsets,
                                                                         const int32_t* sources, int num_experts,
                                                                         int num_chosen, int N, int K, Out* out) {
  constexpr int kThreads = kWarps * kWarp, kRows = kWarps * kTiles * 16, kPieceElements = (kRows + kPlaces) * kDepth;
  constexpr int kEights = kPlaces / 8;
  extern __shared__ __align__(128) bf16 ring[];
  wait_for_inputs();
  let_next_begin();
  const Item item = find_item<kPlaces>(offsets, num_experts, static_cast<int>(blockIdx.y));
  if (item.count == 0) return;
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int first_row = static_cast<int>(blockIdx.x) * kRows, eights = (item.count + 7) / 8;

  // Rows and places past the last repeat it; their outputs are not written.
  const bf16* const expert_weights = weights + static_cast<int64_t>(item.expert) * N * K;
  using Transposed = TransposedCopies<kRows, kThreads>;
  std::conditional_t<kTransposed, Transposed, Copies<kRows, kThreads>> of_weights;
  if constexpr (kTransposed) {
    const int column = first_row + Transposed::column();
    of_weights = {.from = expert_weights + column, .columns = N - column};
  } else {
#pragma unroll
    for (int i = 0; i < of_weights.kCount; ++i) {
      const int64_t row = min(first_row + of_weights.row(i), N - 1);
      of_weights.from[i] = expert_weights + row * K + of_weights.sixteen() * 8;
    }
  }
  Copies<kPlaces, kThreads> of_places;
#pragma unroll
  for (int i = 0; i < of_places.kCount; ++i) {
    const int place = item.first + min(of_places.row(i), item.count - 1);
    const int64_t row = sources != nullptr ? sources[place] / num_chosen : place;
    of_places.from[i] = rows + row * K + of_places.sixteen() * 8;
  }
  const int pieces = (K + kDepth - 1) / kDepth;
  const auto start = [&](int piece) {
    if (piece < pieces) {
      bf16* const to = ring + piece % kPieces * kPieceElements;
      if constexpr (kTransposed) {
        of_weights.start(to, piece * kDepth, K, N);
      } else {
        of_weights.start(to, kRows, piece * kDepth, K);
      }
      of_places.start(to + kRows * kDepth, eights * 8, piece * kDepth, K);
    }
    close_piece();
  };

#pragma unroll
  for (int piece = 0; piece < kPieces - 1; ++piece) start(piece);
  float sum[kTiles][kEights][4] = {};
  for (int piece = 0; piece < pieces; ++piece) {
    wait_for_pieces<kPieces - 2>();
    __syncthreads();
    start(piece + kPieces - 1);
    const bf16* const piece_weights = ring + piece % kPieces * kPieceElements;
    const bf16* const piece_places = piece_weights + kRows * kDepth;
#pragma unroll
    for (int k = 0; k < kDepth / 16; ++k) {
      if (piece * kDepth + k * 16 >= K) break;
      uint32_t a[kTiles][4];
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const int row = (warp * kTiles + tile) * 16;
        if constexpr (kTransposed) {
          const int term = k * 16 + lane / 16 * 8 + lane % 8;
          read_transposed(a[tile], piece_weights + Transposed::element_at(term, row + lane / 8 % 2 * 8));
        } else {
          read_matrices(a[tile], piece_weights + piece_at(row + lane % 16, k * 2 + lane / 16));
        }
      }
#pragma unroll
      for (int pair = 0; pair < kEights / 2; ++pair) {
        if (pair * 2 >= eights) break;
        uint32_t b[4];  // of sixteen places; those past the item's are never written
        read_matrices(b, piece_places + piece_at(pair * 16 + lane / 16 * 8 + lane % 8, k * 2 + lane / 8 % 2));
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          multiply_add(sum[tile][pair * 2], a[tile], b);
          multiply_add(sum[tile][pair * 2 + 1], a[tile], b + 2);
        }
      }
    }
  }

#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int n = 0; n < kEights; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int place = n * 8 + lane % 4 * 2 + e % 2;
        const int row = first_row + (warp * kTiles + tile) * 16 + lane / 4 + e / 2 * 8;
        if (place >= item.count || row >= N) continue;
        write(out + static_cast<int64_t>(item.first + place) * N + row, sum[tile][n][e]);
      }
    }
  }
}

template <int kWarps, int kTiles, int kPlaces, int kPieces, bool kTransposed, typename Out>
cudaError_t launch_tiling(const ExpertsProduct& p, Out* out, cudaStream_t stream) {
  constexpr int kRows = kWarps * kTiles * 16;
  constexpr int kBytes = (kRows + kPlaces) * kDepth * static_cast<int>(sizeof(bf16)) * kPieces;
  const auto kernel = linear_of_experts_kernel<kWarps, kTiles, kPlaces, kPieces, kTransposed, Out>;
  const cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (status != cudaSuccess) return status;
  // An expert's last item may have one place, so there are at most as many items as whole ones and experts.
  const int64_t items = std::min(p.num_experts, p.num_places) + p.num_places / kPlaces;
  const dim3 grid(static_cast<unsigned>((p.N + kRows - 1) / kRows), static_cast<unsigned>(items));
  return launch_dependent(kernel, p.num_places / p.num_chosen, grid, kWarps * kWarp, kBytes, stream, p.rows, p.weights,
                          p.offsets, p.sources, p.num_experts, p.num_chosen, p.N, p.K, out);
}

template <bool kTransposed, typename Out>
cudaError_t launch(const ExpertsProduct& p, ExpertsTiling tiling, Out* out, cudaStream_t stream) {
  return tiling == ExpertsTiling::kFewPlaces ? launch_tiling<4, 1, 16, 4, kTransposed>(p, out, stream)
                                             : launch_tiling<4, 2, 64, 3, kTransposed>(p, out, stream);
}
template <typename Out>
cudaError_t launch(const ExpertsProduct& p, ExpertsTiling tiling, Out* out, cudaStream_t stream) {
  return p.transposed ? launch<true>(p, tiling, out, stream) : launch<false>(p, tiling, out, stream);
}

}  // namespace

ExpertsTiling experts_tiling(int64_t num_places, int64_t num_experts) {
  return num_places <= 8 * num_experts ? ExpertsTiling::kFewPlaces : ExpertsTiling::kManyPlaces;
}

cudaError_t linear_of_experts(const ExpertsProduct& product, ExpertsTiling tiling, void* out, bool is_float32,
                              cudaStream_t stream) {
  if (!supports_experts_product(product)) return cudaErrorInvalidValue;
  if (product.num_places == 0 || product.N == 0) return cudaSuccess;
  return is_float32 ? launch(product, tiling, static_cast<float*>(out), stream)
                    : launch(product, tiling, static_cast<bf16*>(out), stream);
}

}  // namespace tandem::device::cuda
