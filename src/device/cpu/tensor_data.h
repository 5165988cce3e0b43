// Tensors as the kernels see them: an element type and a pointer.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "base/check.h"
#include "device/cpu/kernels.h"

namespace tandem::device::cpu {

inline Elem elem_of(const at::Tensor& t) {
  TANDEM_CHECK(t.scalar_type() == at::kFloat || t.scalar_type() == at::kBFloat16, "dtype", t.scalar_type());
  return t.scalar_type() == at::kFloat ? Elem::kF32 : Elem::kBF16;
}

inline const void* in(const at::Tensor& t) {
  TANDEM_CHECK(t.is_contiguous(), "a contiguous tensor is needed");
  return t.const_data_ptr();
}

inline const char* offset(const void* p, int64_t elements, Elem elem) {
  return static_cast<const char*>(p) + elements * (elem == Elem::kF32 ? 4 : 2);
}
inline char* offset(void* p, int64_t elements, Elem elem) {
  return static_cast<char*>(p) + elements * (elem == Elem::kF32 ? 4 : 2);
}

}  // namespace tandem::device::cpu
