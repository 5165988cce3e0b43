// Defines the kernels for AVX2 and FMA. This file is compiled with its own flags: include nothing here that other files
// share code with.
#include "device/cpu/simd/avx2.h"
#include "device/cpu/table_inl.h"

namespace tandem::device::cpu {

const KernelTable* kernels_avx2() {
  static const KernelTable table = make_table<SimdAvx2>("avx2");
  return &table;
}

}  // namespace tandem::device::cpu
