// sample.h has the contract and the rule. One cluster of blocks draws one token: extremes, the cuts if there are any,
// sums, one search.
#include "device/cuda/sample.h"

#include <climits>

#include "base/rng.h"
#include "device/cuda/row_mass.cuh"

namespace tandem::device::cuda {
namespace {

constexpr int kBins = 2048;

struct SampleShared {
  RowShared row;
  uint32_t low[kBins], high[kBins];  // halves of a 64-bit sum for each bin
  uint64_t scan[kRowWarps];
  uint64_t range_sum;  // sum over the bins that this block merges
  struct Crossing {
    uint64_t above, here;
    int bin;
  } crossing;
  int tie_id;
};
// One function gives the address, so that every caller knows that it is shared memory.
__device__ SampleShared& shared_memory() {
  __shared__ SampleShared shared;
  return shared;
}

struct Result {
  int32_t* token;
  float* logprob;
  float* behavior;
};

// The bits are ordered as the logits are, and -0 and 0 are equal.
__device__ uint32_t ordered_bits(float logit) {
  const uint32_t bits = __float_as_uint(logit + 0.0F);
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}
__device__ float logit_of(uint32_t ordered) {
  return __uint_as_float((ordered & 0x80000000U) != 0 ? ordered & 0x7fffffffU : ~ordered);
}

// The last token that is kept, in the order of tokens: logit descending, then id ascending.
struct Cut {
  float logit = -INFINITY;
  int id = INT_MAX;
  __device__ bool keeps(float x, int i) const { return x > logit || (x == logit && i <= id); }
};

// A row whose largest logit is known.
template <int kCluster, bool kAligned>
class RowSampler {
 public:
  using Part = RowPart<kCluster, kAligned>;

  __device__ RowSampler(const Part& part, const MassScale& scale, float max_logit, double temperature)
      : part_(part),
        scale_(scale),
        max_logit_(max_logit),
        inverse_temperature_(temperature == 0.0 ? 1.0F : static_cast<float>(1.0 / temperature)),
        shared_(shared_memory()) {}

  __device__ void draw_from_all(const Draw& draw, Result result) {
    uint64_t mass = 0;
    part_.for_each([&](float x, int) { mass += mass_of_logit(x); });
    mass = warp_sum(mass);
    if (part_.lane() == 0) shared_.row.chosen[part_.warp()] = mass;
    Part::sync();
    const auto sum = part_.sum_of(shared_.row.chosen);
    part_.locate(
        sum.before, target_of(draw, sum.total), [&](float x, int) { return mass_of_logit(x); },
        [&](float x, int id) {
          *result.token = id;
          *result.logprob = *result.behavior = logprob_of(exponent(x), sum.total, scale_.quantum);
        });
  }

  // This serves greedy draws, too.
  __device__ void draw_truncated(const Draw& draw, Result result) {
    const bool greedy = draw.temperature == 0.0;
    Cut cut;
    float min_exponent = -INFINITY;
    if (greedy) {
      cut.logit = max_logit_;
    } else {
      if (draw.top_k > 0 && draw.top_k < part_.vocab_size()) cut = cut_top_k(static_cast<uint64_t>(draw.top_k));
      if (draw.top_p < 1.0) cut = cut_top_p(draw.top_p, cut);
      min_exponent = __double2float_ru(draw.log_min_p);  // a float reaches the one exactly where it reaches the other
    }
    // A greedy draw takes the first of the equal ones, each of which counts 1.
    const auto kept = [&](float x, int id, uint64_t mass) -> uint64_t {
      const bool keeps = cut.keeps(x, id) && (exponent(x) >= min_exponent || x == max_logit_);
      return keeps ? (greedy ? 1 : mass) : 0;
    };
    uint64_t all = 0, chosen = 0;
    part_.for_each([&](float x, int id) {
      const uint64_t mass = mass_of_logit(x);
      all += mass;
      chosen += kept(x, id, mass);
    });
    all = warp_sum(all);
    chosen = warp_sum(chosen);
    if (part_.lane() == 0) shared_.row.all[part_.warp()] = all, shared_.row.chosen[part_.warp()] = chosen;
    Part::sync();
    all = part_.sum_of(shared_.row.all).total;
    const auto sum = part_.sum_of(shared_.row.chosen);
    part_.locate(
        sum.before, greedy ? 0 : target_of(draw, sum.total),
        [&](float x, int id) { return kept(x, id, mass_of_logit(x)); },
        [&](float x, int id) {
          *result.token = id;
          *result.logprob = logprob_of(exponent(x), all, scale_.quantum);
          *result.behavior = greedy ? 0.0F : logprob_of(exponent(x), sum.total, scale_.quantum);
        });
  }

