// Declares the table of verbs, one row each.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace tandem::cli {

struct Verb {
  const char* name;
  const char* description;
  int (*run)(const Verb& verb, const std::vector<std::string>& arguments);
  // The verb's result is a run directory, so a lost standard output is no failure. Other verbs print their result.
  bool keeps_run = false;
};

std::span<const Verb> verbs();

}  // namespace tandem::cli
