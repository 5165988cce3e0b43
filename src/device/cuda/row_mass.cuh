// One row of logits read by one block or by a cluster of blocks: its extremes, and sums of its weights.
//
// Every sum here is a sum of integers, so that no cut of a row over threads and blocks can change a result. The mass of
// a token is its weight (device/sampling_weight.h) in units of the weights' quantum, 2^(k - 35).
//
// A row is cut into units of 128 logits, units into equal runs over the blocks of its cluster, and a block's run into
// equal runs over its warps. A cluster needs sm_90; one block a row runs everywhere.
#pragma once

#include <cooperative_groups.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "device/sampling_weight.h"

namespace tandem::device::cuda {

inline constexpr int kRowThreads = 512;
inline constexpr int kRowWarps = kRowThreads / 32;
inline constexpr int kUnitLogits = 128;
inline constexpr unsigned kAllLanes = 0xffffffffU;

// The vocabulary's rounding for draws and log-probs, made once on the host.
struct MassScale {
  double shift;          // added to a weight, it rounds it to a multiple of the quantum, which the low bits then count
  double quantum;        // size of a mass's unit
  double entropy_shift;  // shift for products of a weight and its exponent
  double entropy_quantum;
};
// Products are in (-0.37, 0], so that 2^(18 + k) of them in units of 2^(k - 43) stay within 60 bits.
inline MassScale mass_scale(int64_t vocab_size) {
  const double up = static_cast<double>(int64_t{1} << weight_rounding_bits(vocab_size));
  return {
      .shift = 0x1.8p17 * up, .quantum = 0x1p-35 * up, .entropy_shift = 0x1.8p9 * up, .entropy_quantum = 0x1p-43 * up};
}

// Returns weight(exponent, weight_rounding(V)) in quanta. Both round to the nearest quantum, ties to even: below
// weight_rounding() the sum of the two has the quantum as its last bit, above it a float32 is a multiple already.
__device__ inline int64_t rounded_units(float x, double shift) {
  return __double_as_longlong(__dadd_rn(static_cast<double>(x), shift)) - __double_as_longlong(shift);
}
__device__ inline uint64_t mass_of(float exponent, double shift) {
  return static_cast<uint64_t>(rounded_units(exp_in_range(fmaxf(exponent, kMinExponent)), shift));
}

// Returns the log-prob of a token, given the mass that it competes with. Every kernel's log-probs come from here.
__device__ inline float logprob_of(float exponent, uint64_t total_mass, double quantum) {
  return static_cast<float>(static_cast<double>(exponent) - log(static_cast<double>(total_mass) * quantum));
}

__device__ inline float max_or_nan(float a, float b) {
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
}
__device__ inline float min_or_nan(float a, float b) {
  float result;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
}

template <typename Integer>
__device__ Integer warp_sum(Integer x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(kAllLanes, x, offset);
  return x;
}
__device__ inline uint64_t warp_inclusive_sum(uint64_t x, int lane) {
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const uint64_t before = __shfl_up_sync(kAllLanes, x, offset);
    if (lane >= offset) x += before;
  }
  return x;
}

// Returns whether code for this architecture can have so many blocks a row.
template <int kCluster>
__device__ constexpr bool can_run() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
  return kCluster == 1;
#else
  return true;
#endif
}

// The data that the blocks of a cluster show one another; there is one in each block's shared memory.
struct RowShared {
  float2 extremes[kRowWarps];  // smallest and largest logit
  uint64_t all[kRowWarps];     // mass of each warp's logits
  uint64_t chosen[kRowWarps];  // sum that locate() searches, by warp
  uint64_t pieces[kRowWarps];  // the same sum of one warp's run, cut again
  int64_t weighted_exponents[kRowWarps];
};

// Computes a block's part of a row. kAligned means that rows start at multiples of 16 bytes, and V is a multiple of 4.
template <int kCluster, bool kAligned>
class RowPart {
 public:
  __device__ RowPart(const float* row, int vocab_size, RowShared& shared)
      : row_(row), vocab_size_(vocab_size), shared_(shared), warp_(threadIdx.x / 32), lane_(threadIdx.x % 32) {
    const int units = (vocab_size + kUnitLogits - 1) / kUnitLogits;
    units_per_block_ = (units + kCluster - 1) / kCluster;
    units_per_warp_ = (units_per_block_ + kRowWarps - 1) / kRowWarps;
    block_begin_ = min(units, rank() * units_per_block_);
    block_end_ = min(units, block_begin_ + units_per_block_);
  }

  __device__ static int rank() {
    if constexpr (kCluster == 1) return 0;
    return static_cast<int>(blockIdx.x % kCluster);
  }
  __device__ int vocab_size() const { return vocab_size_; }
  __device__ int lane() const { return lane_; }
  __device__ int warp() const { return warp_; }

