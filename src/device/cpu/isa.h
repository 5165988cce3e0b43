// Chooses among the kernel tables that this processor can run.
#pragma once

#include <string>

#include "device/cpu/kernels.h"

namespace tandem::device::cpu {

// `isa` is "auto" or a table's name; UserError names the ones this machine has.
const KernelTable& choose_kernels(const std::string& isa);
// Returns the names separated by spaces, best first.
std::string available_isas();

}  // namespace tandem::device::cpu
