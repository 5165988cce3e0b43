#include "base/hub_name.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>

#include "base/files.h"

namespace tandem::base {

namespace {

constexpr std::array<std::string_view, 4> kDataFiles = {".jsonl", ".json", ".parquet", ".txt"};

// Returns whether the Hub allows this part of a name: letters, digits, - _ and dots that do not begin it.
bool is_part(std::string_view text) {
  constexpr size_t kMaxBytes = 96;
  return !text.empty() && text.size() <= kMaxBytes && text.front() != '.' && text.front() != '-' &&
         std::ranges::all_of(text, [](unsigned char c) {
           return (c < 0x80 && std::isalnum(c) != 0) || c == '-' || c == '_' || c == '.';
         });
}

}  // namespace

std::string hub_remedy(const std::string& path, HubKind kind) {
  const size_t slash = path.find('/');
  if (slash == std::string::npos) return "";
  const std::string owner = path.substr(0, slash), name = path.substr(slash + 1);
  const bool is_file = std::ranges::any_of(kDataFiles, [&](std::string_view end) { return name.ends_with(end); });
  if (!is_part(owner) || !is_part(name) || is_file || directory_exists(owner)) return "";
  const bool is_model = kind == HubKind::kModel;
  return fmt::format(
      "; it reads like a {} of the Hugging Face Hub, and Tandem downloads nothing: run `hf download {}{} --local-dir "
      "{}` "
      "and give {}",
      is_model ? "model" : "data set", path, is_model ? "" : " --repo-type dataset", name,
      is_model ? "that folder" : "a file of that folder");
}

}  // namespace tandem::base
