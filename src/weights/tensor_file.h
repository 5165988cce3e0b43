// Connects tensors with safetensors files: names of dtypes, and bytes to write.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "weights/safetensors.h"

namespace tandem::weights {

// These convert a dtype to its safetensors name and back: float32, float64, bfloat16, float16, int64, int32 and uint8.
// For any other dtype the first throws BugError, the second UserError.
const char* safetensors_dtype(at::ScalarType dtype);
at::ScalarType torch_dtype(const std::string& dtype, const std::string& file_for_message);

// Returns the bytes of a contiguous tensor, in host memory or on a device, as write_safetensors() takes them. The
// tensor must outlive the result.
TensorBytes tensor_bytes(const std::string& name, const at::Tensor& tensor);

}  // namespace tandem::weights
