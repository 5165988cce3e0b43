// The product of experts.h for a single token: a row, or a row each, times the experts that it chose. Few blocks have
// anything to do, so each has more on its way than those of experts.cu, and the rows lie in shared memory whole.
//
// A warp has sixteen rows of weights, which pass through its own part of shared memory in pieces of kDepth terms. They
// are the wider side of each mma.sync, whose other side has the same row eight times; its first result counts.
#include <cstdint>

#include "device/cuda/experts/experts.h"
#include "device/cuda/experts/gate_up.cuh"
#include "device/cuda/launch.cuh"
#include "device/cuda/tensor_cores.cuh"
#include "device/cuda/vectors.cuh"

namespace tandem::device::cuda {
namespace {

using bf16 = __nv_bfloat16;

constexpr int kWarps = 4, kThreads = kWarps * kWarp, kStrip = 16;  // weight rows of a warp
constexpr int kDepth = static_cast<int>(kOneTokenDepth), kPieces = 4, kPieceElements = kStrip * kDepth;
constexpr int kSixteens = kDepth / 8;  // sixteen bytes each, of a piece's row

// Returns the element where sixteen bytes of a row begin, permuted by the row so that eight rows share no bank.
__device__ int element_at(int row, int sixteen) { return row * kDepth + ((sixteen ^ (row & 7)) << 3); }

// A warp's strip of weights on its way through its ring: a lane's share of the copies. Every address is made once,
// since few warps on a multiprocessor leave nothing that hides the making of another.
class Strip {
 public:
  // row_of(r) says which row of the weights is row r of the strip.
  template <typename RowOf>
  __device__ Strip(const bf16* weights, RowOf row_of, int K, bf16* ring) : ring_(ring), left_(K / kDepth) {
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const int row = i * (kWarp / kSixteens) + lane() / kSixteens;
      from_[i] = weights + static_cast<int64_t>(row_of(row)) * K + sixteen() * 8;
      to_[i] = element_at(row, sixteen());
    }
  }
  // Starts the copies of the next piece, if there is one.
  __device__ void start_next() {
    if (left_ > 0) {
#pragma unroll
      for (int i = 0; i < kCopies; ++i) {
        copy_16(ring_ + slot_ + to_[i], from_[i], true);
        from_[i] += kDepth;
      }
      --left_;
    }
    close_piece();
    slot_ = after(slot_);
  }
  // Asks for the pieces after those to be brought into the L2 cache, a line of 128 bytes at a time.
  __device__ void prefetch_rest() const {
    constexpr int kLine = 64;
    for (int line = sixteen(); line < left_ * (kDepth / kLine); line += kSixteens) {
#pragma unroll
      for (int i = 0; i < kCopies; ++i) {
        asm volatile("prefetch.global.L2 [%0];" ::"l"(from_[i] + line * kLine - sixteen() * 8));
      }
    }
  }
  // Returns the place in the ring after `slot`.
  static __device__ int after(int slot) { return slot == (kPieces - 1) * kPieceElements ? 0 : slot + kPieceElements; }

 private:
  static constexpr int kCopies = kStrip * kSixteens / kWarp;
  static __device__ int lane() { return static_cast<int>(threadIdx.x) % kWarp; }
  static __device__ int sixteen() { return lane() % kSixteens; }

