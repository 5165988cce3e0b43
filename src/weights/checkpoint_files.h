// The weights of a Hugging Face directory before any of them is read: which file holds which tensor, and whether that
// is what a layout asks for. Torch-free, so that a dry run can refuse a checkpoint without allocating it.
#pragma once

#include <deque>
#include <map>
#include <string>
#include <vector>

#include "weights/layout.h"
#include "weights/safetensors.h"

namespace tandem::weights {

// What the file of a model's weights is called, and that of an adapter's: each with ".safetensors" behind it.
inline constexpr const char* kModelFile = "model";
inline constexpr const char* kAdapterFile = "adapter_model";

// The open file or files of one directory: model.safetensors, or the shards that model.safetensors.index.json names; or
// the same under another name.
class CheckpointFiles {
 public:
  struct Location {
    const SafetensorsFile* file = nullptr;
    const TensorInfo* tensor = nullptr;
  };

  // UserError: no weights, an index whose shard names leave the directory, a shard that is missing, cut off or invalid,
  // a tensor that is in two shards, or where index and shards disagree.
  explicit CheckpointFiles(const std::string& directory, const std::string& name = kModelFile);
  CheckpointFiles(const CheckpointFiles&) = delete;
  CheckpointFiles& operator=(const CheckpointFiles&) = delete;

  const std::string& directory() const { return directory_; }
  std::vector<std::string> paths() const;                                      // of the files, ascending
  const std::map<std::string, Location>& tensors() const { return tensors_; }  // by HF name

 private:
  void open_shards(const std::string& index_path);
  void add_file(const std::string& path);

  std::string directory_;
  std::deque<SafetensorsFile> files_;  // a deque: locations point into it
  std::map<std::string, Location> tensors_;
};

// One slice of a layout and the bytes that fill it.
struct SliceSource {
  const PackedTensor* packed = nullptr;
  const Slice* slice = nullptr;
  CheckpointFiles::Location source;
};

// A source for every slice, in the order of files and byte ranges. UserError: a tensor is missing, is not part of the
// layout, or has another shape or a dtype that is not F32, BF16 or F16. Layout and files must outlive the result.
std::vector<SliceSource> match_layout(const CheckpointFiles& files, const Layout& layout);

// Everything that can be said of DIR's weights without reading them. UserError as above.
void check_hf_checkpoint(const std::string& directory, const Layout& layout, const std::string& name = kModelFile);
// base::checksum of the checksums of DIR's files of weights, in the order of their names. Reads all of them.
std::string weights_checksum(const std::string& directory);

}  // namespace tandem::weights
