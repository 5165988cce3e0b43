// Reads whole safetensors files as maps of tensors: golden data, and small checkpoints that tests write.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "weights/tensor_file.h"

namespace tandem::weights {

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
