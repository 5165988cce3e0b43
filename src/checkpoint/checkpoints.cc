#include "checkpoint/checkpoints.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "base/check.h"
#include "base/checksum.h"
#include "base/files.h"

namespace tandem::checkpoint {

namespace {

constexpr const char* kManifest = "MANIFEST.json";
constexpr const char* kState = "state.json";
constexpr base::Durable kDurable = base::Durable::kWithDirectory;
constexpr const char* kPrefix = "step_";
constexpr int64_t kMaxManifestBytes = int64_t{256} << 20;

std::string shard_name(int rank) { return fmt::format("shard_{:05}.safetensors", rank); }

std::string step_name(int64_t step) { return fmt::format("{}{:06}", kPrefix, step); }

std::optional<int64_t> step_of(std::string_view name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  const std::string_view digits = name.substr(std::strlen(kPrefix));
  int64_t step = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  if (error != std::errc() || end != digits.data() + digits.size() || step_name(step) != name) return std::nullopt;
  return step;
}

int64_t product(const std::vector<int64_t>& shape, size_t from) {
  int64_t result = 1;
  for (size_t d = from; d < shape.size(); ++d) result *= shape[d];
  return result;
}

// Copies the intersection of a box and a piece, a run of the innermost dim at a time. `row` and `offset` walk both.
class BoxCopy {
 public:
  BoxCopy(const weights::SafetensorsFile& file, const weights::TensorInfo& info, const TensorPiece& piece,
          const std::vector<int64_t>& begin, const std::vector<int64_t>& shape, int64_t element_bytes,
          std::span<std::byte> out)
      : file_(file),
        info_(info),
        piece_(piece),
        begin_(begin),
        shape_(shape),
        element_bytes_(element_bytes),
        out_(out) {
    if (shape.empty()) {
      file_.read(info_, 0, out_);
    } else {
      copy(0, 0, 0);
    }
  }

 private:
  // `in_piece` and `in_out` are the element offsets of the slab in the piece and in the output so far.
  void copy(size_t d, int64_t in_piece, int64_t in_out) {
    const int64_t first = std::max(begin_[d], piece_.begin[d]);
    const int64_t last = std::min(begin_[d] + shape_[d], piece_.begin[d] + piece_.shape[d]);
    if (first >= last) return;
    const int64_t piece_stride = product(piece_.shape, d + 1), out_stride = product(shape_, d + 1);
    in_piece += (first - piece_.begin[d]) * piece_stride;
    in_out += (first - begin_[d]) * out_stride;
    // If the inner dims are whole in both, the slab is contiguous.
    if (d + 1 == shape_.size() || inner_is_whole(d + 1)) {
      const auto bytes = static_cast<size_t>((last - first) * out_stride * element_bytes_);
      file_.read(info_, in_piece * element_bytes_, out_.subspan(static_cast<size_t>(in_out * element_bytes_), bytes));
      return;
    }
    for (int64_t i = first; i < last; ++i, in_piece += piece_stride, in_out += out_stride)
      copy(d + 1, in_piece, in_out);
  }
  bool inner_is_whole(size_t from) const {
    for (size_t d = from; d < shape_.size(); ++d) {
      if (begin_[d] != piece_.begin[d] || shape_[d] != piece_.shape[d]) return false;
    }
    return true;
  }

