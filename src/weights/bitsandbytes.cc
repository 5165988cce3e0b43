#include "weights/bitsandbytes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "base/json.h"

namespace tandem::weights {
namespace {

using device::Quantisation;
using device::QuantisedPart;

constexpr const char* kMaxima = ".absmax";
constexpr const char* kScales = ".nested_absmax";
constexpr const char* kTable = ".nested_quant_map";
constexpr const char* kValues = ".quant_map";
constexpr const char* kState = ".quant_state.bitsandbytes__nf4";
constexpr const char* kTakeAgain = "take the checkpoint from its source again, or the one that it was made from";
constexpr int64_t kMaxStateBytes = 65536;

// Returns the name of what lies beside X.weight as X.NAME.
std::string beside_weight(const std::string& hf_name, const char* name) {
  return hf_name.substr(0, hf_name.rfind('.') + 1) + name;
}

const CheckpointFiles::Location& location(const CheckpointFiles& files, const std::string& name) {
  const auto found = files.tensors().find(name);
  TANDEM_USER_CHECK(found != files.tensors().end(), fmt::format("{}: the weights lack tensor {}; {}", files.directory(),
                                                                quoted_name(name), kTakeAgain));
  return found->second;
}

std::string place_of(const CheckpointFiles::Location& location, const std::string& name) {
  return fmt::format("{}: tensor {}", location.file->path(), quoted_name(name));
}

void check_header(const CheckpointFiles& files, const std::string& name, const char* dtype,
                  const std::vector<int64_t>& shape) {
  const CheckpointFiles::Location& found = location(files, name);
  TANDEM_USER_CHECK(found.tensor->dtype == dtype && found.tensor->shape == shape,
                    fmt::format("{} is {} [{}], and {} [{}] for a matrix that bitsandbytes quantised; {}",
                                place_of(found, name), found.tensor->dtype, fmt::join(found.tensor->shape, ", "), dtype,
                                fmt::join(shape, ", "), kTakeAgain));
}

void read_bytes(const CheckpointFiles& files, const std::string& name, std::byte* out, int64_t num_bytes) {
  const CheckpointFiles::Location& found = location(files, name);
  TANDEM_CHECK_EQ(found.tensor->num_bytes(), num_bytes, name);
  found.file->read(*found.tensor, 0, {out, static_cast<size_t>(num_bytes)});
}

// Reads float32 numbers, which must be finite.
void read_floats(const CheckpointFiles& files, const std::string& name, std::byte* out, int64_t count) {
  read_bytes(files, name, out, count * static_cast<int64_t>(sizeof(float)));
  const auto* const numbers = reinterpret_cast<const float*>(out);
  TANDEM_USER_CHECK(
      std::all_of(numbers, numbers + count, [](float x) { return std::isfinite(x); }),
      fmt::format("{} holds a number that is not finite; {}", place_of(location(files, name), name), kTakeAgain));
}

// Refuses an int8 matrix that an older bitsandbytes has saved in the order of a GPU's tiles.
void check_rows(const CheckpointFiles& files, const std::string& name) {
  if (!files.tensors().contains(name)) return;
  check_header(files, name, "U8", {});
  std::byte format{};
  read_bytes(files, name, &format, 1);
  TANDEM_USER_CHECK(
      format == std::byte{0},
      fmt::format("{} is {}, and only 0, rows one after the other, is read (1, 2 and 3 are col32, col_turing and "
                  "col_ampere); take the checkpoint that it was made from, or save it again with a newer bitsandbytes",
                  place_of(location(files, name), name), std::to_integer<int>(format)));
}

// Returns the mean of the absolute maxima, which the text of a matrix has.
float read_offset(const CheckpointFiles& files, const std::string& name) {
  const CheckpointFiles::Location& found = location(files, name);
  const std::string place = place_of(found, name);
  const int64_t num_bytes = found.tensor->num_bytes();
  TANDEM_USER_CHECK(num_bytes <= kMaxStateBytes, fmt::format("{} is no text of that kind; {}", place, kTakeAgain));
  std::string text(static_cast<size_t>(num_bytes), '\0');
  read_bytes(files, name, reinterpret_cast<std::byte*>(text.data()), num_bytes);
  const base::Json state = base::parse_json(text, place);
  const auto number = [&](const char* key) -> double {
    const auto entry = state.is_object() ? state.find(key) : state.end();
    TANDEM_USER_CHECK(state.is_object() && entry != state.end() && entry->is_number(),
                      fmt::format("{} has no number {}; {}", place, key, kTakeAgain));
    return entry->get<double>();
  };
  for (const auto& [key, known] :
       {std::pair{"blocksize", device::kNf4Block}, {"nested_blocksize", device::kNf4Nested}}) {
    TANDEM_USER_CHECK(number(key) == static_cast<double>(known),
                      fmt::format("{}: {} is {}, and only {} is read; take the checkpoint that it was made from", place,
                                  key, number(key), known));
  }
  const double offset = number("nested_offset");
  TANDEM_USER_CHECK(std::isfinite(static_cast<float>(offset)),
                    fmt::format("{}: nested_offset is {}; {}", place, offset, kTakeAgain));
  return static_cast<float>(offset);
}

}  // namespace

std::vector<std::string> names_beside(const std::string& hf_name, Quantisation quantisation) {
  std::vector<std::string> names;
  if (quantisation == Quantisation::kNf4) {
    for (const char* suffix : {kMaxima, kScales, kTable, kValues, kState}) names.push_back(hf_name + suffix);
  }
  if (quantisation == Quantisation::kInt8) {
    for (const char* name : {"SCB", "weight_format"}) names.push_back(beside_weight(hf_name, name));
  }
  return names;
}

bool is_stored_in(const CheckpointFiles& files, const Slice& slice, Quantisation quantisation) {
  const auto found = files.tensors().find(slice.hf_name);
  if (found == files.tensors().end() || slice.shape.size() != 2) return false;
  const std::string& dtype = found->second.tensor->dtype;
  return (quantisation == Quantisation::kNf4 && dtype == "U8") ||
         (quantisation == Quantisation::kInt8 && dtype == "I8");
}

void check_stored(const CheckpointFiles& files, const Slice& slice, Quantisation quantisation) {
  const std::string& name = slice.hf_name;
  const QuantisedPart part = device::quantised_part(quantisation, 0, slice.shape[0], slice.shape[1], 0);
  if (quantisation == Quantisation::kInt8) {
    check_header(files, name, "I8", slice.shape);
    check_header(files, beside_weight(name, "SCB"), "F32", {part.num_scales()});
    check_rows(files, beside_weight(name, "weight_format"));
    return;
  }
  check_header(files, name, "U8", {part.num_code_bytes(), 1});
  check_header(files, name + kMaxima, "U8", {part.num_blocks()});
  check_header(files, name + kScales, "F32", {part.num_scales()});
  check_header(files, name + kTable, "F32", {device::kNf4TableSize});
  check_header(files, name + kValues, "F32", {std::ssize(device::kNf4Values)});
  check_header(files, name + kState, "U8", {location(files, name + kState).tensor->num_bytes()});
}

void read_stored(const CheckpointFiles& files, const std::string& hf_name, const QuantisedPart& part,
                 std::byte* matrix) {
  std::memset(matrix + part.first_byte, 0, static_cast<size_t>(part.end_byte - part.first_byte));
  read_bytes(files, hf_name, matrix + part.codes, part.num_code_bytes());
  if (part.quantisation == Quantisation::kInt8) {
    return read_floats(files, beside_weight(hf_name, "SCB"), matrix + part.scales, part.num_scales());
  }
  read_bytes(files, hf_name + kMaxima, matrix + part.maxima, part.num_blocks());
  read_floats(files, hf_name + kScales, matrix + part.scales, part.num_scales());
  read_floats(files, hf_name + kTable, matrix + part.table, device::kNf4TableSize);
  const float offset = read_offset(files, hf_name + kState);
  std::memcpy(matrix + part.table + device::kNf4TableSize * sizeof(float), &offset, sizeof(float));
  float values[std::size(device::kNf4Values)];
  read_bytes(files, hf_name + kValues, reinterpret_cast<std::byte*>(values), sizeof(values));
  TANDEM_USER_CHECK(std::ranges::equal(values, device::kNf4Values),
                    fmt::format("{} has other values than NF4; take the checkpoint that it was made from",
                                place_of(location(files, hf_name + kValues), hf_name + kValues)));
}

}  // namespace tandem::weights
