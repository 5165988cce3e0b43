#include "weights/export_target.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "base/files.h"
#include "weights/chat_templates.h"
#include "weights/safetensors.h"

namespace tandem::weights {
namespace {

bool is_shard_name(std::string_view name) { return name.starts_with("model-") && name.ends_with(".safetensors"); }

bool is_export_file(const std::string& directory, const std::string& name) {
  const std::string path = directory + "/" + name;
  if (base::directory_exists(path)) {
    return name == kTemplateFolder && additional_templates(directory).size() == base::list_directory(path).size();
  }
  return name == "config.json" || name == kSingleFile || name == kIndexFile || is_shard_name(name) ||
         name == kAdapterWeights || name == kAdapterConfig ||
         std::find(kCopiedFiles.begin(), kCopiedFiles.end(), name) != kCopiedFiles.end();
}

}  // namespace

void check_export_target(const std::string& directory, bool overwrite) {
  TANDEM_USER_CHECK(!base::file_exists(directory) || base::directory_exists(directory),
                    directory + ": a file of that name is in the way; choose another directory");
  if (!base::directory_exists(directory)) return;
  for (const std::string& name : base::list_directory(directory)) {
    TANDEM_USER_CHECK(overwrite, directory + ": the directory is not empty; choose another, or give --overwrite");
    TANDEM_USER_CHECK(is_export_file(directory, name),
                      fmt::format("{}: holds {}, which is no part of an export and would be lost; choose another "
                                  "directory",
                                  directory, quoted_name(name)));
  }
}

}  // namespace tandem::weights
