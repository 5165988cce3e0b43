#include "device/quantisation.h"

namespace tandem::device {
namespace {

constexpr int64_t kAlignment = 64, kScaleBytes = sizeof(float);

int64_t after(int64_t byte, int64_t num_bytes) { return byte + (num_bytes + kAlignment - 1) / kAlignment * kAlignment; }

// Returns the absolute maximum of a block of NF4.
float maximum_of_block(const QuantisedBytes& bytes, int64_t block) {
  const float product = bytes.table[bytes.maxima[block]] * bytes.scales[block / kNf4Nested];
  return product + bytes.table[kNf4TableSize];
}

}  // namespace

QuantisedPart quantised_part(Quantisation quantisation, int64_t row_begin, int64_t num_rows, int64_t num_columns,
                             int64_t first_byte) {
  QuantisedPart part{.quantisation = quantisation,
                     .row_begin = row_begin,
                     .num_rows = num_rows,
                     .num_columns = num_columns,
                     .first_byte = first_byte,
                     .scales = first_byte};
  const bool is_nf4 = quantisation == Quantisation::kNf4;
  part.table = after(part.scales, part.num_scales() * kScaleBytes);
  part.maxima = is_nf4 ? after(part.table, (kNf4TableSize + 1) * kScaleBytes) : part.table;
  part.codes = is_nf4 ? after(part.maxima, part.num_blocks()) : part.maxima;
  part.end_byte = after(part.codes, part.num_code_bytes());
  return part;
}

QuantisedBytes quantised_bytes(const QuantisedPart& part, const std::byte* matrix) {
  const auto floats = [&](int64_t byte) { return reinterpret_cast<const float*>(matrix + byte); };
  const auto codes = [&](int64_t byte) { return reinterpret_cast<const uint8_t*>(matrix + byte); };
  return {.quantisation = part.quantisation,
          .num_columns = part.num_columns,
          .scales = floats(part.scales),
          .table = floats(part.table),
          .maxima = codes(part.maxima),
          .codes = codes(part.codes)};
}

float weight_at(const QuantisedBytes& bytes, int64_t w) {
  if (bytes.quantisation == Quantisation::kInt8) {
    return static_cast<float>(static_cast<int8_t>(bytes.codes[w])) * bytes.scales[w / bytes.num_columns] * kInt8Step;
  }
  const int code = w % 2 == 0 ? bytes.codes[w / 2] >> 4 : bytes.codes[w / 2] & 15;
  return kNf4Values[code] * maximum_of_block(bytes, w / kNf4Block);
}

}  // namespace tandem::device
