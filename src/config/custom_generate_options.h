// Samples that a function of the user's makes, in several turns with the engine. docs/SAMPLING.md.
#pragma once

#include <string>

#include "base/options.h"
#include "text/generator_limits.h"

namespace tandem::config {

struct CustomGenerateOptions {
  std::string function;  // FILE.py:function; "": the engine alone makes samples
  text::GeneratorLimits limits;

  void visit(base::Options& options);
  // UserError for a function that is not FILE.py:function.
  void check() const;

  bool is_on() const { return !function.empty(); }
};

}  // namespace tandem::config
