// A warp has a strip of kStrip rows of the weight at a time, which pass through its own ring of pieces in shared
// memory, kDepth terms each. The strip is the narrow side of each mma.sync, whose wide side has the rows of x. All of x
// lies in shared memory.
//
// The sums of a strip are a chain: each product on the tensor core waits for the one before it. So operands of later
// products are read between products, and a piece is copied by one instruction of the copy engine. Copies of its eight
// rows are issued lane after lane, which made a layer of Qwen3-4B 102 us instead of 74.
//
// Sixteen terms and the sum before them make one sum on the tensor core, whatever the order of the sixteen. So a lane
// takes four neighbouring terms of each sixteen, of x as of the weight, where the instruction's own order would be two
// and two: one read of eight bytes in the place of two.
#include "device/cuda/few_rows.h"

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

constexpr int kStrip = 8, kMostWarps = 12;
// The instruction has room for eight rows. With so many, the kernel is as fast as the library's at best
// (bench/results/decode_gpu.md).
constexpr int64_t kMostRows = 4;
constexpr int kColumns = kSwizzledRow / 2;                                    // terms of a row in a box
constexpr int kBoxes = 4, kDepth = kBoxes * kColumns;                         // boxes and terms of a piece
constexpr int kGroup = 128, kSteps = kGroup / 16, kGroups = kDepth / kGroup;  // terms that are in registers at once
constexpr int kBoxElements = kStrip * kColumns, kPieceElements = kBoxes * kBoxElements;
constexpr int kMostSlots = 32, kFewestSlots = 3;  // pieces of a ring
// A row of x in shared memory is followed by so many unused elements, so that four rows that are read at once share no
// bank.
constexpr int kPadding = 16;
// Products with larger weights are the library's: they take so long that the launch does not matter.
constexpr int64_t kMostWeightBytes = 128 << 20;

__device__ inline float widen(float x) { return x; }
__device__ inline float widen(bf16 x) { return __bfloat162float(x); }
__device__ inline void write(float* to, float x) { *to = x; }
__device__ inline void write(bf16* to, float x) { *to = __float2bfloat16_rn(x); }

struct Params {
  CUtensorMap weight;  // [64, N, K / 64], boxes of 64 x kStrip x kBoxes
  const bf16* x;
  int T, N, K, strips, slots;
  bool weight_is_old;
};

// A warp's strips on their way through its ring.
class Ring {
 public:
  __device__ Ring(const Params& p, bf16* ring, Barrier* is_full, int first_strip, int stride)
      : p_(p), ring_(ring), is_full_(is_full), strip_(first_strip), stride_(stride) {}
  // Starts the copy of the next piece, if there is one.
  __device__ void start_next() {
    if (strip_ >= p_.strips) return;
    if (is_elected()) {
      is_full_[slot_].arrive_and_expect(kPieceElements * sizeof(bf16));
      copy_box(p_.weight, 0, strip_ * kStrip, term_ / kColumns, shared_address(ring_ + slot_ * kPieceElements),
               is_full_[slot_]);
    }
    slot_ = slot_ + 1 == p_.slots ? 0 : slot_ + 1;
    term_ += kDepth;
    if (term_ < p_.K) return;
    term_ = 0;
    strip_ += stride_;
  }

 private:
  const Params& p_;
  bf16* ring_;
  Barrier* is_full_;
  int strip_, stride_, term_ = 0, slot_ = 0;
};

// A lane's operands of one kGroup: four terms of each sixteen, of a row of the strip and of a row of x.
struct Operands {
  uint2 weight[kSteps], x[kSteps];
};

