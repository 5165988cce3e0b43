#include "checkpoint/manifest.h"

#include <fmt/format.h>

#include <functional>
#include <limits>
#include <numeric>
#include <optional>

#include "base/check.h"
#include "base/checksum.h"
#include "base/json.h"
#include "base/message_text.h"

namespace tandem::checkpoint {

namespace {

using base::Json;

constexpr int64_t kFormat = 1;
constexpr int64_t kMaxStep = int64_t{1} << 40;  // no run has so many steps; arithmetic with them fits 64 bits
constexpr size_t kMaxDims = 32;
constexpr size_t kChecksumDigits = 32;

// Reads members of one object; every mistake names the file and the member.
class Reader {
 public:
  Reader(const Json& object, std::string where) : object_(object), where_(std::move(where)) {
    TANDEM_USER_CHECK(object_.is_object(), where_ + ": must be an object");
  }

  const Json& member(const char* name) const {
    const auto found = object_.find(name);
    TANDEM_USER_CHECK(found != object_.end(), fmt::format("{}: {} is missing", where_, name));
    return *found;
  }
  const Json& object(const char* name) const {
    const Json& value = member(name);
    TANDEM_USER_CHECK(value.is_object(), fmt::format("{}: {} must be an object", where_, name));
    return value;
  }
  std::string text(const char* name) const {
    const Json& value = member(name);
    TANDEM_USER_CHECK(value.is_string(), fmt::format("{}: {} must be a string", where_, name));
    return value.get<std::string>();
  }
  int64_t count(const char* name) const { return as_count(member(name), name); }
  std::vector<int64_t> counts(const char* name) const {
    const Json& value = member(name);
    TANDEM_USER_CHECK(value.is_array() && value.size() <= kMaxDims,
                      fmt::format("{}: {} must be a list of at most {} numbers", where_, name, kMaxDims));
    std::vector<int64_t> result;
    for (const Json& element : value) result.push_back(as_count(element, name));
    return result;
  }

 private:
  int64_t as_count(const Json& value, const char* name) const {
    const bool fits = value.is_number_unsigned()
                          ? value.get<uint64_t>() <= uint64_t{std::numeric_limits<int64_t>::max()}
                          : value.is_number_integer() && value.get<int64_t>() >= 0;
    TANDEM_USER_CHECK(fits, fmt::format("{}: {} must be a whole number, 0 or more", where_, name));
    return value.get<int64_t>();
  }

