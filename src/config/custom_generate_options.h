// Declares the options for samples that a user's function makes, in several turns with the engine. docs/SAMPLING.md
// describes it.
#pragma once

#include <string>

#include "options/options.h"
#include "reward/generator_limits.h"

namespace tandem::config {

struct CustomGenerateOptions {
  std::string function;  // FILE.py:function; "": the engine alone makes samples
  reward::GeneratorLimits limits;
  bool endpoint = false;      // an OpenAI-style endpoint on loopback in its processes
  int64_t max_sequences = 1;  // sequences of which a sample may be made, > 0

  void visit(options::Options& options);
  // Throws UserError for a function that is not FILE.py:function.
  void check() const;

  bool is_on() const { return !function.empty(); }
  // Returns the most sequences of a sample that do not continue its prompt. A function that makes one sequence alone
  // returns the prompt's; a conversation of the endpoint has a beginning of its own.
  int64_t further_sequences() const { return is_on() && (endpoint || max_sequences > 1) ? max_sequences : 0; }
};

}  // namespace tandem::config
