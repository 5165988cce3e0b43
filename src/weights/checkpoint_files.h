// Checks the weights of a Hugging Face directory before any of them is read: it finds the file of each tensor and
// compares names, shapes and dtypes with a layout. Torch-free, so that a dry run can refuse a checkpoint without
// allocating it.
#pragma once

#include <deque>
#include <map>
#include <string>
#include <vector>

#include "weights/layout.h"
#include "weights/safetensors.h"

namespace tandem::weights {

// These name the files of a model's weights and of an adapter's; ".safetensors" follows each.
inline constexpr const char* kModelFile = "model";
inline constexpr const char* kAdapterFile = "adapter_model";

// Opens the file or files of one directory: model.safetensors, or the shards that model.safetensors.index.json lists;
// or the same under another name.
class CheckpointFiles {
 public:
  struct Location {
    const SafetensorsFile* file = nullptr;
    const TensorInfo* tensor = nullptr;
  };

  // Throws UserError if there are no weights, a shard's name in the index leaves the directory, a shard is missing, cut
  // off or invalid, a tensor is in two shards, or index and shards disagree.
  explicit CheckpointFiles(const std::string& directory, const std::string& name = kModelFile);
  CheckpointFiles(const CheckpointFiles&) = delete;
  CheckpointFiles& operator=(const CheckpointFiles&) = delete;

  const std::string& directory() const { return directory_; }
  bool is_adapter() const { return is_adapter_; }
  // Returns the file of the directory that says which tensors there should be.
  const char* described_in() const { return is_adapter_ ? "adapter_config.json" : "config.json"; }
  std::vector<std::string> paths() const;                                      // paths of the files, ascending
  const std::map<std::string, Location>& tensors() const { return tensors_; }  // by HF name

 private:
  void open_shards(const std::string& index_path);
  void add_file(const std::string& path);

  std::string directory_;
  bool is_adapter_;
  std::deque<SafetensorsFile> files_;  // a deque, since locations point into it
  std::map<std::string, Location> tensors_;
};

// Connects a slice of a layout with the bytes of the file that fill it.
struct SliceSource {
  const PackedTensor* packed = nullptr;
  const Slice* slice = nullptr;
  CheckpointFiles::Location source;
  device::Quantisation stored = device::Quantisation::kNone;  // how the file holds it (bitsandbytes.h)
};

// Returns a source for every slice, in the order of files and byte ranges. Throws UserError if a tensor is missing, is
// neither part of the layout nor ignored by it, or has another shape or a dtype that is not F32, BF16 or F16, or if a
// twin has another shape or dtype than its tensor. Files hold whole tensors, even for the layout of a part. Where a
// layout has quantised tensors, each of its matrices may be stored in their quantisation; a warning says how many of
// theirs are not, where some are. Layout and files must outlive the result.
std::vector<SliceSource> match_layout(const CheckpointFiles& files, const Layout& layout);

// Reads both where the files of a matched layout have a tensor and its twin, a MiB of each at a time. Throws UserError
// if their bytes differ: such a head is the model's own, and not the embedding.
void check_twins(const CheckpointFiles& files, const Layout& layout);

// Makes every check of DIR's weights that needs no read of them. Throws UserError if a file is missing or damaged, or
// if its tensors are not those of the layout (match_layout).
void check_hf_checkpoint(const std::string& directory, const Layout& layout, const std::string& name = kModelFile);
// Returns base::checksum of the checksums of DIR's weight files, in the order of their names. Reads all of them.
std::string weights_checksum(const std::string& directory, const std::string& name = kModelFile);
// Returns base::checksum of each of these files' name, size, header, and 64 blocks of 64 KiB that are spread evenly
// over it. It tells whether two hosts were given the same model without a read of all of it; it finds no damage.
std::string weights_fingerprint(const std::string& directory, const std::string& name = kModelFile);

}  // namespace tandem::weights
