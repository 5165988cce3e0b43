// Tests that repeat a fault many times have two counts: a short one for `make test`, and the full one, with --soak, for
// `make soak`. Those that last for a time instead take --soak-seconds. Their program takes the flags through
// tests/base/soak_main.cc.
#pragma once

#include <cstdint>

namespace tandem::base {

bool soaking();
inline int64_t short_or_full(int64_t short_count, int64_t full_count) { return soaking() ? full_count : short_count; }

// Returns the value of --soak-seconds; else `short_seconds`, or an hour with --soak.
double soak_seconds(double short_seconds);

}  // namespace tandem::base
