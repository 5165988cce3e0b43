#include "weights/quantise.h"

#include <ATen/ops/empty.h>
#include <c10/util/Half.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numeric>

#include "base/check.h"

namespace tandem::weights {
namespace {

using device::kNf4Block;
using device::kNf4Nested;
using device::Quantisation;

constexpr int64_t kPieceWeights = 32768;  // that a thread encodes at a time
constexpr int64_t kPieceNested = 16;      // blocks of maxima that a thread encodes at a time
constexpr size_t kLanes = 16;             // numbers that the compiler computes together

// The numbers halfway between the values of NF4.
constexpr auto kNf4Bounds = [] {
  std::array<float, std::size(device::kNf4Values) - 1> bounds = {};
  for (size_t i = 0; i < bounds.size(); ++i) bounds[i] = (device::kNf4Values[i] + device::kNf4Values[i + 1]) / 2.0F;
  return bounds;
}();

// The least divisor, so that a block of zeros stays one.
constexpr float kLeastMaximum = 1e-38F;

// The numbers halfway between neighbouring values, rounded to float32.
std::vector<float> midpoints(std::span<const float> values) {
  std::vector<float> result;
  for (size_t i = 0; i + 1 < values.size(); ++i) result.push_back((values[i] + values[i + 1]) / 2.0F);
  return result;
}

float absolute_maximum(std::span<const float> numbers) {
  std::array<float, kLanes> lanes = {};
  size_t i = 0;
  for (; i + kLanes <= numbers.size(); i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) lanes[lane] = std::max(lanes[lane], std::fabs(numbers[i + lane]));
  }
  for (; i < numbers.size(); ++i) lanes[0] = std::max(lanes[0], std::fabs(numbers[i]));
  return std::ranges::max(lanes);
}

// Divides the numbers of a block by their absolute maximum, which it returns: a whole block is multiplied by the
// reciprocal, as bitsandbytes does, and the last one, which may be shorter, is divided.
float normalise(std::span<const float> numbers, bool is_whole, float* out) {
  const float maximum = absolute_maximum(numbers), divisor = std::max(maximum, kLeastMaximum);
  const float factor = 1.0F / divisor;
  for (size_t i = 0; i < numbers.size(); ++i)
    out[i] = std::max(-1.0F, std::min(1.0F, is_whole ? numbers[i] * factor : numbers[i] / divisor));
  return is_whole ? maximum : divisor;
}

// Returns the values that the code of an absolute maximum stands for, ascending: the signed dynamic map of 8 bits
// (Dettmers et al. 2022, https://arxiv.org/abs/2110.02861), which is bitsandbytes.functional.create_dynamic_map().
std::vector<float> dynamic_map() {
  std::vector<float> values = {0.0F, 1.0F};
  float scale_exponent = -6.0F;
  for (int64_t items = 1; items <= 64; items *= 2, ++scale_exponent) {
    // The ends of `items` pieces of [0.1, 1], with torch.linspace's rounding.
    const float step = (1.0F - 0.1F) / static_cast<float>(items);
    std::vector<float> ends;
    for (int64_t i = 0; i <= items; ++i) {
      ends.push_back(i < (items + 1) / 2 ? std::fma(step, static_cast<float>(i), 0.1F)
                                         : std::fma(-step, static_cast<float>(items - i), 1.0F));
    }
    const auto scale = static_cast<float>(std::pow(10.0, scale_exponent));
    for (const float middle : midpoints(ends)) values.insert(values.end(), {scale * middle, -scale * middle});
  }
  std::ranges::sort(values);
  return values;
}

const std::vector<float>& nested_values() {
  static const std::vector<float> values = dynamic_map();
  return values;
}

}  // namespace

void write_part(const device::QuantisedMatrix& matrix, int64_t row_begin,
                const std::function<void(const device::QuantisedPart& part, std::byte* bytes)>& write) {
  const device::QuantisedPart& place = matrix.part_at(row_begin);
  if (matrix.bytes.is_cpu()) return write(place, matrix.data());
  const device::QuantisedPart part =
      device::quantised_part(place.quantisation, row_begin, place.num_rows, place.num_columns, /*first_byte=*/0);
  const at::Tensor bytes = at::empty({part.end_byte}, at::kByte);
  write(part, static_cast<std::byte*>(bytes.data_ptr()));
  matrix.bytes.narrow(0, place.first_byte, part.end_byte).copy_(bytes);
}

void quantise_part(const device::QuantisedMatrix& matrix, int64_t row_begin, const std::string& name,
                   device::ThreadPool& threads, const std::function<void(QuantisedWriter& writer)>& add) {
  write_part(matrix, row_begin, [&](const device::QuantisedPart& part, std::byte* bytes) {
    QuantisedWriter writer(part, bytes, name, threads);
    add(writer);
    writer.finish();
  });
}

QuantisedWriter::QuantisedWriter(const device::QuantisedPart& part, std::byte* matrix, std::string name,
                                 device::ThreadPool& threads)
    : part_(part),
      matrix_(matrix),
      name_(std::move(name)),
      unit_(static_cast<size_t>(part.quantisation == Quantisation::kInt8 ? part.num_columns : kNf4Block)),
      threads_(threads),
      maxima_(static_cast<size_t>(part.quantisation == Quantisation::kInt8 ? 0 : part.num_blocks())) {
  std::memset(matrix_ + part_.first_byte, 0, static_cast<size_t>(part_.end_byte - part_.first_byte));
}

