// The model families that Tandem knows, one row each, and the layout of a model by its row. No torch.
#pragma once

#include <string>

#include "model/config.h"
#include "model/family.h"
#include "weights/layout.h"

namespace tandem::model {

// Returns the row of a name in config.json's `architectures`; nullptr when Tandem does not know it.
const Family* find_family(const std::string& architecture);

// Returns the row of the family that `config` was parsed by. BugError where there is none.
const Family& family_of(const ModelConfig& config);

// Returns the packed layout of a model (decoder/layout.h).
weights::Layout build_layout(const ModelConfig& config);

// Returns "Qwen3ForCausalLM, ...", for the message that refuses an unknown architecture.
std::string supported_architectures();

// Says why a name that find_family() does not know is refused, and what to take instead: the rest of a message about
// `architectures`.
std::string refusal_of(const std::string& architecture);

}  // namespace tandem::model
