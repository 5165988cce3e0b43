// Makes the layout of a model of two layers and odd sizes.
#pragma once

#include "model/registry.h"
#include "tests/model/small_models.h"

namespace tandem::weights {

inline Layout small_layout(bool tied = false) { return model::build_layout(model::odd_config(tied)); }

}  // namespace tandem::weights
