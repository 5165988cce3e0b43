// Asks the processor what it can do and picks the best kernel table.
#include "device/cpu/isa.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <vector>

#include "base/check.h"

namespace tandem::device::cpu {

namespace {

#if defined(__x86_64__)
// AMX needs the processor (leaf 7: bf16 and tiles) and the kernel's permission for this process to use 8 KiB of tile
// registers, which kernels before 5.16 and some sandboxes do not give.
bool ask_for_amx() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
  constexpr unsigned kAmxBf16 = 1u << 22, kAmxTile = 1u << 24;
  if ((edx & kAmxBf16) == 0 || (edx & kAmxTile) == 0) return false;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

void add_vector_kernels(std::vector<const KernelTable*>& tables) {
  const bool avx512 = __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
                      __builtin_cpu_supports("avx512vl") != 0 && __builtin_cpu_supports("avx512dq") != 0;
  const bool bf16 = avx512 && __builtin_cpu_supports("avx512bf16") != 0;
  static const bool amx = bf16 && ask_for_amx();
  if (amx) tables.push_back(kernels_amx());
  // Intel's cores issue the bf16 dot every other cycle, so widening to float32 (two FMAs a cycle) is faster there:
  // 300 against 200 GFLOP/s on two cores of a Sapphire Rapids. AMD's issue it at the rate of an FMA.
  const bool prefer_dot = __builtin_cpu_is("amd") != 0;
  if (bf16 && prefer_dot) tables.push_back(kernels_avx512bf16());
  if (avx512) tables.push_back(kernels_avx512());
  if (bf16 && !prefer_dot) tables.push_back(kernels_avx512bf16());
  if (__builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0) tables.push_back(kernels_avx2());
}
#elif defined(__aarch64__)
void add_vector_kernels(std::vector<const KernelTable*>& tables) { tables.push_back(kernels_neon()); }
#else
void add_vector_kernels(std::vector<const KernelTable*>&) {}
#endif

// Returns the tables that this processor can run, best first.
std::vector<const KernelTable*> available() {
  std::vector<const KernelTable*> tables;
  add_vector_kernels(tables);
  tables.push_back(kernels_scalar());
  return tables;
}

}  // namespace

std::string available_isas() {
  std::string names;
  for (const KernelTable* table : available()) names += (names.empty() ? "" : " ") + std::string(table->name);
  return names;
}

const KernelTable& choose_kernels(const std::string& isa) {
  const std::vector<const KernelTable*> tables = available();
  for (const KernelTable* table : tables)
    if (isa == "auto" || isa == table->name) return *table;
  throw UserError("--cpu-isa: this processor has no '" + isa + "'; use auto or one of: " + available_isas());
}

}  // namespace tandem::device::cpu
