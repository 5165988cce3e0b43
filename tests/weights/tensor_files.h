// Reads tensors of safetensors files, one or all of them, and writes files: golden data, small checkpoints.
#pragma once

#include <ATen/ops/empty.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "weights/tensor_file.h"

namespace tandem::weights {

// Returns one tensor of an open file, in a new contiguous CPU tensor. Throws UserError when it is absent.
inline at::Tensor read_tensor(const SafetensorsFile& file, const std::string& name) {
  const TensorInfo& info = file.tensor(name);
  at::Tensor tensor = at::empty(info.shape, at::TensorOptions().dtype(torch_dtype(info.dtype, file.path())));
  file.read(info, 0, {static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes()});
  return tensor;
}

inline std::map<std::string, at::Tensor> read_tensors(const std::string& path) {
  const SafetensorsFile file(path);
  std::map<std::string, at::Tensor> tensors;
  for (const auto& [name, info] : file.tensors()) tensors.emplace(name, read_tensor(file, name));
  return tensors;
}

inline void write_tensors(const std::string& path, const std::map<std::string, at::Tensor>& tensors,
                          const std::map<std::string, std::string>& metadata = {}) {
  std::vector<TensorBytes> entries;
  for (const auto& [name, tensor] : tensors) entries.push_back(tensor_bytes(name, tensor));
  write_safetensors(path, std::move(entries), metadata);
}

}  // namespace tandem::weights
