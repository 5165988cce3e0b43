// Tells which files of a model directory are chat templates beside the default one, where transformers saves them. They
// are copied into exports, and their checksums are compared when a run resumes. No torch.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tandem::weights {

inline constexpr std::string_view kTemplateFolder = "additional_chat_templates";

// Returns the templates in the folder of that name, by their paths in the model directory, sorted. Such a file that is
// not regular is among them, and is refused where it is read. The text worker counts the same names
// (python/tandem_worker/templates/chat_template.py).
std::vector<std::string> additional_templates(const std::string& model_directory);

}  // namespace tandem::weights
