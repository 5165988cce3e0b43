// How a warp of the kernel of few rows (few_rows.cu) comes by the weights of a strip: bfloat16, or codes of a quantised
// matrix, which it turns into bfloat16 as it reads them. Each kind has
//   kDepth, kBoxes     terms of a row in a piece, and boxes of the copy engine of which it is made
//   kGroup             terms that are in registers at once
//   kPieceBytes        of a piece: kStrip rows of kDepth terms
//   kTableBytes        of shared memory that all warps read, filled by fill()
//   kSharedBytes       the most that a block takes
//   Source             what the kernel is given
//   start_copy()       starts the copy of a piece
//   begin_piece()      a warp's next piece is in shared memory: those of a strip by rising terms, strip after strip
// and then gives a lane its terms, four neighbours of each sixteen. Those of bfloat16 are read() as they are. Codes
// take three steps, so that none waits for the one before it:
//   load()             reads the codes of a sixteen of the piece
//   look_up()          begins to turn them into numbers
//   weights()          returns the terms
// A group has one maximum of each row, maximum_of() the piece's group.
// All lanes of a warp make the same calls.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>

#include "device/cuda/code_numbers.cuh"
#include "device/cuda/kernel_choice.h"
#include "device/cuda/quantised.h"
#include "device/cuda/vectors.cuh"
#include "device/cuda/warpgroups.cuh"

namespace tandem::device::cuda {

constexpr int kStrip = 8;  // rows of the weight
constexpr int kRowBytes = static_cast<int>(kSwizzledRow), kBoxBytes = kStrip * kRowBytes;

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
__device__ inline int swizzled(int row, int n) { return row * kRowBytes + ((n ^ row) << 4); }

template <int kBoxesOfPiece>
class Bf16Weights {
 public:
  static constexpr int kBoxes = kBoxesOfPiece, kColumns = kRowBytes / 2, kDepth = kBoxes * kColumns, kGroup = 128;
  static constexpr int kPieceBytes = kBoxes * kBoxBytes, kTableBytes = 0;
  static constexpr int64_t kSharedBytes = kFewRowsSharedBytes;
  struct Source {
    CUtensorMap weight;  // [64, N, K / 64], boxes of 64 x kStrip x kBoxes
  };

  static __device__ void fill(std::byte* /*table*/) {}
  static __device__ void start_copy(const Source& source, const Pieces& at, uint32_t to, Barrier& barrier) {
    copy_box(source.weight, 0, at.strip * kStrip, at.term / kColumns, to, barrier);
  }
  __device__ Bf16Weights(const Source& /*source*/, const std::byte* /*table*/, const Pieces& /*first*/) {
    const Lane lane;
#pragma unroll
    for (int s = 0; s < 4; ++s) at_[s] = swizzled(lane.row(), s * 2 + lane.quarter / 2) + lane.quarter % 2 * 8;
  }
  __device__ void begin_piece() {}
  __device__ uint2 read(const std::byte* piece, int group, int s) const {
    return *reinterpret_cast<const uint2*>(piece + (group * (kGroup / kColumns) + s / 4) * kBoxBytes + at_[s % 4]);
  }

 private:
  int at_[4];
};

// A quantised matrix: the strips of each of its parts.
struct QuantisedStrips {
  struct Part {
    CUtensorMap codes;  // as rows of so many bytes of numbers of two bytes
    QuantisedBytes bytes;
    int first_strip;
  };
  Part parts[QuantisedWeight::kMostParts];
  int num_parts;

