// How a warp of the kernel of few rows with codes (few_rows_codes.cu) turns codes of a quantised matrix into bfloat16.
// A strip is kCodeRows rows of the matrix; a segment is kSegment terms of a strip. Each kind has
//   kBoxes         boxes of the copy engine of which a segment is made, kSegmentBytes in all
//   kTableBytes    of shared memory that all warps read, filled by fill()
//   prepare()      makes the maxima of the warp's next segment, and begins to read those of the one after it
//   group()        returns the lane's numbers of a group of the segment
// A lane has four terms of each sixteen, of rows `line` and `line` + 8 of the strip. All lanes of a warp make the same
// calls.
#pragma once

#include <cuda.h>

#include <algorithm>
#include <climits>
#include <cstddef>
#include <cstdint>

#include "device/cuda/products/code_numbers.cuh"
#include "device/cuda/products/quantised.h"
#include "device/cuda/tensor_cores.cuh"
#include "device/cuda/vectors.cuh"
#include "device/cuda/warpgroups.cuh"

namespace tandem::device::cuda {

constexpr int kCodeRows = 16, kSegment = 256;
constexpr int kMostParts = QuantisedWeight::kMostParts;
constexpr int kGroup = static_cast<int>(kNf4Block);  // terms that have one maximum
constexpr int kGroupSteps = kGroup / 16, kSegmentGroups = kSegment / kGroup;
constexpr int kRowBytes = static_cast<int>(kSwizzledRow), kCodeBoxBytes = kCodeRows * kRowBytes;

// A quantised matrix [N, K], whose parts are whole strips. What a block needs first lies together, since a kernel's
// parameters come to a multiprocessor line by line; and no index is computed, since such reads come late.
struct QuantisedStrips {
  int first_strip[kMostParts];  // of the parts; INT_MAX where there is none
  int num_parts, groups;        // groups of a row
  const uint8_t* maxima[kMostParts];
  const float* scales[kMostParts];
  const float* tables[kMostParts];
  CUtensorMap codes[kMostParts];  // as rows of so many bytes of numbers of two bytes

  __device__ int part_of(int strip) const {
    static_assert(kMostParts == 3);
    return (strip >= first_strip[1] ? 1 : 0) + (strip >= first_strip[2] ? 1 : 0);
  }
  template <typename T>
  static __device__ T of(const T (&values)[kMostParts], int part) {
    return part == 0 ? values[0] : part == 1 ? values[1] : values[2];
  }
  // Returns the first row of the strip in its part.
  __device__ int row_of(int strip, int part) const { return (strip - of(first_strip, part)) * kCodeRows; }
};

// Which four terms of each sixteen a lane has, as two pairs. It changes no sum, since the instruction adds sixteen at
// once.
enum class Order : uint8_t {
  kNeighbours,  // quarter * 4 and on
  kHalves,      // quarter * 2 and on, and those eight further on, as ldmatrix reads them
};

template <Order kOrder>
constexpr bool kAreNeighbours = kOrder == Order::kNeighbours;

// A segment of a strip of the matrix.
struct Segment {
  int strip, number;
};

struct CodeLane {
  int line = static_cast<int>(threadIdx.x) % kWarp / 4, quarter = static_cast<int>(threadIdx.x) % 4;
  // Returns where the lane's row `line` of a box has its `bytes` of the first sixteen bytes. Those of sixteen bytes `n`
  // lie at this ^ n * 16, and row `line` + 8 is kSwizzledRows further on.
  __device__ int at(int bytes) const { return line * kRowBytes + line * 16 + quarter * bytes; }
};

// Numbers of four rows and terms, as the instruction takes them: {row line, row line + 8} x {two terms, two more}.
using Numbers = uint32_t[4];

// The table has the pairs of values, and behind them the values of the codes of maxima, of each part. A row has a
// maximum for each group of a segment, and each of the row's four lanes makes as many.
class Nf4Codes {
 public:
  static constexpr int kBoxes = kSegment / 2 / kRowBytes, kSegmentBytes = kBoxes * kCodeBoxBytes;
  static constexpr int kValues = static_cast<int>(kNf4TableSize) + 4;  // of a part; the last ones are room
  static constexpr int kTableBytes = Nf4Pairs::kBytes + kMostParts * kValues * static_cast<int>(sizeof(float));

  // A block has at least as many threads as a part has values.
  static __device__ void fill(const QuantisedStrips& source, std::byte* table) {
    const int thread = static_cast<int>(threadIdx.x);
    auto* const values = reinterpret_cast<float*>(table + Nf4Pairs::kBytes);
    float of_parts[kMostParts];
#pragma unroll
    for (int part = 0; part < kMostParts; ++part) {
      if (part < source.num_parts && thread <= kNf4TableSize) of_parts[part] = source.tables[part][thread];
    }
    Nf4Pairs::fill(table);
#pragma unroll
    for (int part = 0; part < kMostParts; ++part) {
      if (part < source.num_parts && thread <= kNf4TableSize) values[part * kValues + thread] = of_parts[part];
    }
  }

