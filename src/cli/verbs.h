// The verbs: one row each.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace tandem::cli {

struct Verb {
  const char* name;
  const char* description;
  // Null: the verb is known but not in this version.
  int (*run)(const Verb& verb, const std::vector<std::string>& arguments);
  // Its result is in a run directory, and what it prints is news of it; the result of others is what they print.
  bool keeps_run = false;
};

std::span<const Verb> verbs();

}  // namespace tandem::cli