 private:
  __device__ float exponent(float x) const { return weight_exponent(x, max_logit_, inverse_temperature_); }
  __device__ uint64_t mass_of_logit(float x) const { return mass_of(exponent(x), scale_.shift); }

  // A sum of masses exceeds u * total exactly where it exceeds the whole part of that; where the product is rounded up
  // to the total, the last token with weight is drawn.
  __device__ static uint64_t target_of(const Draw& draw, uint64_t total) {
    const double u = base::uniform(draw.seed, draw.sample_id, static_cast<uint64_t>(draw.position));
    const auto target = static_cast<uint64_t>(u * static_cast<double>(total));
    return target < total ? target : total - 1;
  }

  __device__ Cut cut_top_k(uint64_t k) {
    const Descent last = descend<true>([](float, int) { return uint64_t{1}; }, [&](uint64_t) { return k; });
    return cut_among_equals(last.logit, k - last.above, last.here, Cut{});
  }
  // Cuts among the tokens that `cut` keeps.
  __device__ Cut cut_top_p(double top_p, const Cut& cut) {
    const Descent last = descend<false>([&](float x, int id) { return cut.keeps(x, id) ? mass_of_logit(x) : 0; },
                                        [&](uint64_t total) {
                                          const auto goal =
                                              static_cast<uint64_t>(ceil(top_p * static_cast<double>(total)));
                                          return goal > 0 ? goal : 1;
                                        });
    const uint64_t mass = mass_of_logit(last.logit);
    return cut_among_equals(last.logit, (last.goal - last.above + mass - 1) / mass, last.here / mass, cut);
  }
  // Keeps `kept` of the `equal` tokens with this logit that `cut` keeps.
  __device__ Cut cut_among_equals(float logit, uint64_t kept, uint64_t equal, const Cut& cut) {
    Cut result;
    result.logit = logit;
    if (kept < equal) {
      result.id = id_of_equal(logit, kept - 1);
    } else if (logit == cut.logit) {
      result.id = cut.id;
    }
    return result;
  }

  // Returns the id of number `index` (from 0) of the tokens with this logit.
  __device__ int id_of_equal(float logit, uint64_t index) {
    uint64_t equal = 0;
    part_.for_each([&](float x, int) { equal += x == logit ? 1 : 0; });
    equal = warp_sum(equal);
    if (part_.lane() == 0) shared_.row.chosen[part_.warp()] = equal;
    Part::sync();
    const uint64_t before = part_.sum_of(shared_.row.chosen).before;
    part_.locate(
        before, index, [&](float x, int) { return uint64_t{x == logit}; },
        [&](float, int id) {
          for (int block = 0; block < kCluster; ++block) Part::of_block(shared_.tie_id, block) = id;
        });
    Part::sync();
    return shared_.tie_id;
  }

