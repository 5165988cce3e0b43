#include "worker/child_environment.h"

#include <unistd.h>

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

extern char** environ;

namespace tandem::worker {
namespace {

template <typename Patterns>
bool is_named(const Patterns& patterns, std::string_view name) {
  return std::any_of(patterns.begin(), patterns.end(), [&](std::string_view pattern) {
    if (pattern.starts_with('*')) return name.ends_with(pattern.substr(1));
    return pattern.ends_with('*') ? name.starts_with(pattern.substr(0, pattern.size() - 1)) : name == pattern;
  });
}

bool may_reach(const WorkerConfig& config, std::string_view name) {
  if (is_named(kKeptVariables, name)) return true;
  return config.variables ? is_named(*config.variables, name) : !config.sandboxed;
}

bool changes_where_python_looks(std::string_view name) { return name == "PYTHONPATH" || name == "PYTHONHOME"; }

}  // namespace

std::vector<std::string> child_environment(const WorkerConfig& config, bool runs_users_code) {
  std::map<std::string, std::string> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const size_t equals = text.find('=');
    if (equals == std::string_view::npos) continue;
    const std::string_view name = text.substr(0, equals);
    if (!runs_users_code && changes_where_python_looks(name)) continue;
    if (may_reach(config, name)) variables.emplace(name, text.substr(equals + 1));
  }
  const auto path = variables.find("PYTHONPATH");
  variables["PYTHONPATH"] = path == variables.end() || path->second.empty()
                                ? config.worker_directory
                                : config.worker_directory + ":" + path->second;
  for (const auto& [name, value] : {std::pair{"PYTHONSAFEPATH", "1"},
                                    {"PYTHONUTF8", "1"},
                                    {"PYTHONUNBUFFERED", "1"},
                                    {"PYTHONHASHSEED", "0"},
                                    {"PYTHONDONTWRITEBYTECODE", "1"}}) {
    variables[name] = value;
  }
  if (config.writable && !config.writable->empty()) variables["TMPDIR"] = config.writable->front();
  // Thread pools stay small unless the user says otherwise: workers share the machine with the trainer, and address
  // space is limited.
  for (const auto& [name, value] : {std::pair{"OMP_NUM_THREADS", "1"},
                                    {"OPENBLAS_NUM_THREADS", "1"},
                                    {"RAYON_NUM_THREADS", "4"},
                                    {"MALLOC_ARENA_MAX", "4"}}) {
    variables.emplace(name, value);
  }
  std::vector<std::string> entries;
  entries.reserve(variables.size());
  for (const auto& [name, value] : variables) entries.push_back(name + "=" + value);
  return entries;
}

}  // namespace tandem::worker
