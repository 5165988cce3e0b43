// Names of models and data sets on the Hugging Face Hub, where a file or folder of this machine belongs.
#pragma once

#include <cstdint>
#include <string>

namespace tandem::base {

enum class HubKind : uint8_t { kModel, kDataSet };

// For a path that leads nowhere: "; it reads like a model of the Hugging Face Hub, and Tandem downloads nothing: run
// `hf download OWNER/NAME --local-dir NAME` and give that folder". "" where the path does not read like "OWNER/NAME":
// it has other parts, its first part is a folder here, or it ends as a data file does.
std::string hub_remedy(const std::string& path, HubKind kind);

}  // namespace tandem::base
