// Defines the kernels for AVX-512 with BF16. This file is compiled with its own flags: include nothing here that other
// files share code with.
#include "device/cpu/simd/avx512bf16.h"
#include "device/cpu/table_inl.h"

namespace tandem::device::cpu {

const KernelTable* kernels_avx512bf16() {
  static const KernelTable table = make_table<SimdAvx512Bf16>("avx512bf16");
  return &table;
}

}  // namespace tandem::device::cpu
