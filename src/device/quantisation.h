// Says how the weights of a quantised matrix lie in memory, and what numbers they stand for. The formats are those of
// bitsandbytes: NF4 with double quantisation (Dettmers et al. 2023, QLoRA, https://arxiv.org/abs/2305.14314) and the
// weights of LLM.int8() (Dettmers et al. 2022, https://arxiv.org/abs/2208.07339). No torch.
//
// A matrix is stacked of parts, each of which was quantised by itself: the Hugging Face tensors of a packed tensor. A
// part's weights count row by row, w = row * num_columns + column.
//   NF4    code of w: four bits, an index of kNf4Values; the first of two lies in the high half of a byte.
//          Blocks of 64 weights share an absolute maximum a, which is a code of eight bits itself: blocks of 256 such
//          codes share a scale s, and all of them an offset.
//            a = table[code of a] * s + offset;  weight = kNf4Values[code of w] * a
//   int8   code of w: a signed byte. Rows share an absolute maximum a (SCB in files of bitsandbytes).
//            weight = code of w * a * (1 / 127)
// Each product and sum is rounded to float32, from left to right, and a weight then once more to bfloat16. These are
// the numbers of bitsandbytes.functional.dequantize_4bit and int8_vectorwise_dequant.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tandem::device {

enum class Quantisation : uint8_t { kNone, kNf4, kInt8 };

constexpr int64_t kNf4Block = 64;       // weights that share an absolute maximum
constexpr int64_t kNf4Nested = 256;     // absolute maxima that share a scale
constexpr int64_t kNf4TableSize = 256;  // values that the code of an absolute maximum stands for
constexpr float kInt8Step = 7.874015718698502e-3F;

// Quantiles of a normal distribution over [-1, 1], one of them 0 (QLoRA, appendix E).
inline constexpr float kNf4Values[16] = {
    -1.0F,
    -0.6961928009986877F,
    -0.5250730514526367F,
    -0.39491748809814453F,
    -0.28444138169288635F,
    -0.18477343022823334F,
    -0.09105003625154495F,
    0.0F,
    0.07958029955625534F,
    0.16093020141124725F,
    0.24611230194568634F,
    0.33791524171829224F,
    0.44070982933044434F,
    0.5626170039176941F,
    0.7229568362236023F,
    1.0F,
};

// The place of a part: rows [row_begin, row_begin + num_rows) of a matrix. What it is made of lies in the order below,
// from multiples of 64 bytes on, which are counted from the beginning of the matrix.
struct QuantisedPart {
  Quantisation quantisation = Quantisation::kNone;
  int64_t row_begin = 0, num_rows = 0, num_columns = 0;
  int64_t first_byte = 0;
  int64_t scales = 0;  // float32: the absolute maximum of each row (int8), or the scale of each 256 blocks (NF4)
  int64_t table = 0;   // NF4: kNf4TableSize float32, and then the offset
  int64_t maxima = 0;  // NF4: a byte for each block, the code of its absolute maximum
  int64_t codes = 0;   // NF4: a byte for two weights; int8: a byte for each
  int64_t end_byte = 0;

  int64_t num_weights() const { return num_rows * num_columns; }
  int64_t num_blocks() const { return (num_weights() + kNf4Block - 1) / kNf4Block; }
  // The numbers of `scales`, and of the bytes of `codes`.
  int64_t num_scales() const {
    return quantisation == Quantisation::kInt8 ? num_rows : (num_blocks() + kNf4Nested - 1) / kNf4Nested;
  }
  int64_t num_code_bytes() const {
    return quantisation == Quantisation::kInt8 ? num_weights() : (num_weights() + 1) / 2;
  }
};

// Returns the place of the part that follows after `first_byte` bytes, a multiple of 64.
QuantisedPart quantised_part(Quantisation quantisation, int64_t row_begin, int64_t num_rows, int64_t num_columns,
                             int64_t first_byte);

// A part in memory, the host's or a device's. Kernels of an instruction set read it, so it has no functions.
struct QuantisedBytes {
  Quantisation quantisation;
  int64_t num_columns;
  const float* scales;
  const float* table;
  const uint8_t* maxima;
  const uint8_t* codes;
};

// Returns where a part lies, given the bytes of its matrix.
QuantisedBytes quantised_bytes(const QuantisedPart& part, const std::byte* matrix);

// Returns a weight by its number, in float32, of a part in host memory.
float weight_at(const QuantisedBytes& bytes, int64_t w);

}  // namespace tandem::device
