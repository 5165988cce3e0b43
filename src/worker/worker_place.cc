#include "worker/worker_place.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <vector>

#include "base/check.h"

namespace tandem::worker {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPackage = "python/tandem_worker/protocol.py";
constexpr const char* kPython = ".venv/bin/python";

bool is_there(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

// Returns the program's folder and those above it, then the repository of the build.
std::vector<fs::path> roots(const std::string& program_folder, const std::string& build_root) {
  std::vector<fs::path> result;
  for (fs::path at = program_folder; !at.empty(); at = at.parent_path()) {
    result.push_back(at);
    if (at == at.root_path()) break;
  }
  if (!build_root.empty()) result.emplace_back(build_root);
  return result;
}

}  // namespace

WorkerPlace find_worker(const std::string& program_folder, const BuildPlace& build) {
  const std::vector<fs::path> places = roots(program_folder, build.root);
  std::vector<std::string> seen;
  for (const fs::path& root : places) {
    seen.push_back(root.string());
    if (!is_there(root / kPackage)) continue;
    const fs::path python = build.python.empty() ? root / kPython : fs::path(build.python);
    if (is_there(python)) return {.python = python.string(), .directory = (root / "python").string()};
    TANDEM_ENV_CHECK(
        !build.root.empty(),
        fmt::format("no Python for the workers: {} is not there; start the program by the command `tandem` "
                    "that pip has installed, which names the interpreter",
                    python.string()));
    // Sources that were copied without .venv still use the one of the build.
    const fs::path fallback = fs::path(build.root) / kPython;
    if (is_there(fallback)) return {.python = fallback.string(), .directory = (root / "python").string()};
    const std::string missing = python == fallback
                                    ? fmt::format("{} is not there, or may not be read by this user", python.string())
                                    : fmt::format("neither {} nor {} is there, or may be read by this user",
                                                  python.string(), fallback.string());
    throw EnvironmentError(fmt::format("no Python for the workers: {}; run `make setup` in {}, or copy .venv there",
                                       missing, root.string()));
  }
  throw EnvironmentError(
      fmt::format("the workers' package, {}, is in none of {}; copy the folders python and .venv beside the program",
                  fs::path(kPackage).parent_path().string(), fmt::join(seen, ", ")));
}

}  // namespace tandem::worker
