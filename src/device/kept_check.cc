#include "device/kept_check.h"

#include <fmt/format.h>

#include <filesystem>

#include "base/env.h"
#include "base/files.h"
#include "base/sha256.h"

namespace tandem::device {

std::string kept_check_path(const Stack& stack) {
  std::string text;
  for (const auto& [name, version] : stack) text += fmt::format("{}={}\n", name, version);
  constexpr size_t kDigits = 16;
  return fmt::format("{}/tandem/device-{}.json", base::cache_directory(), base::sha256(text).substr(0, kDigits));
}

std::optional<KeptCheck> read_kept_check(const Stack& stack) {
  const std::string path = kept_check_path(stack);
  if (!base::file_exists(path)) return std::nullopt;
  const base::Json kept = base::parse_json(base::read_file(path), path);
  return KeptCheck{.rung = kept.value("rung", ""),
                   .is_right = kept.value("is_right", false),
                   .is_exact = kept.value("is_exact", false),
                   .first_no = kept.value("first_no", "")};
}

void keep_check(const Stack& stack, const KeptCheck& check, const base::Json& answers) {
  const std::string path = kept_check_path(stack);
  base::make_directories(std::filesystem::path(path).parent_path());
  base::write_file_durably(path, base::dump_json({{"rung", check.rung},
                                                  {"is_right", check.is_right},
                                                  {"is_exact", check.is_exact},
                                                  {"first_no", check.first_no},
                                                  {"answers", answers}}) +
                                     "\n");
}

}  // namespace tandem::device
