// run/manifest: an accepted manifest names plain files, its pieces are each tensor exactly once, and writing it gives
// what reads back as the same. The text's checksum is made anew, since behind a wrong one nothing is looked at; an
// input that begins with 'r' is taken as it is.
#include "checkpoint/manifest.h"

#include <algorithm>
#include <optional>

#include "base/checksum.h"
#include "tests/fuzz/json_mutator.h"

using namespace tandem::fuzz;
using tandem::checkpoint::Manifest;
using tandem::checkpoint::ManifestTensor;
using tandem::checkpoint::TensorPiece;

namespace {

__extension__ using Wide = unsigned __int128;  // pedantic compilers know it is no ISO type

// The product, which an accepted shape keeps within 63 bits.
Wide volume(const std::vector<int64_t>& shape) {
  Wide product = 1;
  for (const int64_t dim : shape) {
    require(dim >= 0, "no dim is negative");
    if (dim == 0) return 0;
    require(!__builtin_mul_overflow(product, static_cast<Wide>(dim), &product), "a volume is a number");
  }
  return product;
}

bool share_an_element(const TensorPiece& a, const TensorPiece& b) {
  for (size_t d = 0; d < a.shape.size(); ++d) {
    const auto begin = std::max(static_cast<Wide>(a.begin[d]), static_cast<Wide>(b.begin[d]));
    const auto end = std::min(static_cast<Wide>(a.begin[d]) + static_cast<Wide>(a.shape[d]),
                              static_cast<Wide>(b.begin[d]) + static_cast<Wide>(b.shape[d]));
    if (begin >= end) return false;
  }
  return true;
}

void require_tensor(const ManifestTensor& tensor, const Manifest& manifest) {
  require(tensor.shape.size() <= 32, "at most 32 dims");
  Wide sum = 0;
  for (size_t i = 0; i < tensor.pieces.size(); ++i) {
    const TensorPiece& piece = tensor.pieces[i];
    require(manifest.files.contains(piece.file), "a piece lies in a file that is listed");
    require(piece.begin.size() == tensor.shape.size() && piece.shape.size() == tensor.shape.size(), "boxes have dims");
    for (size_t d = 0; d < tensor.shape.size(); ++d) {
      const Wide end = static_cast<Wide>(piece.begin[d]) + static_cast<Wide>(piece.shape[d]);
      require(piece.begin[d] >= 0 && piece.shape[d] >= 0 && end <= static_cast<Wide>(tensor.shape[d]),
              "a piece lies inside its tensor");
    }
    sum += volume(piece.shape);
    constexpr size_t kComparedPieces = 64;  // more take longer than all the rest
    for (size_t j = 0; i < kComparedPieces && j < i; ++j) {
      require(!share_an_element(piece, tensor.pieces[j]), "pieces are disjoint");
    }
  }
  require(sum == volume(tensor.shape), "the pieces are the whole tensor");
}

std::string resealed(std::string_view line) { return std::string(line) + "\n" + tandem::base::checksum(line) + "\n"; }

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text = text_of(data, size);
  const std::string sealed = text.starts_with('r') ? std::string(text.substr(1)) : resealed(text);
  std::optional<Manifest> manifest;
  accepts([&] { manifest = tandem::checkpoint::parse_manifest(sealed, "MANIFEST.json"); },
          [](std::string_view message) { require_message(message, "MANIFEST.json:"); });
  if (!manifest) return 0;
  require(manifest->step >= 0, "the step is no negative number");
  for (const auto& [name, file] : manifest->files) {
    const bool is_plain = !name.empty() && name.front() != '.' && name.find('/') == std::string::npos;
    require(is_plain && name.find('\0') == std::string::npos, "a file lies beside its manifest", name);
    require(file.bytes >= 0, "no file has a negative size", name);
  }
  for (const auto& [name, tensor] : manifest->tensors) require_tensor(tensor, *manifest);
  const std::string written = tandem::checkpoint::manifest_text(*manifest);
  std::string again;
  const bool reads_back =
      accepts([&] { again = tandem::checkpoint::manifest_text(tandem::checkpoint::parse_manifest(written, "again")); },
              [](std::string_view message) { require(false, "its own text is accepted", message); });
  require(reads_back && again == written, "its own text reads back to the same manifest", written);
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  return mutate_json(data, size, max_size, seed);
}