// Computes the sums of a warp's strips.
class Multiplier {
 public:
  __device__ Multiplier(const Params& p, const bf16* ring, const bf16* x, Barrier* is_full)
      : ring_(ring), is_full_(is_full), slots_(p.slots), groups_(p.K / kGroup), has_row_(line() < p.T) {
    x_ = x + line() * (p.K + kPadding) + quarter() * 4;
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      const int row = strip_row(line()), sixteen_bytes = s * 2 + quarter() / 2;
      weight_at_[s] = row * kColumns + ((sixteen_bytes ^ row) << 3) + quarter() % 2 * 4;
    }
  }
  // Returns the row of a strip that is line `n` of the instruction's. Lines that are read at once share no bank.
  static __device__ int strip_row(int n) { return n % 4 * 2 + n / 4; }

  // Adds up the next strip: sum[0] and sum[1] are those of two of its lines with the lane's row of x.
  __device__ void run(float (&sum)[4], Ring& ring) {
    Operands operands[2] = {};
    wait_for_piece();
#pragma unroll
    for (int s = 0; s < kSteps; ++s) read(operands[0], 0, s);
    int group = 0;
    for (; group + 2 < groups_; group += 2) {
      multiply_and_read(sum, operands[0], operands[1], group + 1, ring);
      multiply_and_read(sum, operands[1], operands[0], group + 2, ring);
    }
    multiply_and_read(sum, operands[0], operands[1], group + 1, ring);
#pragma unroll
    for (int s = 0; s < kSteps; ++s) multiply(sum, operands[1], s);
  }

 private:
  static_assert(kGroups == 2, "run() takes groups in pairs");
  static __device__ int line() { return static_cast<int>(threadIdx.x) % kWarp / 4; }
  static __device__ int quarter() { return static_cast<int>(threadIdx.x) % 4; }

  __device__ void wait_for_piece() { is_full_[slot_].wait(parity_); }
  __device__ void read(Operands& to, int group, int s) const {
    const bf16* const piece = ring_ + slot_ * kPieceElements + group % kGroups * (kGroup / kColumns) * kBoxElements;
    to.weight[s] = *reinterpret_cast<const uint2*>(piece + s / 4 * kBoxElements + weight_at_[s % 4]);
    if (has_row_) to.x[s] = *reinterpret_cast<const uint2*>(x_ + group * kGroup + s * 16);
  }
  static __device__ void multiply(float (&sum)[4], const Operands& from, int s) {
    const uint32_t x[4] = {from.x[s].x, 0, from.x[s].y, 0}, weight[2] = {from.weight[s].x, from.weight[s].y};
    multiply_add(sum, x, weight);
  }
  // Multiplies a group and reads the group `next`. A piece's memory is given back when its last group is read.
  __device__ void multiply_and_read(float (&sum)[4], const Operands& from, Operands& to, int next, Ring& ring) {
    if (next % kGroups == 0) wait_for_piece();
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      read(to, next, s);
      multiply(sum, from, s);
    }
    if (next % kGroups + 1 < kGroups) return;
    __syncwarp();
    ring.start_next();
    slot_ = slot_ + 1 == slots_ ? 0 : slot_ + 1;
    parity_ ^= slot_ == 0 ? 1U : 0U;
  }

  const bf16 *ring_, *x_;
  Barrier* is_full_;
  int slots_, groups_, slot_ = 0, weight_at_[4];
  bool has_row_;
  uint32_t parity_ = 0;
};

template <typename Out>
__global__ __launch_bounds__(kMostWarps* kWarp, 1) void few_rows_kernel(const __grid_constant__ Params p,
                                                                        const Out* added, Out* out) {
  extern __shared__ __align__(1024) bf16 memory[];
  __shared__ Barrier is_full[kMostWarps][kMostSlots];
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warps = static_cast<int>(blockDim.x) / kWarp, blocks = static_cast<int>(gridDim.x);
  const int first_strip = static_cast<int>(blockIdx.x) + warp * blocks, stride = blocks * warps;
  bf16* const own = memory + warp * p.slots * kPieceElements;
  bf16* const x = memory + warps * p.slots * kPieceElements;  // [T, K + kPadding]

  if (!p.weight_is_old) wait_for_inputs();
  if (lane == 0) {
    for (int slot = 0; slot < p.slots; ++slot) is_full[warp][slot].init(1);
    show_to_products();
  }
  __syncwarp();
  Ring ring(p, own, is_full[warp], first_strip, stride);
  for (int slot = 0; slot < p.slots; ++slot) ring.start_next();

  wait_for_inputs();
  let_next_begin();
  for (int row = 0; row < p.T; ++row) {
    for (int i = static_cast<int>(threadIdx.x) * 8; i < p.K; i += static_cast<int>(blockDim.x) * 8) {
      copy_16(x + row * (p.K + kPadding) + i, p.x + static_cast<int64_t>(row) * p.K + i, true);
    }
  }
  close_piece();
  wait_for_pieces<0>();
  __syncthreads();

  Multiplier multiplier(p, own, x, is_full[warp]);
  for (int strip = first_strip; strip < p.strips; strip += stride) {
    float sum[4] = {};
    multiplier.run(sum, ring);
    if (lane / 4 >= p.T) continue;
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int column = strip * kStrip + Multiplier::strip_row(lane % 4 * 2 + e);
      const int64_t at = static_cast<int64_t>(lane / 4) * p.N + column;
      write(out + at, added == nullptr ? sum[e] : sum[e] + widen(added[at]));
    }
  }
}

