// Which kernel tables this processor can run.
#pragma once

#include <string>

#include "device/cpu/kernels.h"

namespace tandem::device::cpu {

// "auto" or a table's name; UserError names the ones this machine has.
const KernelTable& choose_kernels(const std::string& isa);
// Space-separated, best first.
std::string available_isas();

}  // namespace tandem::device::cpu
