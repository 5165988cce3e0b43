#include "weights/safetensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <set>

#include "base/check.h"
#include "base/json.h"

namespace tandem::weights {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors are little-endian, and so are our reads");

constexpr int64_t kLengthBytes = 8;
constexpr int64_t kMaxHeaderBytes = 100'000'000;  // the official reader's limit
constexpr size_t kMaxTensors = 1'000'000;
constexpr size_t kMaxDims = 32;
constexpr size_t kMaxNameBytes = 4096;
constexpr const char* kRemedy = "take the file from its source again";

struct DtypeRow {
  std::string_view name;
  int64_t bits;
};
constexpr std::array<DtypeRow, 22> kDtypes = {{
    {"BOOL", 8},    {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6},     {"U8", 8},          {"I8", 8},
    {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},
    {"U16", 16},    {"F16", 16},    {"BF16", 16},   {"I32", 32},        {"U32", 32},        {"F32", 32},
    {"C64", 64},    {"F64", 64},    {"I64", 64},    {"U64", 64},
}};

[[noreturn]] void refuse(const std::string& file, const std::string& what) {
  throw UserError(fmt::format("{}: {}; {}", file, what, kRemedy));
}

// Takes the header's JSON event by event. A state machine rather than a tree: it sees every key that is given twice,
// needs no recursion, and stops at the first thing that does not belong.
class HeaderReader : public nlohmann::json_sax<base::Json> {
 public:
  HeaderReader(const std::string& file, SafetensorsHeader& header) : file_(file), header_(header) {}

  bool null() override { return unexpected("null"); }
  bool boolean(bool) override { return unexpected("true or false"); }
  // The parser reports negative numbers, and -0, here.
  bool number_integer(number_integer_t) override { return unexpected("a negative number"); }
  bool number_float(number_float_t, const string_t&) override { return unexpected("a fraction or a number too large"); }
  bool binary(binary_t&) override { return unexpected("binary data"); }

