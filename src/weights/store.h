// The store is the one copy of the weights: packed tensors in one range of memory, a version number, and views for the
// code that computes with them. The trainer's parameters and the engine's weights are the same bytes.
//
// A store begins with uninitialised memory, or with none (without_storage), which it then allocates or is given.
// Filling it gives the same bits either way.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>

#include "device/quantised_matrix.h"
#include "weights/export_options.h"
#include "weights/layout.h"
#include "weights/weight_spec.h"

namespace tandem::device {
class Communicator;
}

namespace tandem::weights {

// Gives a reader access: tensors by packed name, and the version that they had when the view was taken.
class WeightsView {
 public:
  WeightsView() = default;
  const at::Tensor& operator[](const std::string& name) const;  // throws BugError if absent
  bool has(const std::string& name) const { return tensors_.contains(name); }
  // Returns a quantised matrix; null if there is none of that name.
  const device::QuantisedMatrix* quantised(const std::string& name) const;
  uint64_t version() const { return version_; }
  // Returns this view with the tensors of another store: an adapter with its base. A tensor of the same name takes the
  // place of this view's. The version is that store's.
  WeightsView with(const WeightsView& other) const;

 private:
  friend class WeightStore;
  std::unordered_map<std::string, at::Tensor> tensors_;
  std::unordered_map<std::string, device::QuantisedMatrix> quantised_;
  uint64_t version_ = 0;
  bool is_whole_ = true;
};

// Owns the weights. Every packed tensor lies in one range of memory, contiguous and 64-byte aligned, and keeps its
// address for the store's life. Tensors taken from it keep memory alive that the store allocated; attached memory
// belongs to its owner.
class WeightStore {
 public:
  // Allocates every tensor of the layout, uninitialised. `dtype` is at::kFloat or at::kBFloat16, and that of all
  // tensors that are not quantised. Throws EnvironmentError when the machine, or the device, has too little memory.
  WeightStore(Layout layout, at::ScalarType dtype, at::Device device = at::kCPU);
  // Makes a store that knows layout, dtype, device, bytes and info(), and has no memory yet: allocate(), attach() or a
  // function that fills it comes later.
  static WeightStore without_storage(Layout layout, at::ScalarType dtype, at::Device device = at::kCPU);
  WeightStore(const WeightStore&) = delete;
  WeightStore& operator=(const WeightStore&) = delete;
  WeightStore(WeightStore&&) = default;
  WeightStore& operator=(WeightStore&&) = default;

  bool has_storage() const { return storage_.defined(); }
  // Takes the memory, uninitialised. Throws BugError if there is some, EnvironmentError when the machine, or the
  // device, has too little; the store is then still without.
  void allocate();
  // Uses bytes() bytes at `data` on device(), 64-byte aligned, as they are. Their owner, pinned host memory for
  // instance, outlives the store and all tensors taken from it. Throws BugError if there is storage, or if `data` is
  // not aligned.
  void attach(std::byte* data);

  const Layout& layout() const { return layout_; }
  at::ScalarType dtype() const { return dtype_; }
  at::Device device() const { return device_; }
  // Returns the bytes of the storage, present or not: every element, and under 64 bytes of alignment per tensor.
  int64_t bytes() const;
  // Returns names, shapes, dtype, order and their hash; the storage has no part in it.
  WeightSpec info() const;

  // The next four throw BugError without storage. storage() is all of it: flat, in dtype(), with the padding between
  // the tensors.
  const at::Tensor& storage() const;
  // Returns the live tensor of one packed name; writing to it writes the weights. That of a quantised matrix is its
  // bytes, uint8 and flat.
  const at::Tensor& tensor(const std::string& name) const;
  // Returns the live quantised matrix of a packed name.
  const device::QuantisedMatrix& quantised(const std::string& name) const;
  // Returns the live rows that one HF tensor, or the store's box of it, occupies in a tensor that is not quantised, in
  // the slice's shape.
  at::Tensor slice(const PackedTensor& packed, const Slice& slice) const;
  WeightsView view() const;

