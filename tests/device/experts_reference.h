// The operations of experts (device/experts.h) in float64, place by place.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/device/reference.h"

namespace tandem::device::reference {

struct Choice {
  Ids ids;         // [T, C], rising
  Values weights;  // [T, C]
};
Choice route(const Values& logits, int64_t X, int64_t C, bool normalises);
// Returns dlogits [T, X].
Values route_backward(const Values& dweights, const Values& logits, const Choice& choice, int64_t X, int64_t C,
                      bool normalises);

// The order of places that belongs to a choice.
struct Places {
  Ids offsets, places, sources;
};
Places order_places(const Ids& ids, int64_t X);

// Adds up each token's C places of y [P, E], times their weights.
Values sum_of_experts(const Values& y, const Values& weights, const Ids& places, int64_t C, int64_t E);

}  // namespace tandem::device::reference