  bool number_unsigned(number_unsigned_t number) override {
    if (place_ != Place::kShapeList && place_ != Place::kOffsetList) return unexpected("a number");
    if (number > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return unexpected("a number too large");
    if (place_ == Place::kShapeList) {
      if (tensor_->shape.size() == kMaxDims) refuse(file_, where() + fmt::format(" has more than {} dims", kMaxDims));
      tensor_->shape.push_back(static_cast<int64_t>(number));
    } else {
      if (num_offsets_ == 2) refuse(file_, where() + " has more than two data_offsets");
      (num_offsets_ == 0 ? tensor_->begin_byte : tensor_->end_byte) = static_cast<int64_t>(number);
      ++num_offsets_;
    }
    return true;
  }

  bool string(string_t& text) override {
    if (place_ == Place::kMetadataValue) {
      *metadata_value_ = text;
      place_ = Place::kMetadata;
    } else if (place_ == Place::kDtype) {
      if (safetensors_dtype_bits(text) == 0) refuse(file_, where() + " has unknown dtype " + quoted_name(text));
      tensor_->dtype = text;
      place_ = Place::kTensor;
    } else {
      return unexpected("a string");
    }
    return true;
  }

  bool start_object(std::size_t) override {
    switch (place_) {
      case Place::kStart: place_ = Place::kTop; return true;
      case Place::kTensorValue: place_ = Place::kTensor; return true;
      case Place::kMetadataObject: place_ = Place::kMetadata; return true;
      default: return unexpected("an object");
    }
  }

  bool key(string_t& name) override {
    switch (place_) {
      case Place::kTop: start_entry(name); return true;
      case Place::kTensor: start_field(name); return true;
      case Place::kMetadata: start_metadata(name); return true;
      default: return unexpected("a key");
    }
  }

  bool end_object() override {
    if (place_ == Place::kTensor) {
      if (!has_dtype_) refuse(file_, where() + " has no dtype");
      if (!has_shape_) refuse(file_, where() + " has no shape");
      if (!has_offsets_) refuse(file_, where() + " has no data_offsets");
      place_ = Place::kTop;
    } else {
      place_ = place_ == Place::kMetadata ? Place::kTop : Place::kEnd;
    }
    return true;
  }

  bool start_array(std::size_t) override {
    if (place_ == Place::kShape) {
      place_ = Place::kShapeList;
    } else if (place_ == Place::kOffsets) {
      place_ = Place::kOffsetList;
      num_offsets_ = 0;
    } else {
      return unexpected("a list");
    }
    return true;
  }

  bool end_array() override {
    if (place_ == Place::kOffsetList && num_offsets_ != 2) refuse(file_, where() + " needs two data_offsets");
    place_ = Place::kTensor;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception&) override {
    refuse(file_, fmt::format("the header is not valid JSON at its byte {}", position));
  }

 private:
  // The place is where the reader stands: inside a value, or before one.
  enum class Place : uint8_t {
    kStart,
    kTop,
    kTensorValue,
    kTensor,
    kDtype,
    kShape,
    kShapeList,
    kOffsets,
    kOffsetList,
    kMetadataObject,
    kMetadata,
    kMetadataValue,
    kEnd,
  };

  std::string where() const {
    return name_ == nullptr ? "the header" : (in_metadata_ ? "__metadata__" : "tensor " + quoted_name(*name_));
  }

  [[noreturn]] bool unexpected(const char* what) const {
    refuse(file_, where() + " has " + what + " where it does not belong");
  }

  void start_entry(const std::string& name) {
    in_metadata_ = name == "__metadata__";
    if (in_metadata_) {
      if (has_metadata_) refuse(file_, "__metadata__ is given twice");
      has_metadata_ = true;
      name_ = &name_of_metadata_;
      place_ = Place::kMetadataObject;
      return;
    }
    if (name.size() > kMaxNameBytes) refuse(file_, "a tensor's name is longer than 4096 bytes");
    if (header_.tensors.size() == kMaxTensors) refuse(file_, "there are more than a million tensors");
    const auto [entry, added] = header_.tensors.try_emplace(name);
    if (!added) refuse(file_, "tensor " + quoted_name(name) + " is given twice");
    name_ = &entry->first;
    tensor_ = &entry->second;
    has_dtype_ = has_shape_ = has_offsets_ = false;
    place_ = Place::kTensorValue;
  }

  void start_field(const std::string& field) {
    bool* seen = nullptr;
    if (field == "dtype") {
      seen = &has_dtype_;
      place_ = Place::kDtype;
    } else if (field == "shape") {
      seen = &has_shape_;
      place_ = Place::kShape;
    } else if (field == "data_offsets") {
      seen = &has_offsets_;
      place_ = Place::kOffsets;
    } else {
      refuse(file_, where() + " has an unknown field " + quoted_name(field));
    }
    if (*seen) refuse(file_, where() + " has " + field + " twice");
    *seen = true;
  }

  void start_metadata(const std::string& key) {
    const auto [entry, added] = header_.metadata.try_emplace(key);
    if (!added) refuse(file_, "__metadata__ has " + quoted_name(key) + " twice");
    metadata_value_ = &entry->second;
    place_ = Place::kMetadataValue;
  }

  const std::string& file_;
  SafetensorsHeader& header_;
  Place place_ = Place::kStart;
  const std::string name_of_metadata_ = "__metadata__";
  const std::string* name_ = nullptr;  // current entry's name; null before the first
  TensorInfo* tensor_ = nullptr;
  std::string* metadata_value_ = nullptr;
  bool in_metadata_ = false, has_metadata_ = false, has_dtype_ = false, has_shape_ = false, has_offsets_ = false;
  int num_offsets_ = 0;
};

// Returns the bytes of a tensor, multiplied from left to right: [2^40, 2^40, 0] overflows, as in the official reader.
int64_t stated_bytes(const TensorInfo& tensor, const std::string& name, const std::string& file) {
  uint64_t bits = 1;
  bool overflow = false;
  for (const int64_t dim : tensor.shape) overflow |= __builtin_mul_overflow(bits, static_cast<uint64_t>(dim), &bits);
  const auto element_bits = static_cast<uint64_t>(safetensors_dtype_bits(tensor.dtype));
  overflow |= __builtin_mul_overflow(bits, element_bits, &bits);
  if (overflow) refuse(file, "tensor " + quoted_name(name) + " has a shape too large for 64 bits");
  if (bits % 8 != 0) refuse(file, "tensor " + quoted_name(name) + " does not end at a whole byte");
  return static_cast<int64_t>(bits / 8);
}

// Checks that every byte of the data belongs to exactly one tensor, and that every tensor has the bytes of its dtype
// and shape.
void check_ranges(const SafetensorsHeader& header, int64_t data_bytes, const std::string& file) {
  std::vector<const std::pair<const std::string, TensorInfo>*> entries;
  entries.reserve(header.tensors.size());
  for (const auto& entry : header.tensors) entries.push_back(&entry);
  std::sort(entries.begin(), entries.end(), [](const auto* a, const auto* b) {
    return std::pair(a->second.begin_byte, a->second.end_byte) < std::pair(b->second.begin_byte, b->second.end_byte);
  });
  int64_t covered_bytes = 0;
  for (const auto* entry : entries) {
    const auto& [name, tensor] = *entry;
    if (tensor.begin_byte != covered_bytes) {
      refuse(file, fmt::format("tensor {} begins at byte {} of the data, but {} bytes are taken before it",
                               quoted_name(name), tensor.begin_byte, covered_bytes));
    }
    if (tensor.end_byte < tensor.begin_byte) refuse(file, "tensor " + quoted_name(name) + " ends before it begins");
    const int64_t bytes = stated_bytes(tensor, name, file);
    if (tensor.num_bytes() != bytes) {
      refuse(file, fmt::format("tensor {} has {} bytes, but its dtype and shape need {}", quoted_name(name),
                               tensor.num_bytes(), bytes));
    }
    covered_bytes = tensor.end_byte;
  }
  if (covered_bytes > data_bytes) {
    refuse(file, fmt::format("the file is cut off: its tensors need {} bytes of data, there are {}", covered_bytes,
                             data_bytes));
  }
  if (covered_bytes < data_bytes) {
    refuse(file, fmt::format("{} bytes follow the last tensor", data_bytes - covered_bytes));
  }
}

std::string json_string(const std::string& text) { return base::Json(text).dump(); }

std::string format_header(const std::vector<TensorBytes>& tensors, const std::map<std::string, std::string>& metadata) {
  std::string header = "{";
  const char* comma = "";
  if (!metadata.empty()) {
    header += "\"__metadata__\":{";
    for (const auto& [key, value] : metadata) {
      header += comma + json_string(key) + ":" + json_string(value);
      comma = ",";
    }
    header += "}";
    comma = ",";
  }
  int64_t offset = 0;
  for (const TensorBytes& tensor : tensors) {
    header += fmt::format("{}{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}", comma,
                          json_string(tensor.name), tensor.dtype, fmt::join(tensor.shape, ","), offset,
                          offset + tensor.num_bytes());
    offset += tensor.num_bytes();
    comma = ",";
  }
  header += "}";
  header.append((kLengthBytes - header.size() % kLengthBytes) % kLengthBytes, ' ');
  return header;
}

void check_writable(const std::vector<TensorBytes>& tensors) {
  std::set<std::string_view> names;
  for (const TensorBytes& tensor : tensors) {
    TANDEM_CHECK(tensor.name != "__metadata__" && names.insert(tensor.name).second, "tensor name", tensor.name);
    int64_t bits = safetensors_dtype_bits(tensor.dtype);
    TANDEM_CHECK(bits > 0, "dtype", tensor.dtype);
    for (const int64_t dim : tensor.shape) bits *= dim;
    if (tensor.copy_out) {
      TANDEM_CHECK(tensor.bytes.empty() && bits % 8 == 0, tensor.name);
    } else {
      TANDEM_CHECK_EQ(static_cast<int64_t>(tensor.bytes.size()) * 8, bits, tensor.name);
    }
  }
}

void write_staged(base::DurableFile& file, const TensorBytes& tensor) {
  const int64_t num_bytes = tensor.num_bytes();
  std::vector<std::byte> staging(static_cast<size_t>(std::min(num_bytes, kStagingBytes)));
  for (int64_t offset = 0; offset < num_bytes; offset += kStagingBytes) {
    const std::span<std::byte> part =
        std::span(staging).first(static_cast<size_t>(std::min(num_bytes - offset, kStagingBytes)));
    tensor.copy_out(offset, part);
    file.write(part);
  }
}

}  // namespace

int64_t safetensors_dtype_bits(std::string_view dtype) {
  for (const DtypeRow& row : kDtypes) {
    if (row.name == dtype) return row.bits;
  }
  return 0;
}

int64_t TensorBytes::num_bytes() const {
  int64_t bits = safetensors_dtype_bits(dtype);
  for (const int64_t dim : shape) bits *= dim;
  return bits / 8;
}

std::string quoted_name(std::string_view name) {
  constexpr size_t kShownBytes = 80;
  // This escapes control characters, and with them line breaks, and replaces bytes that are not UTF-8.
  std::string text = base::Json(std::string(name.substr(0, kShownBytes)))
                         .dump(-1, ' ', /*ensure_ascii=*/false, base::Json::error_handler_t::replace);
  if (name.size() > kShownBytes) text.insert(text.size() - 1, "...");
  return text;
}

SafetensorsHeader parse_safetensors_header(std::string_view json, int64_t data_bytes, const std::string& file) {
  if (json.empty() || json.front() != '{') refuse(file, "the header does not begin with '{'");
  // The JSON lexer takes NUL for the end of its input, and would not see the rest.
  if (json.find('\0') != std::string_view::npos) refuse(file, "the header has a NUL byte");
  SafetensorsHeader header;
  HeaderReader reader(file, header);
  base::Json::sax_parse(json.begin(), json.end(), &reader);
  check_ranges(header, data_bytes, file);
  return header;
}

SafetensorsFile::SafetensorsFile(const std::string& path) : file_(path) {
  const int64_t file_bytes = file_.size();
  if (file_bytes < kLengthBytes) refuse(path, "the file is too short for a safetensors header");
  std::array<std::byte, kLengthBytes> prefix;
  file_.read_at(0, prefix);
  const auto header_bytes = std::bit_cast<uint64_t>(prefix);
  if (header_bytes > static_cast<uint64_t>(kMaxHeaderBytes)) {
    refuse(path, "the header would be larger than 100 MB: this is not a safetensors file, or it is damaged");
  }
  data_offset_ = kLengthBytes + static_cast<int64_t>(header_bytes);
  if (data_offset_ > file_bytes) refuse(path, "the file is cut off inside its header");
  std::string json(header_bytes, '\0');
  file_.read_at(kLengthBytes, std::as_writable_bytes(std::span(json)));
  header_ = parse_safetensors_header(json, file_bytes - data_offset_, path);
}

const TensorInfo& SafetensorsFile::tensor(const std::string& name) const {
  const auto it = header_.tensors.find(name);
  TANDEM_USER_CHECK(it != header_.tensors.end(), path() + ": there is no tensor " + quoted_name(name) + "; " + kRemedy);
  return it->second;
}

void SafetensorsFile::read(const TensorInfo& tensor, int64_t offset, std::span<std::byte> buffer) const {
  const auto bytes = static_cast<int64_t>(buffer.size());
  TANDEM_CHECK(offset >= 0 && offset <= tensor.num_bytes() && bytes <= tensor.num_bytes() - offset, "read of", bytes,
               "bytes at", offset, "of a tensor of", tensor.num_bytes());
  if (bytes > 0) file_.read_at(data_offset_ + tensor.begin_byte + offset, buffer);
}

void write_safetensors(const std::string& path, std::vector<TensorBytes> tensors,
                       const std::map<std::string, std::string>& metadata, base::Durable durable) {
  check_writable(tensors);
  std::stable_sort(tensors.begin(), tensors.end(), [](const TensorBytes& a, const TensorBytes& b) {
    return safetensors_dtype_bits(a.dtype) > safetensors_dtype_bits(b.dtype);
  });
  const std::string header = format_header(tensors, metadata);
  TANDEM_CHECK(static_cast<int64_t>(header.size()) <= kMaxHeaderBytes, "header of", header.size(), "bytes");
  const auto length = std::bit_cast<std::array<std::byte, kLengthBytes>>(static_cast<uint64_t>(header.size()));
  base::DurableFile file(path, durable);
  file.write(length);
  file.write(header);
  for (const TensorBytes& tensor : tensors) {
    if (tensor.copy_out) {
      write_staged(file, tensor);
    } else {
      file.write(tensor.bytes);
    }
  }
  file.commit();
}

}  // namespace tandem::weights