  // The logit at which the running sum of value(logit, id), from the largest logit down, reaches goal(total) >= 1:
  // `above` is the sum over larger logits, `here` that over logits equal to it; above < goal <= above + here. The
  // logit's ordered bits are found in digits of 11, 11 and 10, each by one histogram of the row's values, of which
  // every block merges a range of bins.
  struct Descent {
    float logit;
    uint64_t above, here, goal;
  };
  template <bool kCounts, typename Value, typename Goal>
  __device__ Descent descend(Value value, Goal goal) {
    constexpr int kBlockBins = kBins / kCluster;
    constexpr int kThreadBins = kBlockBins > kRowThreads ? kBlockBins / kRowThreads : 1;
    const int thread = static_cast<int>(threadIdx.x);
    uint32_t known = 0, found = 0;  // mask of the bits known, and their values
    Descent result{0.0F, 0, 0, 0};
#pragma unroll 1
    for (int shift : {21, 10, 0}) {
      for (int bin = thread; bin < kBins; bin += kRowThreads) shared_.low[bin] = shared_.high[bin] = 0;
      __syncthreads();
      const uint32_t digit_mask = shift == 0 ? 1023 : 2047;
      part_.for_each([&](float x, int id) {
        const uint32_t bits = ordered_bits(x);
        if (((bits ^ found) & known) != 0) return;
        const uint64_t term = value(x, id);
        if (term != 0) add<kCounts>(kBins - 1 - ((bits >> shift) & digit_mask), term);
      });
      Part::sync();

      // Bins lie in the order of tokens, the largest logits first.
      const int first = Part::rank() * kBlockBins + thread * kThreadBins;
      uint64_t bins[kThreadBins] = {}, own = 0;
      if (thread * kThreadBins < kBlockBins) {
#pragma unroll
        for (int i = 0; i < kThreadBins; ++i) {
#pragma unroll 4
          for (int block = 0; block < kCluster; ++block)
            bins[i] += Part::of_block(shared_.low[first + i], block) +
                       (static_cast<uint64_t>(Part::of_block(shared_.high[first + i], block)) << 32);
          own += bins[i];
        }
      }
      const uint64_t through = warp_inclusive_sum(own, part_.lane());
      if (part_.lane() == 31) shared_.scan[part_.warp()] = through;
      __syncthreads();
      uint64_t sum = through - own, range_sum = 0;  // sum: of the bins before this thread's
      for (int warp = 0; warp < kRowWarps; ++warp) {
        if (warp < part_.warp()) sum += shared_.scan[warp];
        range_sum += shared_.scan[warp];
      }
      if (thread == 0) shared_.range_sum = range_sum;
      Part::sync();

      // Reads the ranges of the blocks lane by lane.
      const int lane = part_.lane();
      const uint64_t range = lane < kCluster ? Part::of_block(shared_.range_sum, lane) : 0;
      const uint64_t through_range = warp_inclusive_sum(range, lane);
      sum += __shfl_sync(kAllLanes, through_range - range, Part::rank());
      if (known == 0) result.goal = goal(__shfl_sync(kAllLanes, through_range, 31));
      const uint64_t missing = result.goal - result.above;
      const bool crosses = through_range - range < missing && missing <= through_range;
      const int owner = __ffs(static_cast<int>(__ballot_sync(kAllLanes, crosses))) - 1;
#pragma unroll
      for (int i = 0; i < kThreadBins; ++i) {
        if (sum < missing && missing <= sum + bins[i]) shared_.crossing = {result.above + sum, bins[i], first + i};
        sum += bins[i];
      }
      Part::sync();
      const auto crossing = Part::of_block(shared_.crossing, owner);
      result.above = crossing.above;
      result.here = crossing.here;
      known |= digit_mask << shift;
      found |= static_cast<uint32_t>(kBins - 1 - crossing.bin) << shift;
    }
    result.logit = logit_of(found);
    return result;
  }

  template <bool kCounts>
  __device__ void add(uint32_t bin, uint64_t term) {
    const auto low = static_cast<uint32_t>(term);
    if constexpr (kCounts) {
      atomicAdd(&shared_.low[bin], low);
    } else {
      const uint32_t before = atomicAdd(&shared_.low[bin], low);
      const uint32_t high = static_cast<uint32_t>(term >> 32) + (before + low < before ? 1 : 0);
      if (high != 0) atomicAdd(&shared_.high[bin], high);
    }
  }

