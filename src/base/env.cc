#include "base/env.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <system_error>

extern char** environ;

namespace tandem::base {
namespace {

// Shorter values are words that occur in texts by chance.
constexpr size_t kMinSecretCharacters = 8;
constexpr std::array<std::string_view, 5> kSecretEndings = {"TOKEN", "KEY", "SECRET", "PASSWORD", "PASSWD"};

bool is_secret(std::string_view name, std::string_view value) {
  std::string upper(name);
  for (char& c : upper) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  const auto ends = [&upper](std::string_view ending) { return upper.ends_with(ending); };
  return value.size() >= kMinSecretCharacters && std::any_of(kSecretEndings.begin(), kSecretEndings.end(), ends);
}

bool is_of_a_launcher(std::string_view name) {
  constexpr std::array<std::string_view, 9> kNames = {
      "RANK",        "WORLD_SIZE",    "LOCAL_RANK",      "LOCAL_WORLD_SIZE",  "MASTER_ADDR",
      "MASTER_PORT", "TANDEM_LAUNCH", "TANDEM_STORE_FD", "TANDEM_LAUNCHER_FD"};
  constexpr std::array<std::string_view, 5> kBeginnings = {"SLURM_", "OMPI_COMM_WORLD_", "PMI_", "MPI_LOCAL",
                                                           "TORCHELASTIC_"};
  const auto begins = [name](std::string_view beginning) { return name.starts_with(beginning); };
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end() ||
         std::any_of(kBeginnings.begin(), kBeginnings.end(), begins);
}

std::vector<std::pair<std::string, std::string>> secret_variables() {
  std::vector<std::pair<std::string, std::string>> secrets;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const size_t equals = text.find('=');
    if (equals == std::string_view::npos || !is_secret(text.substr(0, equals), text.substr(equals + 1))) continue;
    secrets.emplace_back(text.substr(0, equals), text.substr(equals + 1));
  }
  // A secret that contains another one goes first, or its rest would stay.
  std::stable_sort(secrets.begin(), secrets.end(),
                   [](const auto& a, const auto& b) { return a.second.size() > b.second.size(); });
  return secrets;
}

// These characters continue a name: "/users/ann" is not the beginning of "/users/anna".
bool is_name_character(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-' || c == '.';
}

bool begins_with_home(std::string_view path, const std::string& home) {
  return !home.empty() && path.starts_with(home) &&
         (path.size() == home.size() || !is_name_character(path[home.size()]));
}

void replace_all(std::string& text, const std::string& from, const std::string& to) {
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
}

}  // namespace

std::string reward_service_token() {
  const char* const value = std::getenv("TANDEM_RM_TOKEN");
  return value == nullptr ? "" : value;
}

bool is_set(const std::string& name) { return std::getenv(name.c_str()) != nullptr; }

std::string value_of(const std::string& name) {
  const char* const value = std::getenv(name.c_str());
  return value == nullptr ? "" : value;
}

bool ranks_share_devices() { return std::getenv("TANDEM_RANKS_SHARE_DEVICES") != nullptr; }

std::string secret_file() {
  const char* const value = std::getenv("TANDEM_SECRET_FILE");
  return value == nullptr ? "" : value;
}

std::string home_directory() {
  const char* const value = std::getenv("HOME");
  std::string home = value == nullptr ? "" : value;
  while (home.ends_with('/')) home.pop_back();
  return home.starts_with('/') ? home : "";
}

std::string cache_directory() {
  if (std::string folder = value_of("XDG_CACHE_HOME"); !folder.empty()) return folder;
  const std::string home = home_directory();
  return home.empty() ? temporary_directory() : home + "/.cache";
}

std::string temporary_directory() {
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::temp_directory_path(error);
  return error ? "/tmp" : folder.string();
}

std::string launcher_python() {
  const char* const value = std::getenv("TANDEM_WORKER_PYTHON");
  return value == nullptr ? "" : value;
}

std::map<std::string, std::string> launch_environment() {
  std::map<std::string, std::string> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const size_t equals = text.find('=');
    if (equals == std::string_view::npos || equals + 1 == text.size()) continue;
    if (is_of_a_launcher(text.substr(0, equals))) variables.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return variables;
}

Redaction::Redaction() : Redaction(home_directory(), secret_variables()) {}

Redaction::Redaction(std::string home, std::vector<std::pair<std::string, std::string>> secrets)
    : home_(std::move(home)), secrets_(std::move(secrets)) {}

std::string Redaction::hide_secrets(std::string_view text) const {
  std::string result(text);
  for (const auto& [name, value] : secrets_) replace_all(result, value, "[" + name + "]");
  return result;
}

std::string Redaction::apply(std::string_view text) const {
  const std::string source = hide_secrets(text);
  if (home_.empty()) return source;
  std::string result;
  for (size_t at = 0; at < source.size();) {
    // Within a longer path ("/mnt/users/ann") it is another place.
    const bool begins = at == 0 || !is_name_character(source[at - 1]);
    if (begins && begins_with_home(std::string_view(source).substr(at), home_)) {
      result += '~';
      at += home_.size();
    } else {
      result += source[at++];
    }
  }
  return result;
}

std::string shorten_home(const std::string& path, const std::string& home) {
  return begins_with_home(path, home) ? "~" + path.substr(home.size()) : path;
}

std::string expand_home(const std::string& path, const std::string& home) {
  const bool is_short = path == "~" || path.starts_with("~/");
  return !home.empty() && is_short ? home + path.substr(1) : path;
}

}  // namespace tandem::base
