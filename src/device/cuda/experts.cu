// A block has one expert, kWarps x 16 rows of its weights and up to kPlaces of its places. The weights are the wider
// side of each mma.sync, so that few places waste little of it. Both pass through shared memory in pieces of kDepth
// terms, of which several are in flight.
#include <algorithm>

#include "device/cuda/experts.h"
#include "device/cuda/launch.cuh"
#include "device/cuda/vectors.cuh"

namespace tandem::device::cuda {
namespace {

using bf16 = __nv_bfloat16;

constexpr int kDepth = 64;  // terms of a piece

__device__ uint32_t shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

// Starts a copy of 16 bytes, or of zeros if not `inside`.
__device__ void copy_16(bf16* to, const bf16* from, bool inside) {
  const int bytes = inside ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(bytes));
}
__device__ void close_piece() { asm volatile("cp.async.commit_group;"); }
template <int kMostOpen>
__device__ void wait_for_pieces() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kMostOpen));
}

__device__ void read_fragment(uint32_t (&r)[4], const bf16* at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(at)));
}
__device__ void read_fragment(uint32_t (&r)[2], const bf16* at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(shared_address(at)));
}
__device__ void multiply_add(float (&sum)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

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

  __device__ void start(bf16* piece, int k, int K) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (row(i) < kRows) copy_16(piece + piece_at(row(i), sixteen()), from[i] + k, k + sixteen() * 8 < K);
    }
  }
};

template <int kWarps, int kPlaces, int kPieces, typename Out>
__global__ __launch_bounds__(kWarps* kWarp) void linear_of_experts_kernel(const bf16* rows, const bf16* weights,
                                                                         const int32_t* offsets,
                                                                         const int32_t* sources, int num_experts,
                                                                         int num_chosen, int N, int K, Out* out) {
  constexpr int kThreads = kWarps * kWarp, kRows = kWarps * 16, kPieceElements = (kRows + kPlaces) * kDepth;
  extern __shared__ __align__(128) bf16 ring[];
  wait_for_inputs();
  let_next_begin();
  const Item item = find_item<kPlaces>(offsets, num_experts, static_cast<int>(blockIdx.y));
  if (item.count == 0) return;
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int first_row = static_cast<int>(blockIdx.x) * kRows;

  // Rows and places past the last repeat it; their outputs are not written.
  Copies<kRows, kThreads> of_weights;
  const bf16* const expert_weights = weights + static_cast<int64_t>(item.expert) * N * K;
#pragma unroll
  for (int i = 0; i < of_weights.kCount; ++i) {
    const int64_t row = min(first_row + of_weights.row(i), N - 1);
    of_weights.from[i] = expert_weights + row * K + of_weights.sixteen() * 8;
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
      of_weights.start(to, piece * kDepth, K);
      of_places.start(to + kRows * kDepth, piece * kDepth, K);
    }
    close_piece();
  };

#pragma unroll
  for (int piece = 0; piece < kPieces - 1; ++piece) start(piece);
  float sum[kPlaces / 8][4] = {};
  for (int piece = 0; piece < pieces; ++piece) {
    wait_for_pieces<kPieces - 2>();
    __syncthreads();
    start(piece + kPieces - 1);
    const bf16* const own_weights = ring + piece % kPieces * kPieceElements + warp * 16 * kDepth;
    const bf16* const own_places = ring + piece % kPieces * kPieceElements + kRows * kDepth;
#pragma unroll
    for (int k = 0; k < kDepth / 16; ++k) {
      if (piece * kDepth + k * 16 >= K) break;
      uint32_t a[4];
      read_fragment(a, own_weights + piece_at(lane % 16, k * 2 + lane / 16));
#pragma unroll
      for (int n = 0; n < kPlaces / 8; ++n) {
        uint32_t b[2];
        read_fragment(b, own_places + piece_at(n * 8 + lane % 8, k * 2 + lane / 8 % 2));
        multiply_add(sum[n], a, b);
      }
    }
  }

#pragma unroll
  for (int n = 0; n < kPlaces / 8; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int place = n * 8 + lane % 4 * 2 + e % 2, row = first_row + warp * 16 + lane / 4 + e / 2 * 8;
      if (place < item.count && row < N) write(out + static_cast<int64_t>(item.first + place) * N + row, sum[n][e]);
    }
  }
}

template <int kWarps, int kPlaces, int kPieces, typename Out>
cudaError_t launch_tiling(const ExpertsProduct& p, Out* out, cudaStream_t stream) {
  constexpr int kRows = kWarps * 16, kBytes = (kRows + kPlaces) * kDepth * static_cast<int>(sizeof(bf16)) * kPieces;
  const auto kernel = linear_of_experts_kernel<kWarps, kPlaces, kPieces, Out>;
  const cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (status != cudaSuccess) return status;
  // An expert's last item may have one place, so there are at most as many items as whole ones and experts.
  const int64_t items = std::min(p.num_experts, p.num_places) + p.num_places / kPlaces;
  const dim3 grid(static_cast<unsigned>((p.N + kRows - 1) / kRows), static_cast<unsigned>(items));
  return launch_dependent(kernel, p.num_places / p.num_chosen, grid, kWarps * kWarp, kBytes, stream, p.rows, p.weights,
                          p.offsets, p.sources, p.num_experts, p.num_chosen, p.N, p.K, out);
}

template <typename Out>
cudaError_t launch(const ExpertsProduct& p, int tiling, Out* out, cudaStream_t stream) {
  switch (tiling) {
    case 0: return launch_tiling<4, 8, 4>(p, out, stream);
    case 1: return launch_tiling<2, 8, 6>(p, out, stream);
    case 2: return launch_tiling<4, 16, 4>(p, out, stream);
    case 3: return launch_tiling<8, 32, 4>(p, out, stream);
    case 4: return launch_tiling<4, 64, 4>(p, out, stream);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace

int experts_tiling(int64_t num_places, int64_t num_experts) {
  if (num_places * 4 <= num_experts) return 0;
  const int64_t each = num_places / num_experts;
  return each <= 4 ? 1 : each <= 8 ? 2 : each <= 16 ? 3 : 4;
}

cudaError_t linear_of_experts(const ExpertsProduct& product, int tiling, void* out, bool is_float32,
                              cudaStream_t stream) {
  if (!supports_experts_product(product.num_experts, product.K)) return cudaErrorInvalidValue;
  if (product.num_places == 0 || product.N == 0) return cudaSuccess;
  return is_float32 ? launch(product, tiling, static_cast<float*>(out), stream)
                    : launch(product, tiling, static_cast<bf16*>(out), stream);
}

}  // namespace tandem::device::cuda