  Part part_;
  const MassScale scale_;
  const float max_logit_, inverse_temperature_;
  SampleShared& shared_;
};

// It is not inlined: its registers are no burden on the draws without truncation.
template <int kCluster, bool kAligned>
__device__ __noinline__ void draw_truncated(const float* row, int vocab_size, double shift, double quantum,
                                            float max_logit, const Draw* draw, Result result) {
  const RowPart<kCluster, kAligned> part(row, vocab_size, shared_memory().row);
  RowSampler<kCluster, kAligned> sampler(part, {shift, quantum, 0.0, 0.0}, max_logit, draw->temperature);
  sampler.draw_truncated(*draw, result);
}

template <int kCluster, bool kAligned>
__global__ void __launch_bounds__(kRowThreads, 2)
    sample_rows(const float* logits, const Draw* draws, int vocab_size, MassScale scale, int32_t* token, float* logprob,
                float* behavior) {
  if (!can_run<kCluster>()) return;
  const unsigned index = blockIdx.x / kCluster;
  const Draw& draw = draws[index];
  if (draw.row < 0) return;
  const Result result{token + index, logprob + index, behavior + index};
  const float* row = logits + static_cast<int64_t>(draw.row) * vocab_size;
  RowPart<kCluster, kAligned> part(row, vocab_size, shared_memory().row);
  const auto extremes = part.extremes();
  if (!extremes.finite()) {
    if (part.rank() == 0 && threadIdx.x == 0) *result.token = -1, *result.logprob = 0.0F, *result.behavior = 0.0F;
  } else if (draw.temperature == 0.0 || (draw.top_k > 0 && draw.top_k < vocab_size) || draw.top_p < 1.0 ||
             draw.log_min_p > -INFINITY) {
    draw_truncated<kCluster, kAligned>(row, vocab_size, scale.shift, scale.quantum, extremes.largest, &draw, result);
  } else {
    RowSampler<kCluster, kAligned>(part, scale, extremes.largest, draw.temperature).draw_from_all(draw, result);
  }
  part.sync();  // a block stays while others read its shared memory
}

template <int kCluster, bool kAligned>
cudaError_t launch(const float* logits, const Draw* draws, int64_t num_draws, int64_t vocab_size, int32_t* token,
                   float* logprob, float* behavior, cudaStream_t stream) {
  const auto kernel = sample_rows<kCluster, kAligned>;
  return launch_rows<kCluster>(kernel, num_draws, stream, logits, draws, static_cast<int>(vocab_size),
                               mass_scale(vocab_size), token, logprob, behavior);
}

}  // namespace

// Launches with so many blocks for each row: 1, or, where the device has clusters and V is a multiple of 4, 2, 4 or 8.
// The results are the same.
static cudaError_t sample_with_blocks(int blocks_per_row, const float* logits, const Draw* draws, int64_t num_draws,
                                      int64_t vocab_size, int32_t* token, float* logprob, float* behavior,
                                      cudaStream_t stream) {
  if (vocab_size < 1 || vocab_size > (int64_t{1} << 30)) return cudaErrorInvalidValue;
  if (num_draws == 0) return cudaSuccess;
  const auto go = [&](auto launch_as) {
    return launch_as(logits, draws, num_draws, vocab_size, token, logprob, behavior, stream);
  };
  if (vocab_size % 4 != 0) return blocks_per_row == 1 ? go(launch<1, false>) : cudaErrorInvalidValue;
  switch (blocks_per_row) {
    case 1: return go(launch<1, true>);
    case 2: return go(launch<2, true>);
    case 4: return go(launch<4, true>);
    case 8: return go(launch<8, true>);
    default: return cudaErrorInvalidValue;
  }
}

cudaError_t sample(const float* logits, const Draw* draws, int64_t num_draws, int64_t vocab_size, int32_t* token,
                   float* logprob, float* behavior, cudaStream_t stream) {
  static const bool clusters = has_clusters(sample_rows<8, true>);
  // Below some thousand logits a row is a matter of latency; above, it gets as many blocks as keep the GPU busy.
  const bool cut = clusters && vocab_size % 4 == 0 && vocab_size > 4096;
  const int blocks = !cut || num_draws > 128 ? 1 : num_draws > 32 ? 2 : num_draws > 16 ? 4 : 8;
  return sample_with_blocks(blocks, logits, draws, num_draws, vocab_size, token, logprob, behavior, stream);
}

}  // namespace tandem::device::cuda