  const Json& object_;
  std::string where_;
};

// Returns the product, or nullopt when it leaves 63 bits.
std::optional<int64_t> volume(const std::vector<int64_t>& shape) {
  int64_t product = 1;
  for (const int64_t dim : shape) {
    if (__builtin_mul_overflow(product, dim, &product)) return std::nullopt;
  }
  return product;
}

bool overlap(const TensorPiece& a, const TensorPiece& b) {
  for (size_t d = 0; d < a.begin.size(); ++d) {
    if (a.begin[d] + a.shape[d] <= b.begin[d] || b.begin[d] + b.shape[d] <= a.begin[d]) return false;
  }
  return true;
}

// Checks that the pieces are inside the tensor and disjoint and have its volume together: so they are the tensor.
void check_pieces(const ManifestTensor& tensor, const std::string& where) {
  const std::optional<int64_t> whole = volume(tensor.shape);
  TANDEM_USER_CHECK(whole.has_value(), where + ": the shape is too large");
  int64_t sum = 0;
  for (size_t i = 0; i < tensor.pieces.size(); ++i) {
    const TensorPiece& piece = tensor.pieces[i];
    bool inside = piece.begin.size() == tensor.shape.size() && piece.shape.size() == tensor.shape.size();
    for (size_t d = 0; inside && d < tensor.shape.size(); ++d) {
      inside = piece.begin[d] <= tensor.shape[d] && piece.shape[d] <= tensor.shape[d] - piece.begin[d];
    }
    TANDEM_USER_CHECK(inside, fmt::format("{}: piece {} lies outside the tensor", where, i));
    for (size_t j = 0; j < i; ++j) {
      TANDEM_USER_CHECK(!overlap(piece, tensor.pieces[j]), fmt::format("{}: pieces {} and {} overlap", where, j, i));
    }
    sum += *volume(piece.shape);
  }
  TANDEM_USER_CHECK(sum == *whole, where + ": the pieces are not the whole tensor");
}

ManifestTensor read_tensor(const Json& value, const std::string& where, const Manifest& manifest) {
  const Reader reader(value, where);
  ManifestTensor tensor{.dtype = reader.text("dtype"), .shape = reader.counts("shape"), .pieces = {}};
  const Json& pieces = reader.member("pieces");
  TANDEM_USER_CHECK(pieces.is_array() && !pieces.empty(), where + ": pieces must be a list with something in it");
  for (const Json& entry : pieces) {
    const Reader piece(entry, where + ": a piece");
    tensor.pieces.push_back(
        {.file = piece.text("file"), .begin = piece.counts("begin"), .shape = piece.counts("shape")});
    TANDEM_USER_CHECK(manifest.files.contains(tensor.pieces.back().file), where + ": a piece's file is not listed");
  }
  return tensor;
}

// Returns whether a name has no folder in it, since a file lies next to its manifest.
bool is_plain_name(const std::string& name) {
  return !name.empty() && name.front() != '.' && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

}  // namespace

std::string manifest_text(const Manifest& manifest) {
  Json json = Json::object();
  json["format"] = kFormat;
  json["step"] = manifest.step;
  json["files"] = Json::object();
  for (const auto& [name, file] : manifest.files)
    json["files"][name] = {{"bytes", file.bytes}, {"checksum", file.checksum}};
  json["tensors"] = Json::object();
  for (const auto& [name, tensor] : manifest.tensors) {
    Json pieces = Json::array();
    for (const TensorPiece& piece : tensor.pieces)
      pieces.push_back({{"file", piece.file}, {"begin", piece.begin}, {"shape", piece.shape}});
    json["tensors"][name] = {{"dtype", tensor.dtype}, {"shape", tensor.shape}, {"pieces", std::move(pieces)}};
  }
  const std::string line = base::dump_json(json);
  return fmt::format("{}\n{}\n", line, base::checksum(line));
}

namespace {

void check_whole(const Manifest& manifest, const std::string& path) {
  for (const auto& [name, tensor] : manifest.tensors) {
    check_pieces(tensor, fmt::format("{}: tensors: {}", path, base::one_line(name)));
  }
}

// Parses a manifest without checking whether its pieces are whole tensors: one rank's manifest has only that rank's.
Manifest parse(std::string_view text, const std::string& path) {
  const size_t end = text.find('\n');
  TANDEM_USER_CHECK(end != std::string_view::npos && text.size() == end + kChecksumDigits + 2 && text.back() == '\n' &&
                        text.substr(end + 1, kChecksumDigits) == base::checksum(text.substr(0, end)),
                    path + ": the checksum in its second line is not that of the first: it is damaged");
  const Json json = base::parse_json(text.substr(0, end), path);
  const Reader reader(json, path);
  const int64_t format = reader.count("format");
  TANDEM_USER_CHECK(format == kFormat, fmt::format("{}: has format {}, and this version reads {}; use the version that "
                                                   "wrote it",
                                                   path, format, kFormat));
  Manifest manifest;
  manifest.step = reader.count("step");
  TANDEM_USER_CHECK(manifest.step <= kMaxStep, fmt::format("{}: step must be at most {}", path, kMaxStep));
  for (const auto& [name, value] : reader.object("files").items()) {
    TANDEM_USER_CHECK(is_plain_name(name), path + ": files: a name that leads elsewhere");
    const Reader file(value, fmt::format("{}: files: {}", path, base::one_line(name)));
    manifest.files[name] = {.bytes = file.count("bytes"), .checksum = file.text("checksum")};
  }
  for (const auto& [name, value] : reader.object("tensors").items()) {
    manifest.tensors[name] = read_tensor(value, fmt::format("{}: tensors: {}", path, base::one_line(name)), manifest);
  }
  return manifest;
}

}  // namespace

Manifest parse_manifest(std::string_view text, const std::string& path) {
  Manifest manifest = parse(text, path);
  check_whole(manifest, path);
  return manifest;
}

Manifest merge_manifests(const std::vector<std::string>& texts, const std::string& path) {
  Manifest merged;
  for (const std::string& text : texts) {
    Manifest part = parse(text, path);
    merged.step = part.step;
    merged.files.merge(part.files);
    for (auto& [name, tensor] : part.tensors) {
      ManifestTensor& whole =
          merged.tensors.try_emplace(name, ManifestTensor{tensor.dtype, tensor.shape, {}}).first->second;
      TANDEM_USER_CHECK(whole.dtype == tensor.dtype && whole.shape == tensor.shape,
                        fmt::format("{}: ranks saved different tensors {}", path, base::one_line(name)));
      whole.pieces.insert(whole.pieces.end(), tensor.pieces.begin(), tensor.pieces.end());
    }
  }
  check_whole(merged, path);
  return merged;
}

}  // namespace tandem::checkpoint
