#include "weights/checkpoint_files.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <set>
#include <span>
#include <tuple>

#include "base/check.h"
#include "base/checksum.h"
#include "base/files.h"
#include "base/json.h"
#include "base/log.h"
#include "weights/bitsandbytes.h"

namespace tandem::weights {
namespace {

using base::Json;

constexpr int64_t kMaxIndexBytes = int64_t{64} << 20;
constexpr int64_t kComparedBytes = int64_t{1} << 20;  // of each of two copies, at a time
constexpr int64_t kFingerprintBlocks = 64, kFingerprintBlockBytes = 64 << 10;
constexpr const char* kDownloadAgain = "download the checkpoint again";
constexpr const char* kHead = "lm_head.weight";

// Maps a shard's name to the tensors that the index puts into it.
using ShardContents = std::map<std::string, std::set<std::string>>;

// Checks a shard's name: a shard lies next to its index, and a name that leads elsewhere would make us read files that
// the user did not name.
void check_shard_name(const std::string& index_path, const std::string& shard) {
  // Names with control characters would also break the one line of each message that holds a path.
  const bool has_control =
      std::any_of(shard.begin(), shard.end(), [](unsigned char c) { return c < 0x20 || c == 0x7F; });
  constexpr size_t kMaxNameBytes = 255;
  const bool plain = shard.size() <= kMaxNameBytes && shard.find('/') == std::string::npos &&
                     shard.find('\\') == std::string::npos && shard.find("..") == std::string::npos && !has_control &&
                     shard.ends_with(".safetensors") && !shard.starts_with('.');
  TANDEM_USER_CHECK(plain, fmt::format("{}: weight_map: {} is not the plain name of a .safetensors file beside the "
                                       "index; do not use this checkpoint unless you trust its source",
                                       index_path, quoted_name(shard)));
}

ShardContents read_index(const std::string& index_path) {
  const Json index = base::read_json_file(index_path, kMaxIndexBytes);
  const auto map = index.is_object() ? index.find("weight_map") : index.end();
  const bool has_map = index.is_object() && map != index.end() && map->is_object() && !map->empty();
  TANDEM_USER_CHECK(has_map, fmt::format("{}: weight_map is missing or empty; {}", index_path, kDownloadAgain));
  ShardContents shards;
  for (const auto& [tensor, shard] : map->items()) {
    TANDEM_USER_CHECK(shard.is_string(), fmt::format("{}: weight_map: the shard of {} must be a file name; {}",
                                                     index_path, quoted_name(tensor), kDownloadAgain));
    const auto name = shard.get<std::string>();
    check_shard_name(index_path, name);
    shards[name].insert(tensor);
  }
  return shards;
}

void check_shard_contents(const std::string& index_path, const SafetensorsFile& file,
                          const std::set<std::string>& listed) {
  for (const std::string& tensor : listed) {
    TANDEM_USER_CHECK(file.tensors().contains(tensor),
                      fmt::format("{}: tensor {} is missing, though {} says it is here; {}", file.path(),
                                  quoted_name(tensor), index_path, kDownloadAgain));
  }
  for (const auto& [tensor, info] : file.tensors()) {
    TANDEM_USER_CHECK(listed.contains(tensor),
                      fmt::format("{}: tensor {} is here, but {} does not say so; {}", file.path(), quoted_name(tensor),
                                  index_path, kDownloadAgain));
  }
}

[[noreturn]] void refuse_without_weights(const std::string& directory, const std::string& name) {
  TANDEM_USER_CHECK(name != kModelFile || !base::file_exists(fmt::format("{}/{}.safetensors", directory, kAdapterFile)),
                    fmt::format("{}: holds an adapter and no model, though it has a config.json; remove config.json "
                                "to read it as an adapter",
                                directory));
  for (const char* other : {"pytorch_model.bin", "pytorch_model.bin.index.json", "adapter_model.bin"}) {
    TANDEM_USER_CHECK(!base::file_exists(directory + "/" + other),
                      fmt::format("{}/{}: pickled weights are not read, because they can run code; convert them to "
                                  "safetensors with save_pretrained(safe_serialization=True)",
                                  directory, other));
  }
  throw UserError(fmt::format("{0}: neither {1}.safetensors nor {1}.safetensors.index.json is here; {2}", directory,
                              name, kDownloadAgain));
}

bool is_loadable(const std::string& dtype) { return dtype == "F32" || dtype == "BF16" || dtype == "F16"; }

void check_tensor(const CheckpointFiles& files, const Slice& slice, const CheckpointFiles::Location& source) {
  const std::string place = source.file->path() + ": tensor " + quoted_name(slice.hf_name);
  const TensorInfo& tensor = *source.tensor;
  // The shape of a quantised tensor is another one too, which would not say why.
  TANDEM_USER_CHECK(is_loadable(tensor.dtype),
                    fmt::format("{} has dtype {}; only F32, BF16 and F16 weights are read: take an unquantised "
                                "checkpoint",
                                place, tensor.dtype));
  TANDEM_USER_CHECK(
      tensor.shape == slice.hf_shape(),
      fmt::format("{} has shape [{}], {} asks for [{}]; check that both belong to one model", place,
                  fmt::join(tensor.shape, ", "), files.described_in(), fmt::join(slice.hf_shape(), ", ")));
}

// Returns "tensor "x" and 3 more".
std::string shown_names(const std::vector<std::string>& names) {
  std::string text = "tensor " + quoted_name(names.front());
  if (names.size() > 1) text += fmt::format(" and {} more", names.size() - 1);
  return text;
}

void refuse_missing(const std::vector<std::string>& missing, const CheckpointFiles& files) {
  if (missing.empty()) return;
  const bool only_head = missing.size() == 1 && missing.front() == kHead;
  const std::string remedy =
      only_head
          ? "if it is shared with the embedding, set tie_word_embeddings to true in config.json"
          : fmt::format("check that {} belongs to them, or take them from their source again", files.described_in());
  throw UserError(fmt::format("{}: the weights lack {}; {}", files.directory(), shown_names(missing), remedy));
}

void refuse_extra(const CheckpointFiles& files, const Layout& layout, const std::set<std::string>& wanted) {
  std::vector<std::string> extra;
  for (const auto& [name, source] : files.tensors()) {
    const bool ignored = std::find(layout.ignored.begin(), layout.ignored.end(), name) != layout.ignored.end();
    if (!ignored && !wanted.contains(name)) extra.push_back(name);
  }
  if (extra.empty()) return;
  throw UserError(fmt::format("{}: {} is not part of the {} that {} describes; check that both belong together",
                              files.tensors().at(extra.front()).file->path(), shown_names(extra),
                              files.is_adapter() ? "adapter" : "model", files.described_in()));
}

// Visits each slice that the files have twice, with the places of both.
template <typename F>
void for_each_twin(const CheckpointFiles& files, const Layout& layout, F f) {
  for (const PackedTensor& packed : layout.tensors) {
    for (const Slice& slice : packed.slices) {
      if (slice.twin.empty()) continue;
      const auto twin = files.tensors().find(slice.twin);
      if (twin != files.tensors().end()) f(slice, files.tensors().at(slice.hf_name), twin->second);
    }
  }
}

// Refuses a twin that is none; `difference` says what it has of its own.
[[noreturn]] void refuse_twin(const Slice& slice, const CheckpointFiles::Location& twin,
                              const std::string& difference) {
  const std::string remedy =
      slice.twin == kHead ? fmt::format(
                                "to which config.json ties it: if the head is its own, set tie_word_embeddings "
                                "to false there, else remove {} from the file",
                                kHead)
                          : "to which adapter_config.json ties it (ensure_weight_tying); merge the adapter with PEFT "
                            "and take the merged model";
  throw UserError(fmt::format("{}: tensor {} has {} than {}, {}", twin.file->path(), quoted_name(slice.twin),
                              difference, quoted_name(slice.hf_name), remedy));
}

void check_twin_headers(const CheckpointFiles& files, const Layout& layout) {
  for_each_twin(files, layout,
                [](const Slice& slice, const CheckpointFiles::Location& tensor, const CheckpointFiles::Location& twin) {
                  if (twin.tensor->dtype != tensor.tensor->dtype) refuse_twin(slice, twin, "another dtype");
                  if (twin.tensor->shape != tensor.tensor->shape) refuse_twin(slice, twin, "another shape");
                });
}

// Tells whether two tensors of as many bytes have the same ones.
bool have_same_bytes(const CheckpointFiles::Location& a, const CheckpointFiles::Location& b) {
  const int64_t num_bytes = a.tensor->num_bytes();
  std::vector<std::byte> of_a(static_cast<size_t>(std::min(num_bytes, kComparedBytes))), of_b(of_a.size());
  for (int64_t offset = 0; offset < num_bytes; offset += kComparedBytes) {
    const auto count = static_cast<size_t>(std::min(kComparedBytes, num_bytes - offset));
    const std::span<std::byte> left = std::span(of_a).first(count), right = std::span(of_b).first(count);
    a.file->read(*a.tensor, offset, left);
    b.file->read(*b.tensor, offset, right);
    if (!std::ranges::equal(left, right)) return false;
  }
  return true;
}

// Returns the names that the layout has in the files. Throws UserError if there is one that they lack.
std::set<std::string> wanted_names(const CheckpointFiles& files, const Layout& layout) {
  std::vector<std::string> missing;
  std::set<std::string> wanted;
  for (const PackedTensor& packed : layout.tensors) {
    for (const Slice& slice : packed.slices) {
      TANDEM_CHECK(wanted.insert(slice.hf_name).second, "two slices of", slice.hf_name);
      if (!files.tensors().contains(slice.hf_name)) missing.push_back(slice.hf_name);
      if (is_stored_in(files, slice, layout.quantisation())) {
        for (const std::string& name : names_beside(slice.hf_name, layout.quantisation())) wanted.insert(name);
      }
    }
  }
  refuse_missing(missing, files);
  return wanted;
}

}  // namespace

CheckpointFiles::CheckpointFiles(const std::string& directory, const std::string& name)
    : directory_(directory), is_adapter_(name == kAdapterFile) {
  const std::string single_path = fmt::format("{}/{}.safetensors", directory, name);
  const std::string index_path = single_path + ".index.json";
  const bool has_index = base::file_exists(index_path);
  if (base::file_exists(single_path)) {
    // transformers prefers the single file too, so the index is ignored.
    if (has_index) base::log_warning("{}: not used, because {}.safetensors is beside it", index_path, name);
    add_file(single_path);
  } else if (has_index) {
    open_shards(index_path);
  } else {
    refuse_without_weights(directory, name);
  }
}

void CheckpointFiles::open_shards(const std::string& index_path) {
  for (const auto& [shard, tensors] : read_index(index_path)) {
    const std::string path = directory_ + "/" + shard;
    TANDEM_USER_CHECK(base::file_exists(path),
                      fmt::format("{}: the shard is missing, though {} names it; download it", path, index_path));
    add_file(path);
    check_shard_contents(index_path, files_.back(), tensors);
  }
}

void CheckpointFiles::add_file(const std::string& path) {
  const SafetensorsFile& file = files_.emplace_back(path);
  for (const auto& [name, info] : file.tensors()) {
    const auto [entry, added] = tensors_.try_emplace(name, Location{.file = &file, .tensor = &info});
    TANDEM_USER_CHECK(added, fmt::format("{}: tensor {} is also in {}; {}", path, quoted_name(name),
                                         entry->second.file->path(), kDownloadAgain));
  }
}

std::vector<std::string> CheckpointFiles::paths() const {
  std::vector<std::string> paths;
  for (const SafetensorsFile& file : files_) paths.push_back(file.path());
  std::sort(paths.begin(), paths.end());
  return paths;
}

std::vector<SliceSource> match_layout(const CheckpointFiles& files, const Layout& layout) {
  const std::set<std::string> wanted = wanted_names(files, layout);
  std::vector<SliceSource> matches;
  int64_t num_quantised = 0, num_stored = 0;
  for (const PackedTensor& packed : layout.tensors) {
    for (const Slice& slice : packed.slices) {
      const CheckpointFiles::Location& source = files.tensors().at(slice.hf_name);
      const bool is_stored = is_stored_in(files, slice, layout.quantisation());
      if (is_stored) {
        check_stored(files, slice, layout.quantisation());
      } else {
        check_tensor(files, slice, source);
      }
      num_quantised += packed.is_quantised() ? 1 : 0;
      num_stored += is_stored && packed.is_quantised() ? 1 : 0;
      matches.push_back({.packed = &packed,
                         .slice = &slice,
                         .source = source,
                         .stored = is_stored ? layout.quantisation() : device::Quantisation::kNone});
    }
  }
  refuse_extra(files, layout, wanted);
  check_twin_headers(files, layout);
  if (num_stored > 0 && num_stored < num_quantised) {
    base::log_warning("{}: {} of {} matrices are not quantised there; they are quantised as they are read",
                      files.directory(), num_quantised - num_stored, num_quantised);
  }
  // Disks and page caches are faster when files are read in order.
  std::sort(matches.begin(), matches.end(), [](const SliceSource& a, const SliceSource& b) {
    return std::tie(a.source.file->path(), a.source.tensor->begin_byte) <
           std::tie(b.source.file->path(), b.source.tensor->begin_byte);
  });
  return matches;
}

void check_twins(const CheckpointFiles& files, const Layout& layout) {
  for_each_twin(files, layout,
                [](const Slice& slice, const CheckpointFiles::Location& tensor, const CheckpointFiles::Location& twin) {
                  if (!have_same_bytes(tensor, twin)) refuse_twin(slice, twin, "other values");
                });
}

void check_hf_checkpoint(const std::string& directory, const Layout& layout, const std::string& name) {
  const CheckpointFiles files(directory, name);
  match_layout(files, layout);
}

std::string weights_checksum(const std::string& directory, const std::string& name) {
  std::string sums;
  for (const std::string& path : CheckpointFiles(directory, name).paths()) sums += base::file_checksum(path);
  return base::checksum(sums);
}

std::string weights_fingerprint(const std::string& directory, const std::string& name) {
  std::string facts;
  for (const std::string& path : CheckpointFiles(directory, name).paths()) {
    const base::ReadableFile file(path);
    const auto checksum_at = [&](int64_t begin, int64_t bytes) {
      std::string text(static_cast<size_t>(bytes), '\0');
      file.read_at(begin, std::as_writable_bytes(std::span(text)));
      return base::checksum(text);
    };
    facts += fmt::format("{} {} ", path.substr(path.rfind('/') + 1), file.size());
    uint64_t header_bytes = 0;  // the file begins with this number, which CheckpointFiles has found to be right
    file.read_at(0, std::as_writable_bytes(std::span(&header_bytes, 1)));
    facts += checksum_at(0, static_cast<int64_t>(sizeof header_bytes + header_bytes));
    const int64_t block_bytes = std::min(file.size(), kFingerprintBlockBytes);
    const int64_t last_begin = file.size() - block_bytes;
    for (int64_t i = 0; i < kFingerprintBlocks; ++i)
      facts += checksum_at(last_begin * i / (kFingerprintBlocks - 1), block_bytes);
    facts += '\n';
  }
  return base::checksum(facts);
}

}  // namespace tandem::weights
