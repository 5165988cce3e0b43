// Whether the packages of trackio and MLflow are installed. They are large, so `make test` does without them: their
// tests say so and are skipped (tools/setup.sh trackio, tools/setup.sh mlflow).
#pragma once

#include <cstdlib>
#include <string>

#include "worker/child_environment.h"

namespace tandem::text {

inline bool has_package(const std::string& name) {
  const std::string python = worker::default_worker_config().python;
  const std::string code = "import importlib.util as u, sys; sys.exit(u.find_spec('" + name + "') is None)";
  return std::system(("'" + python + "' -c \"" + code + "\"").c_str()) == 0;
}
inline std::string why_skipped(const std::string& name) {
  return name + " is not installed: tools/setup.sh " + name + " installs it";
}

}  // namespace tandem::text
