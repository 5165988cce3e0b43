// weights/safetensors: the ranges of an accepted file are disjoint, gapless, inside the file and as long as dtype and
// shape say, computed here in 128 bits. The mutator keeps the length in front true half of the time, since random bytes
// there would end most inputs.
#include "weights/safetensors.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "tests/fuzz/target.h"

using namespace tandem::fuzz;
using tandem::weights::SafetensorsHeader;

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace {

constexpr size_t kLengthBytes = 8;
__extension__ using Wide = unsigned __int128;  // pedantic compilers know it is no ISO type

uint64_t stated_header_bytes(const uint8_t* data) {
  uint64_t length = 0;
  std::memcpy(&length, data, kLengthBytes);
  return length;
}

// Returns the bits that dtype and shape need; nothing if they leave 128 bits.
std::optional<Wide> needed_bits(const tandem::weights::TensorInfo& tensor) {
  Wide bits = static_cast<Wide>(tandem::weights::safetensors_dtype_bits(tensor.dtype));
  for (const int64_t dim : tensor.shape) {
    if (__builtin_mul_overflow(bits, static_cast<Wide>(dim), &bits)) return std::nullopt;
  }
  return bits;
}

void require_tiling(const SafetensorsHeader& header, int64_t data_bytes) {
  std::vector<std::pair<int64_t, int64_t>> ranges;
  for (const auto& [name, tensor] : header.tensors) {
    require(name != "__metadata__" && name.size() <= 4096, "names are names", name);
    require(tensor.shape.size() <= 32, "at most 32 dims", name);
    require(std::all_of(tensor.shape.begin(), tensor.shape.end(), [](int64_t dim) { return dim >= 0; }),
            "no dim is negative", name);
    const std::optional<Wide> bits = needed_bits(tensor);
    require(bits && *bits == static_cast<Wide>(tensor.num_bytes()) * 8, "a range is as long as its shape", name);
    ranges.emplace_back(tensor.begin_byte, tensor.end_byte);
  }
  std::sort(ranges.begin(), ranges.end());
  int64_t covered_bytes = 0;
  for (const auto& [begin, end] : ranges) {
    require(begin == covered_bytes && end >= begin, "ranges are disjoint and gapless");
    covered_bytes = end;
  }
  require(covered_bytes == data_bytes, "ranges end where the file ends");
}

// The whole file's way: opened, its header read, every tensor's last byte read.
bool accepts_file(std::string_view bytes) {
  static const MemoryFile file;
  file.write(bytes);
  return accepts(
      [] {
        const tandem::weights::SafetensorsFile opened(file.path());
        for (const auto& [name, tensor] : opened.tensors()) {
          std::byte last;
          if (tensor.num_bytes() > 0) opened.read(tensor, tensor.num_bytes() - 1, {&last, 1});
        }
      },
      [](std::string_view message) { require_message(message, file.path()); });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::optional<SafetensorsHeader> header;
  if (size >= kLengthBytes && stated_header_bytes(data) <= size - kLengthBytes) {
    const std::vector<char> json(data + kLengthBytes, data + kLengthBytes + stated_header_bytes(data));  // exact size
    const auto data_bytes = static_cast<int64_t>(size - kLengthBytes - json.size());
    accepts(
        [&] {
          header = tandem::weights::parse_safetensors_header({json.data(), json.size()}, data_bytes, "header");
        },
        [](std::string_view message) { require_message(message, "header"); });
    if (header) require_tiling(*header, data_bytes);
  }
  // Files take four times as long as headers: every fourth.
  if (size % 4 == 0) require(accepts_file(text_of(data, size)) == header.has_value(), "a file is what its header is");
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  const bool is_file = size >= kLengthBytes && stated_header_bytes(data) <= size - kLengthBytes;
  if (!is_file || seed % 2 == 0) return LLVMFuzzerMutate(data, size, max_size);
  const std::vector<uint8_t> tail(data + kLengthBytes + stated_header_bytes(data), data + size);
  // Without room LLVMFuzzerMutate writes a byte all the same.
  if (kLengthBytes + tail.size() >= max_size) return LLVMFuzzerMutate(data, size, max_size);
  const size_t room = max_size - kLengthBytes - tail.size();
  const uint64_t header_bytes = LLVMFuzzerMutate(data + kLengthBytes, stated_header_bytes(data), room);
  std::memcpy(data, &header_bytes, kLengthBytes);
  std::copy(tail.begin(), tail.end(), data + kLengthBytes + header_bytes);
  return kLengthBytes + header_bytes + tail.size();
}
