// Asks whether a device computes what the contract of device/ops.h says, and the same each time.
#pragma once

#include "device/ops.h"
#include "device_check/answers.h"

namespace tandem::device_check {

// Compares every operation, in float32 and bfloat16, at odd and at whole sizes, with the scalar operations of the host,
// which the project's tests compare with float64: section "numbers".
void ask_numbers(const device::Ops& ops, Answers& answers);
// Compares every operation with itself, called again: section "repeat".
void ask_repeats(const device::Ops& ops, Answers& answers);

// Counts elements whose bits differ, on the host: the device's own comparison is among what is asked. Both tensors have
// one shape and dtype, on any device.
Comparison compare_bits(const at::Tensor& a, const at::Tensor& b);

}  // namespace tandem::device_check
