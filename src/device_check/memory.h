// Asks whether a device's memory keeps the contracts that the arena, the weights and checkpoints rest on: device/vmm.h
// and device/host_memory.h.
#pragma once

#include "device/memory_driver.h"
#include "device/ops.h"
#include "device_check/answers.h"

namespace tandem::device_check {

// Section "memory". All that is taken is given back.
void ask_memory(device::MemoryDriver& memory, const device::Ops& ops, Answers& answers);

}  // namespace tandem::device_check