  const weights::SafetensorsFile& file_;
  const weights::TensorInfo& info_;
  const TensorPiece& piece_;
  const std::vector<int64_t>&begin_, &shape_;
  const int64_t element_bytes_;
  const std::span<std::byte> out_;
};

ManifestFile described(const std::string& path) {
  return {.bytes = base::ReadableFile(path).size(), .checksum = base::file_checksum(path)};
}

// Writes the shard of one rank, and returns the part of the manifest that is about it.
Manifest write_shard(const std::string& directory, int64_t step, const std::string& name,
                     std::vector<SavedTensor> tensors) {
  Manifest manifest;
  manifest.step = step;
  std::vector<weights::TensorBytes> bytes;
  for (SavedTensor& tensor : tensors) {
    manifest.tensors[tensor.bytes.name] = {
        .dtype = tensor.bytes.dtype,
        .shape = std::move(tensor.whole_shape),
        .pieces = {{.file = name, .begin = std::move(tensor.begin), .shape = tensor.bytes.shape}}};
    bytes.push_back(std::move(tensor.bytes));
  }
  const std::string path = fmt::format("{}/{}", directory, name);
  weights::write_safetensors(path, std::move(bytes), {}, kDurable);
  manifest.files[name] = described(path);
  return manifest;
}

// Returns a text for a manifest that cannot be read, too: one that is not asked for makes no other one fail.
std::string manifest_checksum(const std::string& directory) {
  try {
    return base::file_checksum(fmt::format("{}/{}", directory, kManifest));
  } catch (const std::runtime_error&) {
    return "unreadable";
  }
}

}  // namespace

Checkpoint::Checkpoint(const std::string& directory) : directory_(directory) {
  const std::string path = fmt::format("{}/{}", directory, kManifest);
  const std::string text = base::read_file(path, kMaxManifestBytes);
  checksum_ = base::checksum(text);
  manifest_ = parse_manifest(text, path);
  for (const auto& [name, file] : manifest_.files) {
    const std::string member = fmt::format("{}/{}", directory, name);
    const int64_t bytes = base::ReadableFile(member).size();
    TANDEM_USER_CHECK(bytes == file.bytes,
                      fmt::format("{}: has {} bytes instead of {}: it is damaged", member, bytes, file.bytes));
    TANDEM_USER_CHECK(base::file_checksum(member) == file.checksum,
                      member + ": has another checksum than the manifest says: it is damaged");
    if (name.ends_with(".safetensors")) shards_.emplace(name, member);
  }
  TANDEM_USER_CHECK(manifest_.files.contains(kState), path + ": names no state.json");
  state_ = base::read_json_file(fmt::format("{}/{}", directory, kState));
  for (const auto& [name, tensor] : manifest_.tensors) {
    for (const TensorPiece& piece : tensor.pieces) {
      const auto shard = shards_.find(piece.file);
      TANDEM_USER_CHECK(shard != shards_.end(), fmt::format("{}: tensor {} lies in no .safetensors file", path, name));
      const weights::TensorInfo& info = shard->second.tensor(name);
      TANDEM_USER_CHECK(info.dtype == tensor.dtype && info.shape == piece.shape,
                        fmt::format("{}: tensor {} is another than in {}", path, name, piece.file));
    }
  }
}

void Checkpoint::read(const std::string& name, const std::string& dtype, const std::vector<int64_t>& begin,
                      const std::vector<int64_t>& shape, std::span<std::byte> out) const {
  const auto found = manifest_.tensors.find(name);
  TANDEM_USER_CHECK(found != manifest_.tensors.end(),
                    fmt::format("{}: holds no tensor {}: it is of another model or optimizer", directory_, name));
  const ManifestTensor& tensor = found->second;
  bool inside = begin.size() == tensor.shape.size() && shape.size() == tensor.shape.size();
  for (size_t d = 0; inside && d < shape.size(); ++d) inside = begin[d] + shape[d] <= tensor.shape[d];
  TANDEM_USER_CHECK(
      inside && dtype == tensor.dtype,
      fmt::format("{}: tensor {} has another shape or dtype than here: it is of another model, or of other flags "
                  "(--lora-rank, --ref-update-interval)",
                  directory_, name));
  const int64_t element_bytes = weights::safetensors_dtype_bits(dtype) / 8;
  TANDEM_CHECK_EQ(static_cast<int64_t>(out.size()), product(shape, 0) * element_bytes);
  for (const TensorPiece& piece : tensor.pieces) {
    const weights::SafetensorsFile& shard = shards_.at(piece.file);
    BoxCopy(shard, shard.tensor(name), piece, begin, shape, element_bytes, out);
  }
}

Checkpoints::Checkpoints(const std::string& run_path)
    : folder_(base::without_trailing_slashes(run_path) + "/checkpoints") {}

std::string Checkpoints::path(int64_t step) const { return fmt::format("{}/{}", folder_, step_name(step)); }

void Checkpoints::save(int64_t step, const base::Json& state, std::vector<SavedTensor> tensors,
                       const SavingRanks& ranks) const {
  std::optional<base::DurableDirectory> directory;
  const std::string unfinished = ranks.together([&] {
    if (!ranks.is_conductor()) return std::string();
    base::make_directories(folder_);
    return directory.emplace(path(step), /*replace=*/true).path();
  })[0];
  const std::vector<std::string> parts = ranks.together([&] {
    const Manifest part = write_shard(unfinished, step, shard_name(ranks.rank), std::move(tensors));
    // Rank 0 makes the whole directory durable, which reaches what its own machine has written: another machine's
    // kernel still holds that one's bytes.
    if (!ranks.is_conductor()) base::sync_durably(fmt::format("{}/{}", unfinished, shard_name(ranks.rank)));
    return manifest_text(part);
  });
  ranks.conductor_alone([&] {
    Manifest manifest = merge_manifests(parts, path(step));
    const std::string state_path = fmt::format("{}/{}", unfinished, kState);
    base::write_file_durably(state_path, base::dump_json(state) + "\n", kDurable);
    manifest.files[kState] = described(state_path);
    base::write_file_durably(fmt::format("{}/{}", unfinished, kManifest), manifest_text(manifest), kDurable);
    directory->commit();
    point_to(step);
  });
}

void Checkpoints::point_to(int64_t step) const {
  if (pointed_to() != step) base::write_file_durably(folder_ + "/latest", step_name(step) + "\n");
}

void Checkpoints::keep_latest(int64_t count) const {
  const std::optional<int64_t> pointed = pointed_to();
  std::vector<int64_t> there = steps();
  while (static_cast<int64_t>(there.size()) > count) {
    const auto oldest = std::find_if(there.begin(), there.end(), [&](int64_t step) { return step != pointed; });
    if (oldest == there.end()) return;
    base::remove_durably(path(*oldest));
    there.erase(oldest);
  }
}

void Checkpoints::rewind(int64_t step) const {
  point_to(step);
  for (const int64_t other : steps()) {
    if (other > step) base::remove_durably(path(other));
  }
  base::remove_temporaries(folder_);
}

void Checkpoints::clear() const { base::remove_durably(folder_); }

std::vector<int64_t> Checkpoints::steps() const {
  std::vector<int64_t> result;
  if (!base::directory_exists(folder_)) return result;
  for (const std::string& name : base::list_directory(folder_)) {
    if (const std::optional<int64_t> step = step_of(name)) result.push_back(*step);
  }
  std::sort(result.begin(), result.end());
  return result;
}

bool Checkpoints::empty() const { return steps().empty() && !base::file_exists(folder_ + "/latest"); }

std::string Checkpoints::identity() const {
  const std::string latest = folder_ + "/latest";
  std::string text = base::file_exists(latest) ? base::read_file(latest, 4096) : "";
  for (const int64_t step : steps()) {
    text += fmt::format("{} {}\n", step_name(step), manifest_checksum(path(step)));
  }
  return text;
}

std::optional<int64_t> Checkpoints::pointed_to() const {
  const std::string path = folder_ + "/latest";
  if (!base::file_exists(path) && !base::directory_exists(path)) return std::nullopt;
  std::string text = base::read_file(path, 4096);
  if (!text.empty() && text.back() == '\n') text.pop_back();
  return step_of(text);
}

Checkpoint Checkpoints::open(std::optional<int64_t> step) const {
  const std::string now = identity();  // before anything else is read: what changes later must show
  if (!step) step = pointed_to();
  if (!step) {
    if (base::file_exists(folder_ + "/latest")) refuse(folder_ + "/latest: names no checkpoint: it is damaged");
    // A process that dies between its first checkpoint and the pointer leaves this.
    const std::vector<int64_t> there = steps();
    if (there.empty()) refuse(folder_ + "/latest: is missing");
    step = there.back();
  }
  if (!base::directory_exists(path(*step))) refuse(path(*step) + ": is missing");
  try {
    Checkpoint checkpoint(path(*step));
    TANDEM_USER_CHECK(checkpoint.step() == *step,
                      fmt::format("{}: is that of step {}: it was moved", path(*step), checkpoint.step()));
    checkpoint.identity_when_opened_ = now;
    return checkpoint;
  } catch (const UserError& error) {
    refuse(error.what());
  }
}

// Throws with the defect, and with the newest whole checkpoint as the remedy.
void Checkpoints::refuse(const std::string& what) const {
  const std::vector<int64_t> there = steps();
  for (auto step = there.rbegin(); step != there.rend(); ++step) {
    try {
      if (Checkpoint(path(*step)).step() != *step) continue;  // whole, but of another step
    } catch (const std::runtime_error&) {                     // damaged, or on a disk that does not answer
      continue;
    }
    throw UserError(
        fmt::format("--load: {}; the newest good one is {}: give --ckpt-step {}", what, path(*step), *step));
  }
  throw UserError(fmt::format("--load: {}; there is no good checkpoint in {}", what, folder_));
}

}  // namespace tandem::checkpoint
