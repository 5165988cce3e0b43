// A block has one expert, some rows of its weights, kTiles x 16 for each warp, and up to kPlaces of its places. The
// weights are the wider side of each mma.sync, so that few places waste little of it. Both pass through shared memory in
// pieces of kDepth terms, of which several are in flight.
#include <algorithm>
#include <type_traits>

#include "device/cuda/experts/expert_items.cuh"
#include "device/cuda/experts/experts.h"
#include "device/cuda/experts/gate_up.cuh"
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

// The weights as they lie in memory, transposed, or rows of gate and up in turns of eight: a thread's sums then hold both
// of a column.
enum class Weights : uint8_t { kPlain, kTransposed, kGateUp };

template <int kWarps, int kTiles, int kPlaces, int kPieces, Weights kWeights, typename Out>
__global__ __launch_bounds__(kWarps* kWarp) void linear_of_experts_kernel(const bf16* rows, const bf16* weights,
                                                                         const int32_t* offsets,
                                                                         const int32_t* sources, int num_experts,
                                                                         int num_chosen, int N, int K,
                                                                         bool offsets_are_old, bf16* activated,
                                                                         Out* out) {
  constexpr int kThreads = kWarps * kWarp, kRows = kWarps * kTiles * 16, kPieceElements = (kRows + kPlaces) * kDepth;
  constexpr int kEights = kPlaces / 8;
  constexpr bool kTransposed = kWeights == Weights::kTransposed, kGateUp = kWeights == Weights::kGateUp;
  extern __shared__ __align__(128) bf16 ring[];
  if (!offsets_are_old) wait_for_inputs();
  const Item item = find_item<kPlaces>(offsets, num_experts, static_cast<int>(blockIdx.y));
  if (item.count == 0) return wait_for_inputs();
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int first_row = static_cast<int>(blockIdx.x) * kRows, eights = (item.count + 7) / 8;
  const int pieces = (K + kDepth - 1) / kDepth;

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
      const int r = first_row + of_weights.row(i);
      const int64_t row = kGateUp ? gate_up_row(r, N) : min(r, N - 1);
      of_weights.from[i] = expert_weights + row * K + of_weights.sixteen() * 8;
    }
  }
  const auto start_weights = [&](int piece) {
    if (piece >= pieces) return;
    bf16* const to = ring + piece % kPieces * kPieceElements;
    if constexpr (kTransposed) {
      of_weights.start(to, piece * kDepth, K, N);
    } else {
      of_weights.start(to, kRows, piece * kDepth, K);
    }
  };
  // Weights are older than the kernel before, and so may be the places.
  if (offsets_are_old) {
    for (int piece = 0; piece < kPieces - 1; ++piece) start_weights(piece);
    wait_for_inputs();
  }
  let_next_begin();

  Copies<kPlaces, kThreads> of_places;
#pragma unroll
  for (int i = 0; i < of_places.kCount; ++i) {
    const int place = item.first + min(of_places.row(i), item.count - 1);
    const int64_t row = sources != nullptr ? sources[place] / num_chosen : place;
    of_places.from[i] = rows + row * K + of_places.sixteen() * 8;
  }
  const auto start_places = [&](int piece) {
    if (piece < pieces) {
      bf16* const to = ring + piece % kPieces * kPieceElements + kRows * kDepth;
      of_places.start(to, eights * 8, piece * kDepth, K);
    }
    close_piece();
  };

#pragma unroll
  for (int piece = 0; piece < kPieces - 1; ++piece) {
    if (!offsets_are_old) start_weights(piece);
    start_places(piece);
  }
  float sum[kTiles][kEights][4] = {};
  for (int piece = 0; piece < pieces; ++piece) {
    wait_for_pieces<kPieces - 2>();
    __syncthreads();
    start_weights(piece + kPieces - 1);
    start_places(piece + kPieces - 1);
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
      const int tile_row = first_row + (warp * kTiles + tile) * 16;
#pragma unroll
      for (int e = 0; e < (kGateUp ? 2 : 4); ++e) {
        const int place = n * 8 + lane % 4 * 2 + e % 2;
        if (place >= item.count) continue;
        Out* const row_out = out == nullptr ? nullptr : out + static_cast<int64_t>(item.first + place) * N;
        if constexpr (kGateUp) {
          const int column = tile_row / 2 + lane / 4;
          if (column >= N / 2) continue;
          bf16* const activated_row = activated + static_cast<int64_t>(item.first + place) * (N / 2);
          write_gate_up(row_out, activated_row, column, N, sum[tile][n][e], sum[tile][n][e + 2]);
        } else {
          const int row = tile_row + lane / 4 + e / 2 * 8;
          if (row < N) write(row_out + row, sum[tile][n][e]);
        }
      }
    }
  }
}

template <int kWarps, int kTiles, int kPlaces, int kPieces, Weights kWeights, typename Out>
cudaError_t launch_tiling(const ExpertsProduct& p, Out* out, cudaStream_t stream) {
  constexpr int kRows = kWarps * kTiles * 16;
  constexpr int kBytes = (kRows + kPlaces) * kDepth * static_cast<int>(sizeof(bf16)) * kPieces;
  static_assert(kBytes == experts_shared_bytes(
                              kPlaces == 16 ? ExpertsTiling::kFewPlaces : ExpertsTiling::kManyPlaces, /*K=*/0));
  const auto kernel = linear_of_experts_kernel<kWarps, kTiles, kPlaces, kPieces, kWeights, Out>;
  const cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (status != cudaSuccess) return status;
  // An expert's last item may have one place, so there are at most as many items as whole ones and experts.
  const int64_t items = std::min(p.num_experts, p.num_places) + p.num_places / kPlaces;
  const dim3 grid(static_cast<unsigned>((p.N + kRows - 1) / kRows), static_cast<unsigned>(items));
  return launch_dependent(kernel, p.num_places / p.num_chosen, grid, kWarps * kWarp, kBytes, stream, p.rows, p.weights,
                          p.offsets, p.sources, p.num_experts, p.num_chosen, p.N, p.K, p.offsets_are_old, p.activated, out);
}

template <Weights kWeights, typename Out>
cudaError_t launch(const ExpertsProduct& p, ExpertsTiling tiling, Out* out, cudaStream_t stream) {
  return tiling == ExpertsTiling::kFewPlaces ? launch_tiling<4, 1, 16, 4, kWeights>(p, out, stream)
                                             : launch_tiling<4, 2, 64, 3, kWeights>(p, out, stream);
}

}  // namespace

cudaError_t linear_of_experts(const ExpertsProduct& product, ExpertsTiling tiling, void* out, bool is_float32,
                              cudaStream_t stream) {
  if (!supports_experts_product(product)) return cudaErrorInvalidValue;
  if (product.num_places == 0 || product.N == 0) return cudaSuccess;
  if (product.activated != nullptr && is_float32) return cudaErrorInvalidValue;
  if (tiling == ExpertsTiling::kOneToken) return linear_of_experts_of_token(product, out, is_float32, stream);
  const auto launch_to = [&](auto* to) {
    return product.transposed ? launch<Weights::kTransposed>(product, tiling, to, stream)
                              : launch<Weights::kPlain>(product, tiling, to, stream);
  };
  if (product.activated != nullptr) {
    return launch<Weights::kGateUp>(product, tiling, static_cast<bf16*>(out), stream);
  }
  return is_float32 ? launch_to(static_cast<float*>(out)) : launch_to(static_cast<bf16*>(out));
}

}  // namespace tandem::device::cuda
