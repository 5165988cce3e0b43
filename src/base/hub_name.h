// Recognizes names of models and data sets on the Hugging Face Hub that a user gave in place of a local path.
#pragma once

#include <cstdint>
#include <string>

namespace tandem::base {

enum class HubKind : uint8_t { kModel, kDataSet };

// Returns the remedy for a path that does not exist: "; it reads like a model of the Hugging Face Hub, and Tandem
// downloads nothing: run `hf download OWNER/NAME --local-dir NAME` and give that folder". Returns "" if the path does
// not read like "OWNER/NAME": it has other parts, its first part is a folder here, or it ends as a data file does.
std::string hub_remedy(const std::string& path, HubKind kind);

}  // namespace tandem::base
