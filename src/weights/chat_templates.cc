#include "weights/chat_templates.h"

#include <fmt/format.h>

#include "base/files.h"

namespace tandem::weights {

std::vector<std::string> additional_templates(const std::string& model_directory) {
  std::vector<std::string> paths;
  const std::string folder = fmt::format("{}/{}", model_directory, kTemplateFolder);
  if (!base::directory_exists(folder)) return paths;
  for (const std::string& name : base::list_directory(folder)) {
    if (name.starts_with('.') || !name.ends_with(".jinja")) continue;
    if (base::file_exists(folder + "/" + name)) paths.push_back(fmt::format("{}/{}", kTemplateFolder, name));
  }
  return paths;
}

}  // namespace tandem::weights
