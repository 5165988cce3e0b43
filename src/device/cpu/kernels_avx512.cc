// Defines the kernels for AVX-512 F, BW, VL, DQ. This file is compiled with its own flags: include nothing here that
// other files share code with.
#include "device/cpu/simd/avx512.h"
#include "device/cpu/table_inl.h"

namespace tandem::device::cpu {

const KernelTable* kernels_avx512() {
  static const KernelTable table = make_table<SimdAvx512>("avx512");
  return &table;
}

}  // namespace tandem::device::cpu
