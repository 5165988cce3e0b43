// Finds the damaged weight behind results of a model that are not finite.
#pragma once

#include <string>

#include "weights/store.h"

namespace tandem::weights {

// Returns the first element that is NaN or infinite, in the order of the layout:
// "model.layers.0.self_attn.q_proj.weight holds NaN (the first at row 3, column 5)"; "" if every weight is finite. It
// reads the whole store, in pieces through host memory, so it is meant for errors and not for every load.
std::string describe_not_finite(const WeightStore& store);

// Returns, as the end of an error, why a forward pass gave numbers that are not finite: the weight, or that it
// overflowed.
std::string why_not_finite(const WeightStore& store);

}  // namespace tandem::weights