  const bf16* from_[kCopies];
  int to_[kCopies];
  bf16* ring_;
  int left_, slot_ = 0;
};

template <bool kGateUp, typename Out>
__global__ __launch_bounds__(kThreads) void experts_of_token_kernel(const bf16* rows, const bf16* weights,
                                                                    const int32_t* ids, bool rows_are_of_places, int N,
                                                                    int K, bool ids_are_old, bf16* activated,
                                                                    Out* out) {
  extern __shared__ __align__(128) bf16 shared[];
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int first_row = (static_cast<int>(blockIdx.x) * kWarps + warp) * kStrip;
  const auto place = static_cast<int64_t>(blockIdx.y);
  bf16* const row = shared;
  bf16* const ring = shared + K + warp * kPieces * kPieceElements;

  if (!ids_are_old) wait_for_inputs();
  const int expert = ids[place];
  // Rows past the last repeat it; their outputs are not written.
  const auto row_of = [&](int r) { return kGateUp ? gate_up_row(first_row + r, N) : min(first_row + r, N - 1); };
  Strip strip(weights + static_cast<int64_t>(expert) * N * K, row_of, K, ring);
  for (int piece = 0; piece < kPieces; ++piece) strip.start_next();
  strip.prefetch_rest();

  wait_for_inputs();
  let_next_begin();
  const bf16* const from = rows + (rows_are_of_places ? place * K : 0);
  for (int k = static_cast<int>(threadIdx.x) * 8; k < K; k += kThreads * 8) copy_16(row + k, from + k, true);
  close_piece();
  wait_for_pieces<0>();
  __syncthreads();

  const bf16* row_at = row + lane / 8 * 8;
  int weight_at[kDepth / 16], slot = 0;
#pragma unroll
  for (int k = 0; k < kDepth / 16; ++k) weight_at[k] = element_at(lane % 16, k * 2 + lane / 16);
  float sum[4] = {};
  const int pieces = K / kDepth;
  struct Operands {
    uint32_t weights[kDepth / 16][4], row[kDepth / 32][4];
  };
  // All reads come before the products of the piece before. Between them, the compiler would put them into the
  // registers that the products have just read, and wait for each.
  const auto read = [&](Operands& to) {
    wait_for_pieces<kPieces - 2>();
    __syncwarp();
#pragma unroll
    for (int k = 0; k < kDepth / 16; ++k) read_matrices(to.weights[k], ring + slot + weight_at[k]);
#pragma unroll
    for (int k = 0; k < kDepth / 32; ++k) read_matrices(to.row[k], row_at + k * 32);
    row_at += kDepth;
    slot = Strip::after(slot);
  };
  const auto read_and_multiply = [&](const Operands& from, Operands& to, int next) {
    if (next < pieces) read(to);
    strip.start_next();
#pragma unroll
    for (int k = 0; k < kDepth / 16; ++k) multiply_add(sum, from.weights[k], from.row[k / 2] + k % 2 * 2);
    return next < pieces;
  };
  Operands operands[2];
  read(operands[0]);
  for (int next = 1; read_and_multiply(operands[0], operands[1], next); next += 2) {
    if (!read_and_multiply(operands[1], operands[0], next + 1)) break;
  }

  if (lane % 4 != 0) return;
  if constexpr (kGateUp) {
    const int column = first_row / 2 + lane / 4;
    if (column >= N / 2) return;
    write_gate_up(out == nullptr ? nullptr : out + place * N, activated + place * (N / 2), column, N, sum[0], sum[2]);
  } else {
    const int output = first_row + lane / 4;
    if (output < N) write(out + place * N + output, sum[0]);
    if (output + 8 < N) write(out + place * N + output + 8, sum[2]);
  }
}

template <bool kGateUp, typename Out>
cudaError_t launch(const ExpertsProduct& p, Out* out, cudaStream_t stream) {
  static_assert(experts_shared_bytes(ExpertsTiling::kOneToken, 0) ==
                kWarps * kPieces * kPieceElements * static_cast<int64_t>(sizeof(bf16)));
  const int64_t bytes = experts_shared_bytes(ExpertsTiling::kOneToken, p.K);
  const auto kernel = experts_of_token_kernel<kGateUp, Out>;
  const cudaError_t status =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  if (status != cudaSuccess) return status;
  const dim3 grid(static_cast<unsigned>((p.N + kWarps * kStrip - 1) / (kWarps * kStrip)),
                  static_cast<unsigned>(p.num_places));
  return launch_dependent(kernel, 1, grid, kThreads, static_cast<size_t>(bytes), stream, p.rows, p.weights, p.ids,
                          p.sources == nullptr, p.N, p.K, p.offsets_are_old, p.activated, out);
}

}  // namespace

cudaError_t linear_of_experts_of_token(const ExpertsProduct& p, void* out, bool is_float32, cudaStream_t stream) {
  if (p.activated != nullptr) return launch<true>(p, static_cast<bf16*>(out), stream);
  return is_float32 ? launch<false>(p, static_cast<float*>(out), stream)
                    : launch<false>(p, static_cast<bf16*>(out), stream);
}

}  // namespace tandem::device::cuda
