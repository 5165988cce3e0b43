// Exports memory of one process's GPU to other processes of the machine (CUDA IPC), and computes checksums of what was
// copied from it.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "device/checksum.h"

namespace tandem::device {

// These implement device/backend.h. Memory that the driver has not allocated in one piece (cudaMalloc) cannot be
// exported: the arena's memory, expandable segments.
std::string show_cuda_memory(const at::Tensor& tensor);
at::Tensor map_cuda_memory(int index, const std::string& word);
std::vector<Checksum> cuda_checksums(const std::vector<at::Tensor>& tensors);
std::vector<Checksum> copy_mapped_cuda_memory(const at::Tensor& mapped, const at::Tensor& to,
                                              const std::vector<at::Tensor>& parts);

}  // namespace tandem::device
