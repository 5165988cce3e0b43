// Defines the kernels for NEON, which every aarch64 processor has.
#include "device/cpu/simd/neon.h"
#include "device/cpu/table_inl.h"

namespace tandem::device::cpu {

const KernelTable* kernels_neon() {
  static const KernelTable table = make_table<SimdNeon>("neon");
  return &table;
}

}  // namespace tandem::device::cpu