  __device__ const Part& part_of(int strip) const {
    int i = 0;
    while (i + 1 < num_parts && strip >= parts[i + 1].first_strip) ++i;
    return parts[i];
  }
};

__device__ inline uint32_t packed(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// A byte is two codes, so the table has the two values of each byte, sixteen times: lanes that read at once share no
// bank. The maxima of a row's blocks are made two pieces before they are needed, one by each of the row's four lanes.
class Nf4Weights {
 public:
  static constexpr int kBoxes = 1, kDepth = 2 * kRowBytes, kGroup = static_cast<int>(kNf4Block), kCopies = 16;
  static constexpr int kPieceBytes = kBoxes * kBoxBytes, kTableBytes = 256 * kCopies * sizeof(float2);
  static constexpr int64_t kSharedBytes = kFewRowsOfCodesSharedBytes;
  using Source = QuantisedStrips;

  static __device__ void fill(std::byte* table) {
    auto* const pairs = reinterpret_cast<float2*>(table);
    for (int i = static_cast<int>(threadIdx.x); i < 256 * kCopies; i += static_cast<int>(blockDim.x)) {
      const int byte = i / kCopies;
      pairs[i] = {nf4_of_code.of[byte / 16], nf4_of_code.of[byte % 16]};
    }
  }
  static __device__ void start_copy(const Source& source, const Pieces& at, uint32_t to, Barrier& barrier) {
    const Source::Part& part = source.part_of(at.strip);
    copy_box(part.codes, 0, (at.strip - part.first_strip) * kStrip, at.term / kDepth, to, barrier);
  }

  __device__ Nf4Weights(const Source& source, const std::byte* table, const Pieces& first)
      : source_(source), next_(first) {
    const Lane lane;
    row_ = lane.row();
    quarter_ = lane.quarter;
#pragma unroll
    for (int i = 0; i < kRowBytes / 16; ++i) at_[i] = swizzled(row_, i) + quarter_ * 2;
    pairs_ = table + threadIdx.x % kCopies * sizeof(float2);
    load_next();
    make_next();
    load_next();
  }
  __device__ void begin_piece() {
    maximum_ = next_maximum_;
    make_next();
    load_next();
  }

  using Codes = uint32_t;  // two bytes
  struct Numbers {
    float2 first, second;
  };
  __device__ float maximum_of(int group) const {
    return __shfl_sync(kAllLanes, maximum_, static_cast<int>(threadIdx.x) % kWarp - quarter_ + group);
  }
  __device__ Codes load(const std::byte* piece, int sixteen) const {
    return *reinterpret_cast<const uint16_t*>(piece + at_[sixteen / 2] + sixteen % 2 * 8);
  }
  __device__ Numbers look_up(Codes codes) const { return {pair_of(codes & 255), pair_of(codes >> 8)}; }
  static __device__ uint2 weights(const Numbers& numbers, float maximum) {
    return {packed(__fmul_rn(numbers.first.x, maximum), __fmul_rn(numbers.first.y, maximum)),
            packed(__fmul_rn(numbers.second.x, maximum), __fmul_rn(numbers.second.y, maximum))};
  }

 private:
  __device__ float2 pair_of(uint32_t byte) const {
    return *reinterpret_cast<const float2*>(pairs_ + byte * (kCopies * static_cast<uint32_t>(sizeof(float2))));
  }
  __device__ void load_next() {
    if (next_.is_past_end()) return;
    const Source::Part& part = source_.part_of(next_.strip);
    const int64_t row = (next_.strip - part.first_strip) * kStrip + row_;
    const int64_t block = (row * next_.K + next_.term) / kNf4Block + quarter_;
    table_ = part.bytes.table;
    code_ = part.bytes.maxima[block];
    scale_ = part.bytes.scales[block / kNf4Nested];
    next_.advance(kDepth);
  }
  __device__ void make_next() { next_maximum_ = maximum_of_block(table_, code_, scale_); }

  const Source& source_;
  Pieces next_;
  int row_, quarter_, at_[kRowBytes / 16];
  const std::byte* pairs_;
  const float* table_ = source_.parts[0].bytes.table;
  uint8_t code_ = 0;
  float scale_ = 0.0F, next_maximum_ = 0.0F, maximum_ = 0.0F;
};

class Int8Weights {
 public:
  static constexpr int kBoxes = 2, kDepth = kBoxes * kRowBytes, kGroup = 64;
  static constexpr int kPieceBytes = kBoxes * kBoxBytes, kTableBytes = 0;
  static constexpr int64_t kSharedBytes = kFewRowsOfCodesSharedBytes;
  using Source = QuantisedStrips;

  static __device__ void fill(std::byte* /*table*/) {}
  static __device__ void start_copy(const Source& source, const Pieces& at, uint32_t to, Barrier& barrier) {
    const Source::Part& part = source.part_of(at.strip);
    copy_box(part.codes, 0, (at.strip - part.first_strip) * kStrip, at.term / kRowBytes, to, barrier);
  }

  __device__ Int8Weights(const Source& source, const std::byte* /*table*/, const Pieces& first)
      : source_(source), now_(first) {
    const Lane lane;
    row_ = lane.row();
#pragma unroll
    for (int i = 0; i < kRowBytes / 16; ++i) at_[i] = swizzled(row_, i) + lane.quarter * 4;
    next_maximum_ = maximum_of_strip(first.strip);
  }
  __device__ void begin_piece() {
    if (now_.term == 0) {
      maximum_ = next_maximum_;
      if (now_.strip + now_.stride < now_.strips) next_maximum_ = maximum_of_strip(now_.strip + now_.stride);
    }
    now_.advance(kDepth);
  }

  using Codes = uint32_t;  // four bytes
  using Numbers = Codes;
  __device__ float maximum_of(int /*group*/) const { return maximum_; }
  __device__ Codes load(const std::byte* piece, int sixteen) const {
    constexpr int kOfBox = kRowBytes / 16;
    const std::byte* const box = piece + sixteen / kOfBox * kBoxBytes;
    return *reinterpret_cast<const uint32_t*>(box + at_[sixteen % kOfBox]);
  }
  __device__ Numbers look_up(Codes codes) const { return codes; }
  static __device__ uint2 weights(Numbers codes, float maximum) {
    return {packed(int8_weight<0>(codes, maximum), int8_weight<1>(codes, maximum)),
            packed(int8_weight<2>(codes, maximum), int8_weight<3>(codes, maximum))};
  }

 private:
  __device__ float maximum_of_strip(int strip) const {
    if (strip >= now_.strips) return 0.0F;
    const Source::Part& part = source_.part_of(strip);
    return part.bytes.scales[(strip - part.first_strip) * kStrip + row_];
  }

  const Source& source_;
  Pieces now_;
  int row_, at_[kRowBytes / 16];
  float maximum_ = 0.0F, next_maximum_;
};

}  // namespace tandem::device::cuda
