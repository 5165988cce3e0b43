// Which weight is damaged: the question of whoever gets numbers from a model that are none.
#pragma once

#include <string>

#include "weights/store.h"

namespace tandem::weights {

// The first element that is NaN or infinite, in the order of the layout: "model.layers.0.self_attn.q_proj.weight holds
// NaN (the first at row 3, column 5)". "" where every weight is finite. Reads the whole store, in pieces through host
// memory: for the moment in which something went wrong, not for every load.
std::string describe_not_finite(const WeightStore& store);

// Why a forward pass gave numbers that are not finite, as the end of an error: the weight, or that it overflowed.
std::string why_not_finite(const WeightStore& store);

}  // namespace tandem::weights
