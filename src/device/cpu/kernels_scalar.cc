// The kernels for plain C++. This file is compiled with its own flags: include nothing here that other files share code
// with.
#include "device/cpu/simd/scalar.h"
#include "device/cpu/table_inl.h"

namespace tandem::device::cpu {

const KernelTable* kernels_scalar() {
  static const KernelTable table = make_table<SimdScalar>("scalar");
  return &table;
}

}  // namespace tandem::device::cpu
