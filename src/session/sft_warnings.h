// Warns of answers that are read as they stand and most likely were not meant so.
#pragma once

#include <string>

#include "data/sft.h"
#include "session/sft_samples.h"

namespace tandem::session {

// Answers to imitate: how many have a label that is false, and how many are empty. `path` names the data.
void warn_of_answers(const data::SftData& data, const std::string& path);

// Preferences: pairs whose answers are the same tokens, and labels that are all alike.
void warn_of_preferences(const SftSamples& samples, data::Answers answers);

}  // namespace tandem::session