// Asks the current device once: all that a process uses are alike.
const GpuLimits& gpu() {
  static const GpuLimits limits = gpu_limits();
  return limits;
}

// The division of a product's work.
struct Cut {
  int64_t strips, blocks, warps, slots, bytes;
};
// Takes sizes of which supports_few_rows() has found all but the number of slots in order.
Cut cut(int64_t T, int64_t N, int64_t K) {
  const int64_t strips = N / kStrip, blocks = std::min(strips, gpu().multiprocessors);
  const int64_t warps = std::min<int64_t>(kMostWarps, (strips + blocks - 1) / blocks);
  const int64_t strips_of_warp = (strips + blocks * warps - 1) / (blocks * warps);
  constexpr int64_t kElement = sizeof(bf16), kSlotBytes = kPieceElements * kElement;
  const int64_t bytes_of_rows = T * (K + kPadding) * kElement;
  const int64_t slots = std::min({(kFewRowsSharedBytes - bytes_of_rows) / (warps * kSlotBytes),
                                  strips_of_warp * (K / kDepth), int64_t{kMostSlots}});
  return {strips, blocks, warps, slots, bytes_of_rows + warps * slots * kSlotBytes};
}

template <typename Out>
cudaError_t launch(const FewRowsProduct& p, cudaStream_t stream) {
  const Cut c = cut(p.T, p.N, p.K);
  const auto kernel = few_rows_kernel<Out>;
  const cudaError_t status =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(kFewRowsSharedBytes));
  if (status != cudaSuccess) return status;
  Params params = {.weight = {},
                   .x = p.x,
                   .T = static_cast<int>(p.T),
                   .N = static_cast<int>(p.N),
                   .K = static_cast<int>(p.K),
                   .strips = static_cast<int>(c.strips),
                   .slots = static_cast<int>(c.slots),
                   .weight_is_old = p.weight_is_old};
  const auto N = static_cast<uint64_t>(p.N), K = static_cast<uint64_t>(p.K);
  if (!describe_tensor(params.weight, p.w, {kColumns, N, K / kColumns}, {K * sizeof(bf16), kSwizzledRow},
                       {kColumns, kStrip, kBoxes})) {
    return cudaErrorInvalidValue;
  }
  return launch_dependent(kernel, p.T, static_cast<unsigned>(c.blocks), static_cast<unsigned>(c.warps * kWarp),
                          static_cast<size_t>(c.bytes), stream, params, static_cast<const Out*>(p.added),
                          static_cast<Out*>(p.out));
}

}  // namespace

bool supports_few_rows(int64_t T, int64_t N, int64_t K) {
  if (T < 1 || T > kMostRows || N < kStrip || N % kStrip != 0 || K < kDepth || K % kDepth != 0) return false;
  if (N * K * static_cast<int64_t>(sizeof(bf16)) > kMostWeightBytes || !runs_few_rows(gpu())) return false;
  return cut(T, N, K).slots >= std::min<int64_t>(kFewestSlots, K / kDepth);
}

cudaError_t linear_of_few_rows(const FewRowsProduct& product, cudaStream_t stream) {
  if (!supports_few_rows(product.T, product.N, product.K)) return cudaErrorInvalidValue;
  return product.is_float32 ? launch<float>(product, stream) : launch<bf16>(product, stream);
}

}  // namespace tandem::device::cuda
