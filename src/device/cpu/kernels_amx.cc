// Defines the kernels for AMX: bf16 products and attention in tiles, everything else as on AVX-512. This file is
// compiled with its own flags: include nothing here that other files share code with.
#include "device/cpu/attention_amx.h"
#include "device/cpu/gemm_amx.h"
#include "device/cpu/simd/avx512.h"
#include "device/cpu/table_inl.h"

namespace tandem::device::cpu {

const KernelTable* kernels_amx() {
  static const KernelTable table = [] {
    KernelTable result = make_table<SimdAvx512>("amx");
    result.gemm_bf16 = GemmAmx::table();
    result.attention_rows = 16;
    result.attention = AttentionAmx::forward;
    return result;
  }();
  return &table;
}

}  // namespace tandem::device::cpu