  __device__ Nf4Codes(const QuantisedStrips& source, const std::byte* table)
      : source_(source), values_(reinterpret_cast<const float*>(table + Nf4Pairs::kBytes)), pairs_(table) {}

  __device__ void prepare(const Segment& next) {
#pragma unroll
    for (int i = 0; i < 2; ++i) maxima_[i] = maximum_of_block(values_, codes_[i], scales_[i]);
    const int part = source_.part_of(next.strip), row = source_.row_of(next.strip, part) + lane_.line;
    values_ += (part - part_) * kValues;
    part_ = part;
    const uint8_t* const maxima = source_.of(source_.maxima, part);
    const float* const scales = source_.of(source_.scales, part);
    const int group = std::min(next.number * kSegmentGroups + lane_.quarter, source_.groups - 1);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const auto block = static_cast<uint32_t>((row + i * 8) * source_.groups + group);
      codes_[i] = maxima[block];
      scales_[i] = scales[block / static_cast<uint32_t>(kNf4Nested)];
    }
  }

  template <Order kOrder>
  __device__ void group(const std::byte* segment, int group, Numbers (&numbers)[kGroupSteps]) const {
    const int lane = lane_.line * 4 + group;
    const float maxima[2] = {__shfl_sync(kAllLanes, maxima_[0], lane), __shfl_sync(kAllLanes, maxima_[1], lane)};
#pragma unroll
    for (int s = 0; s < kGroupSteps; ++s) {
      const int at = (lane_.at(kAreNeighbours<kOrder> ? 2 : 1) ^ (group * kGroupSteps + s) / 2 * 16) + s % 2 * 8;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const std::byte* const codes = segment + at + i * kSwizzledRows;
        float2 first, second;
        if constexpr (kAreNeighbours<kOrder>) {
          const uint32_t both = *reinterpret_cast<const uint16_t*>(codes);
          first = pairs_.of(both & 255), second = pairs_.of(both >> 8);
        } else {
          first = pairs_.of(static_cast<uint32_t>(codes[0])), second = pairs_.of(static_cast<uint32_t>(codes[4]));
        }
        numbers[s][i] = packed(__fmul_rn(first.x, maxima[i]), __fmul_rn(first.y, maxima[i]));
        numbers[s][i + 2] = packed(__fmul_rn(second.x, maxima[i]), __fmul_rn(second.y, maxima[i]));
      }
    }
  }

 private:
  static_assert(kSegmentGroups == 4 && kBoxes == 1, "each of a row's four lanes has the maximum of one group");

  const QuantisedStrips& source_;
  CodeLane lane_;
  const float* values_;  // of the codes of maxima that were read last, which are those of part_
  Nf4Pairs pairs_;
  int part_ = 0;
  uint8_t codes_[2] = {};
  float scales_[2] = {}, maxima_[2] = {};
};

class Int8Codes {
 public:
  static constexpr int kBoxes = kSegment / kRowBytes, kSegmentBytes = kBoxes * kCodeBoxBytes, kTableBytes = 0;

  static __device__ void fill(const QuantisedStrips& /*source*/, std::byte* /*table*/) {}

  __device__ Int8Codes(const QuantisedStrips& source, const std::byte* /*table*/) : source_(source) {}

  __device__ void prepare(const Segment& next) {
    const int part = source_.part_of(next.strip);
    const float* const scales = source_.of(source_.scales, part) + source_.row_of(next.strip, part) + lane_.line;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      maxima_[i] = next_maxima_[i];
      next_maxima_[i] = scales[i * 8];
    }
  }

  template <Order kOrder>
  __device__ void group(const std::byte* segment, int group, Numbers (&numbers)[kGroupSteps]) const {
#pragma unroll
    for (int s = 0; s < kGroupSteps; ++s) {
      const int sixteen = group * kGroupSteps + s, of_box = sixteen % (kRowBytes / 16);
      const std::byte* const box = segment + sixteen / (kRowBytes / 16) * kCodeBoxBytes;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const std::byte* const at = box + (lane_.at(kAreNeighbours<kOrder> ? 4 : 2) ^ of_box * 16) + i * kSwizzledRows;
        const auto* const pairs = reinterpret_cast<const uint16_t*>(at);
        const uint32_t codes =
            kAreNeighbours<kOrder> ? *reinterpret_cast<const uint32_t*>(at) : __byte_perm(pairs[0], pairs[4], 0x5410);
        numbers[s][i] = packed(int8_weight<0>(codes, maxima_[i]), int8_weight<1>(codes, maxima_[i]));
        numbers[s][i + 2] = packed(int8_weight<2>(codes, maxima_[i]), int8_weight<3>(codes, maxima_[i]));
      }
    }
  }

 private:
  const QuantisedStrips& source_;
  CodeLane lane_;
  float maxima_[2] = {}, next_maxima_[2] = {};
};

}  // namespace tandem::device::cuda