void QuantisedWriter::add(std::span<const float> weights) {
  if (!pending_.empty()) {
    const size_t count = std::min(unit_ - pending_.size(), weights.size());
    pending_.insert(pending_.end(), weights.begin(), weights.begin() + static_cast<std::ptrdiff_t>(count));
    weights = weights.subspan(count);
    if (pending_.size() < unit_) return;
    encode(pending_);
    pending_.clear();
  }
  const size_t whole = weights.size() / unit_ * unit_;
  encode(weights.first(whole));
  weights = weights.subspan(whole);
  pending_.assign(weights.begin(), weights.end());
}

void QuantisedWriter::encode(std::span<const float> weights) {
  TANDEM_CHECK(num_encoded_ + std::ssize(weights) <= part_.num_weights(), "too many weights of", name_);
  const auto num_units = static_cast<int64_t>((weights.size() + unit_ - 1) / unit_);
  const int64_t piece = std::max<int64_t>(1, kPieceWeights / static_cast<int64_t>(unit_));
  threads_.for_pieces(num_units, piece, [&](int64_t begin, int64_t count) {
    for (int64_t i = begin; i < begin + count; ++i) {
      const size_t at = static_cast<size_t>(i) * unit_;
      const std::span<const float> unit = weights.subspan(at, std::min(unit_, weights.size() - at));
      const int64_t first = num_encoded_ + static_cast<int64_t>(at);
      check_finite(unit);
      if (part_.quantisation == Quantisation::kInt8) {
        encode_int8(unit, first);
      } else {
        encode_nf4(unit, first);
      }
    }
  });
  num_encoded_ += std::ssize(weights);
}

void QuantisedWriter::check_finite(std::span<const float> weights) const {
  for (const float weight : weights) {
    TANDEM_USER_CHECK(std::isfinite(weight),
                      fmt::format("{} holds {}, which cannot be quantised: take the checkpoint again from where it is "
                                  "whole",
                                  name_, std::isnan(weight) ? "NaN" : "an infinity"));
  }
}

void QuantisedWriter::encode_nf4(std::span<const float> block, int64_t first) {
  std::array<float, kNf4Block> numbers = {};
  maxima_[static_cast<size_t>(first / kNf4Block)] = normalise(block, block.size() == unit_, numbers.data());
  std::array<int32_t, kNf4Block> index = {};  // how many bounds lie below a number
  for (size_t i = 0; i < numbers.size(); ++i) {
    for (const float bound : kNf4Bounds) index[i] += numbers[i] > bound ? 1 : 0;
  }
  uint8_t* const out = codes(part_.codes) + first / 2;
  for (size_t i = 0; i < block.size(); i += 2) out[i / 2] = static_cast<uint8_t>(index[i] << 4 | index[i + 1]);
}

void QuantisedWriter::encode_int8(std::span<const float> row, int64_t first) {
  std::vector<float> halves;
  for (const float weight : row) halves.push_back(c10::Half(weight));
  const float maximum = absolute_maximum(halves);
  TANDEM_USER_CHECK(std::isfinite(maximum), fmt::format("{} holds a number beyond float16's 65504, which --dtype int8 "
                                                        "cannot quantise; give --dtype nf4 or bfloat16",
                                                        name_));
  floats(part_.scales)[first / part_.num_columns] = maximum;
  if (maximum == 0.0F) return;
  const float factor = 1.0F / maximum * 127.0F;  // torch divides a number by a tensor so
  uint8_t* const out = codes(part_.codes) + first;
  for (size_t i = 0; i < halves.size(); ++i)
    out[i] = static_cast<uint8_t>(static_cast<int8_t>(std::nearbyint(halves[i] * factor)));
}

void QuantisedWriter::finish() {
  if (!pending_.empty()) encode(pending_);
  TANDEM_CHECK_EQ(num_encoded_, part_.num_weights(), name_);
  if (part_.quantisation == Quantisation::kInt8) return;
  std::ranges::copy(nested_values(), floats(part_.table));
  const double sum = std::accumulate(maxima_.begin(), maxima_.end(), 0.0);
  const auto offset = static_cast<float>(sum / static_cast<double>(maxima_.size()));
  floats(part_.table)[device::kNf4TableSize] = offset;
  for (float& maximum : maxima_) maximum -= offset;
  const int64_t num_nested = (std::ssize(maxima_) + kNf4Nested - 1) / kNf4Nested;
  threads_.for_each(num_nested, kPieceNested, [&](int64_t nested) { encode_maxima(nested); });
}

void QuantisedWriter::encode_maxima(int64_t nested) {
  static const std::vector<float> bounds = midpoints(nested_values());
  const int64_t first = nested * kNf4Nested, count = std::min(kNf4Nested, std::ssize(maxima_) - first);
  std::array<float, kNf4Nested> numbers = {};
  floats(part_.scales)[nested] = normalise({&maxima_[static_cast<size_t>(first)], static_cast<size_t>(count)},
                                           count == kNf4Nested, numbers.data());
  for (int64_t i = 0; i < count; ++i) {
    const auto bound = std::ranges::lower_bound(bounds, numbers[static_cast<size_t>(i)]);
    codes(part_.maxima)[first + i] = static_cast<uint8_t>(bound - bounds.begin());
  }
}

}  // namespace tandem::weights
