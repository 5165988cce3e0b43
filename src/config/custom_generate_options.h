// Declares the options for samples that a user's function makes, in several turns with the engine. docs/SAMPLING.md
// describes it.
#pragma once

#include <string>

#include "base/options.h"
#include "reward/generator_limits.h"

namespace tandem::config {

struct CustomGenerateOptions {
  std::string function;  // FILE.py:function; "": the engine alone makes samples
  reward::GeneratorLimits limits;

  void visit(base::Options& options);
  // Throws UserError for a function that is not FILE.py:function.
  void check() const;

  bool is_on() const { return !function.empty(); }
};

}  // namespace tandem::config