  // Adds 1 to the version, after the optimizer wrote. Earlier views keep their number.
  void publish() { ++version_; }
  uint64_t version() const { return version_; }
  void set_version(uint64_t version) { version_ = version; }

  // From begin_update() to end_update() the weights are part old and part new: a view of them is a BugError.
  void begin_update() { is_whole_ = false; }
  void end_update(uint64_t version) {
    is_whole_ = true;
    version_ = version;
  }
  bool is_whole() const { return is_whole_; }

 private:
  enum class Storage : uint8_t { kNone };
  WeightStore(Layout layout, at::ScalarType dtype, at::Device device, Storage storage);
  void place_tensors(at::Tensor storage);

  Layout layout_;
  at::ScalarType dtype_;
  at::Device device_;
  at::Tensor storage_;  // flat; undefined without storage
  std::unordered_map<std::string, at::Tensor> tensors_;
  std::unordered_map<std::string, device::QuantisedMatrix> quantised_;
  uint64_t version_ = 0;
  bool is_whole_ = true;
};

// Fills the store from DIR/model.safetensors or DIR/model.safetensors.index.json + shards. Each slice is read from its
// byte range straight into place; where it is converted (F32, BF16, F16 accepted) or the store lies on a device, it
// goes through one Staging buffer, which is all the extra memory that this takes. Of a slice that is a box of its
// tensor only the box is stored; cutting columns takes one more MiB (box_reader.h). Slices of a quantised tensor are
// quantised as they are read (quantise.h), by so many threads, which takes 1/16 of a byte for each weight of one HF
// tensor, and on a device the bytes of its part; their numbers must be finite. A store without storage gets its own
// once the headers are checked. Throws UserError with file, tensor and remedy for a missing or truncated shard, a
// missing or extra tensor, a wrong shape or dtype, or a tied head that is no copy of its embedding. Everything that
// headers can tell is checked before the first weight is read (check_hf_checkpoint does only that, and needs no store),
// and the two matrices are compared before the store changes.
void load_hf_checkpoint(const std::string& directory, WeightStore& store, int num_threads = 1);

// Writes DIR (created; must not exist with anything in it unless `overwrite`) as an HF directory: config.json with the
// store's dtype, tokenizer and generation files copied from `source_directory`, shards of at most `max_shard_bytes` (a
// larger tensor gets its own) and, if more than one, the index. It is durable: temporary directory, fsync, rename.
// Throws UserError if DIR is in the way, EnvironmentError if the disk refuses; DIR is then as it was.
void export_hf_checkpoint(const std::string& directory, const WeightStore& store, const ExportOptions& options);
// Does the same for a model that is spread over tensor ranks: all of them call it together, and rank 0 writes the files
// that a single rank would write. Rank 0 throws UserError if DIR is in the way and EnvironmentError if the disk
// refuses; the others throw an EnvironmentError with the same words (whole_tensors.h).
void export_hf_checkpoint(const std::string& directory, const WeightStore& store, const ExportOptions& options,
                          device::Communicator& replica);
// Returns the bytes of the files that an export copies from `source_directory`: tokenizer, configuration.
int64_t copied_bytes(const std::string& source_directory);

// Draws random weights as each packed tensor's `init` demands, by Philox of (seed, first_stream + tensor, element),
// counted in the whole model, so the parts of a model are the same model however many there are; the number of threads
// changes no number. A store without storage gets its own. Throws EnvironmentError if the machine refuses a thread.
void initialize_random(WeightStore& store, double initializer_range, uint64_t seed, uint64_t first_stream = 0,
                       int num_threads = 1);

// Copies every tensor of `to` that `from` has under the same name, converted to the dtype of `to`: modules that are
// trained whole next to an adapter (model/lora.h), from the base or to it.
void copy_common(const WeightStore& from, WeightStore& to);

// These read and write an adapter, DIR/adapter_model.safetensors in PEFT's format, with the same promises and errors as
// the two above. `config` is the text of adapter_config.json; the tokenizer is copied from `source_directory`.
void load_adapter(const std::string& directory, WeightStore& store);
void export_adapter(const std::string& directory, const WeightStore& store, const std::string& config,
                    const ExportOptions& options);

}  // namespace tandem::weights