  // Synchronises all threads of the cluster. As the last call it also keeps a block's shared memory alive while others
  // read it.
  __device__ static void sync() {
    if constexpr (kCluster == 1) {
      __syncthreads();
    } else {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
      cooperative_groups::this_cluster().sync();
#endif
    }
  }
  // Returns the address, here, of block `rank`'s copy of `local`, in shared memory.
  template <typename T>
  __device__ static T& of_block(T& local, int rank) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    if constexpr (kCluster > 1) return *cooperative_groups::this_cluster().map_shared_rank(&local, rank);
#endif
    return local;
  }

  // Calls f(logit, id) for every logit of this warp's run.
  template <typename Function>
  __device__ void for_each(Function f) const {
    const int begin = warp_begin(warp_);
    for_each_in(begin, warp_end(begin), f);
  }

  struct Extremes {
    float smallest, largest;  // NaN if a logit is
    __device__ bool finite() const { return isfinite(smallest) && isfinite(largest); }
  };
  __device__ Extremes extremes() {
    float smallest = INFINITY, largest = -INFINITY;
    for_each([&](float x, int) {
      smallest = min_or_nan(smallest, x);
      largest = max_or_nan(largest, x);
    });
    reduce_extremes(smallest, largest);
    if (lane_ == 0) shared_.extremes[warp_] = {smallest, largest};
    sync();
    smallest = INFINITY, largest = -INFINITY;
    for (int i = lane_; i < kCluster * kRowWarps; i += 32) {
      const float2 part = of_block(shared_.extremes[i % kRowWarps], i / kRowWarps);
      smallest = min_or_nan(smallest, part.x);
      largest = max_or_nan(largest, part.y);
    }
    reduce_extremes(smallest, largest);
    return {smallest, largest + 0.0F};  // 0 rather than -0, whichever of the two was met first
  }

  // The sum over the cluster of the values that each warp left in `parts`, a member of RowShared. A sync() comes first.
  struct Sum {
    uint64_t total, before;  // sum of all blocks, and of the blocks of lower rank
  };
  template <typename Integer>
  __device__ Sum sum_of(Integer (&parts)[kRowWarps]) const {
    Sum sum = {};
    for (int i = lane_; i < kCluster * kRowWarps; i += 32) {
      const auto part = static_cast<uint64_t>(of_block(parts[i % kRowWarps], i / kRowWarps));
      sum.total += part;
      if (i / kRowWarps < rank()) sum.before += part;
    }
    return {warp_sum(sum.total), warp_sum(sum.before)};
  }

  // Finds the first id at which the running sum of value(logit, id) exceeds `target`, and calls found(logit, id) in one
  // thread of the cluster. shared_.chosen holds the sums of the warps, `before` the sum before this block, and target
  // is less than the sum of all. All threads of a block must call it.
  template <typename Value, typename Found>
  __device__ void locate(uint64_t before, uint64_t target, Value value, Found found) {
    int owner = 0;
    uint64_t running = before;
    while (owner < kRowWarps && running + shared_.chosen[owner] <= target) running += shared_.chosen[owner++];
    if (before > target || owner == kRowWarps) return;  // the id is in another block

    // The whole block reads the run of the warp that has it.
    const int run_begin = warp_begin(owner), run_end = warp_end(run_begin);
    const int step = (run_end - run_begin + kRowWarps - 1) / kRowWarps;
    const int begin = min(run_end, run_begin + warp_ * step), end = min(run_end, begin + step);
    uint64_t sum = 0;
    for (int unit = begin; unit < end; ++unit) {
      const int id = unit * kUnitLogits + lane_ * 4;
#pragma unroll
      for (int i = 0; i < 4; ++i) sum += id + i < vocab_size_ ? value(row_[id + i], id + i) : 0;
    }
    sum = warp_sum(sum);
    if (lane_ == 0) shared_.pieces[warp_] = sum;
    __syncthreads();
    int piece = 0;
    while (running + shared_.pieces[piece] <= target) running += shared_.pieces[piece++];
    if (warp_ != piece) return;

    for (int unit = begin; unit < end; ++unit) {
      const int id = unit * kUnitLogits + lane_ * 4;
      uint64_t values[4], own = 0;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        values[i] = id + i < vocab_size_ ? value(row_[id + i], id + i) : 0;
        own += values[i];
      }
      const uint64_t through = warp_inclusive_sum(own, lane_);
      const uint64_t unit_sum = __shfl_sync(kAllLanes, through, 31);
      if (running + unit_sum <= target) {
        running += unit_sum;
        continue;
      }
      uint64_t sum_before = running + through - own;
      if (sum_before <= target && target < running + through) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (sum_before <= target && target < sum_before + values[i]) found(row_[id + i], id + i);
          sum_before += values[i];
        }
      }
      return;
    }
  }

 private:
  __device__ int warp_begin(int warp) const { return min(block_end_, block_begin_ + warp * units_per_warp_); }
  __device__ int warp_end(int begin) const { return min(block_end_, begin + units_per_warp_); }

  __device__ static void reduce_extremes(float& smallest, float& largest) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
      smallest = min_or_nan(smallest, __shfl_xor_sync(kAllLanes, smallest, offset));
      largest = max_or_nan(largest, __shfl_xor_sync(kAllLanes, largest, offset));
    }
  }

  template <typename Function>
  __device__ void for_each_in(int begin, int end, Function f) const {
    constexpr int kInFlight = 4;  // loads of 16 bytes in flight in a lane
    if constexpr (kAligned) {
      const float4* units = reinterpret_cast<const float4*>(row_) + lane_;
      int unit = begin;
      for (; unit + kInFlight <= end && (unit + kInFlight) * kUnitLogits <= vocab_size_; unit += kInFlight) {
        float4 x[kInFlight];
#pragma unroll
        for (int i = 0; i < kInFlight; ++i) x[i] = units[(unit + i) * 32];
#pragma unroll
        for (int i = 0; i < kInFlight; ++i) call_with_four(x[i], (unit + i) * kUnitLogits + lane_ * 4, f);
      }
      for (; unit < end; unit += kInFlight) {
        float4 x[kInFlight];
#pragma unroll
        for (int i = 0; i < kInFlight; ++i) {
          if (inside(unit + i, end)) x[i] = units[(unit + i) * 32];
        }
#pragma unroll
        for (int i = 0; i < kInFlight; ++i) {
          if (inside(unit + i, end)) call_with_four(x[i], (unit + i) * kUnitLogits + lane_ * 4, f);
        }
      }
    } else {
      const int last = min(vocab_size_, end * kUnitLogits);
      for (int id = begin * kUnitLogits + lane_; id < last; id += 32) f(row_[id], id);
    }
  }
  __device__ bool inside(int unit, int end) const { return unit < end && unit * kUnitLogits + lane_ * 4 < vocab_size_; }
  template <typename Function>
  __device__ static void call_with_four(float4 x, int id, Function& f) {
    f(x.x, id);
    f(x.y, id + 1);
    f(x.z, id + 2);
    f(x.w, id + 3);
  }

  const float* const row_;
  const int vocab_size_;
  RowShared& shared_;
  const int warp_, lane_;
  int units_per_block_, units_per_warp_;
  int block_begin_, block_end_;  // first unit and end of this block
};

