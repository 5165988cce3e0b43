// Asks whether a row of a forward operation depends on its batch: the rule on which "the engine's log-probs are the
// trainer's" rests (docs/EXACTNESS.md).
#pragma once

#include <cstdint>

#include "device/ops.h"
#include "device_check/answers.h"

namespace tandem::device_check {

// The widths of a model, by which its operations are called.
struct RowWidths {
  int64_t hidden, intermediate, heads, kv_heads, head_dim, vocab;
};

// Computes rows of each forward operation alone, in another order, in parts and beside more rows, and compares their
// bits, in both dtypes: section "rows".
void ask_rows(const device::Ops& ops, const RowWidths& widths, Answers& answers);

}  // namespace tandem::device_check
