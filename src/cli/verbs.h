// Declares the table of verbs, one row each.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "options/options.h"

namespace tandem::cli {

struct Verb {
  const char* name;
  const char* description;
  int (*run)(const Verb& verb, const std::vector<std::string>& arguments);
  // The verb's result is a run directory, so a lost standard output is no failure. Other verbs print their result.
  bool keeps_run = false;
  // Returns whether the verb has the option; null for a verb that takes those of others.
  bool (*has_option)(const std::string& name) = nullptr;
};

std::span<const Verb> verbs();

// Declares what the options of a verb answer to names that it does not have: those of other trainers and of other
// verbs.
void declare_other_names(options::Options& options, const std::string& verb);

}  // namespace tandem::cli