// The launch of kCluster blocks for each of `rows` rows.
template <int kCluster>
struct RowLaunch {
  RowLaunch(int64_t rows, cudaStream_t stream) {
    config.gridDim = dim3(static_cast<unsigned>(rows * kCluster));
    config.blockDim = dim3(kRowThreads);
    config.stream = stream;
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = kCluster;
    cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    config.attrs = &cluster;
    config.numAttrs = kCluster > 1 ? 1 : 0;
  }
  RowLaunch(const RowLaunch&) = delete;
  RowLaunch& operator=(const RowLaunch&) = delete;

  cudaLaunchConfig_t config{};
  cudaLaunchAttribute cluster{};
};

// Returns whether the GPU runs this kernel with eight blocks in a cluster: the code that runs must be for sm_90 or later,
// and the GPU is asked whether it has room for such a cluster.
template <typename Kernel>
bool has_clusters(Kernel* kernel) {
  cudaFuncAttributes attributes{};
  if (cudaFuncGetAttributes(&attributes, kernel) != cudaSuccess || attributes.ptxVersion < 90) return false;
  const RowLaunch<8> launch(1, nullptr);
  int clusters = 0;
  if (cudaOccupancyMaxActiveClusters(&clusters, kernel, &launch.config) == cudaSuccess) return clusters > 0;
  cudaGetLastError();  // the refusal is the answer, and no later launch is to find it
  return false;
}

// Launches kernel(args...) with kCluster blocks for each of `rows` rows.
template <int kCluster, typename... Parameters, typename... Arguments>
cudaError_t launch_rows(void (*kernel)(Parameters...), int64_t rows, cudaStream_t stream, Arguments... arguments) {
  const RowLaunch<kCluster> launch(rows, stream);
  return cudaLaunchKernelEx(&launch.config, kernel, static_cast<Parameters>(arguments)...);
}

}  // namespace tandem::device::cuda
