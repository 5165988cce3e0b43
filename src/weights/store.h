// The one copy of the weights: packed tensors in one allocation, a version number, and views for whoever
// computes with them. The trainer's parameters and the engine's weights are the same bytes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <unordered_map>

#include "weights/layout.h"

namespace tandem::weights {

// What a reader holds: tensors by packed name, and the version that they had when the view was taken.
class WeightsView {
 public:
  WeightsView() = default;
  const at::Tensor& operator[](const std::string& name) const;  // BugError when absent
  bool has(const std::string& name) const { return tensors_.contains(name); }
  uint64_t version() const { return version_; }

 private:
  friend class WeightStore;
  std::unordered_map<std::string, at::Tensor> tensors_;
  uint64_t version_ = 0;
};

// Owns the weights. Every packed tensor lies in one allocation, contiguous and 64-byte aligned, and keeps its address
// for the store's life; tensors taken from it keep the allocation alive.
class WeightStore {
 public:
  // Allocates every tensor of the layout, uninitialised. dtype: at::kFloat or at::kBFloat16. EnvironmentError when the
  // machine, or the device, has not the memory.
  WeightStore(Layout layout, at::ScalarType dtype, at::Device device = at::kCPU);
  WeightStore(const WeightStore&) = delete;
  WeightStore& operator=(const WeightStore&) = delete;
  WeightStore(WeightStore&&) = default;
  WeightStore& operator=(WeightStore&&) = default;

  const Layout& layout() const { return layout_; }
  at::ScalarType dtype() const { return dtype_; }
  at::Device device() const { return storage_.device(); }
  // Of the allocation: every element, and under 64 bytes of alignment per tensor.
  int64_t bytes() const;

  // The live tensor of one packed name; writing to it writes the weights.
  const at::Tensor& tensor(const std::string& name) const;
  // The live rows that one HF tensor occupies, in its HF shape.
  at::Tensor slice(const PackedTensor& packed, const Slice& slice) const;
  WeightsView view() const;

  // After the optimizer wrote: version + 1. Views taken before keep their number.
  void publish() { ++version_; }
  uint64_t version() const { return version_; }
  void set_version(uint64_t version) { version_ = version; }

 private:
  Layout layout_;
  at::ScalarType dtype_;
  at::Tensor storage_;
  std::unordered_map<std::string, at::Tensor> tensors_;
  uint64_t version_ = 0;
};

// Fills the store from DIR/model.safetensors or DIR/model.safetensors.index.json + shards: each slice is read from its
// byte range straight into place, converted to the store's dtype (F32, BF16, F16 accepted), a few MiB at a time.
// UserError: a missing or truncated shard, a missing or extra tensor, a wrong shape or dtype; file, tensor and remedy
// are named. Everything that headers can tell is checked before the first weight is read (check_hf_checkpoint does only
// that, and needs no store).
void load_hf_checkpoint(const std::string& directory, WeightStore& store);

// Writes DIR (created; must not exist with anything in it unless `overwrite`) as an HF directory: config.json with
// the store's dtype, tokenizer and generation files copied from `source_directory`, shards of at most
// `max_shard_bytes` (a larger tensor gets its own) and, if more than one, the index. Durable: temporary directory,
// fsync, rename. UserError: DIR is in the way; EnvironmentError: the disk refuses. DIR is then as it was.
struct ExportOptions {
  std::string source_directory;
  int64_t max_shard_bytes = int64_t{5} << 30;
  bool overwrite = false;  // an earlier export is replaced; a directory with any other file in it is still refused
};
void export_hf_checkpoint(const std::string& directory, const WeightStore& store, const ExportOptions& options);

// Random weights N(0, initializer_range), norms 1: for demos, benches and tests. Philox of (seed, tensor, element).
void initialize_random(WeightStore& store, double initializer_range, uint64_t seed);

}  // namespace tandem::weights
