// Compares the names of options and choices: typos, patterns, and names in a text.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::options {

// Returns the candidate with the fewest single-character edits from `name` ('_' counts as '-'), or the first that
// begins with it or that it abbreviates; nullopt when all are far from it.
std::optional<std::string> nearest_name(std::string_view name, const std::vector<std::string>& candidates);

// Returns the Levenshtein distance; `limit` if it is not below that.
size_t edit_distance(std::string_view a, std::string_view b, size_t limit);

// Returns whether `name` matches a pattern, which may end in '*' to stand for every name with that beginning.
bool matches(std::string_view pattern, std::string_view name);

// Returns whether a text names "--NAME", and not just a longer flag with the same beginning.
bool names_flag(std::string_view text, const std::string& name);

// Returns the name with '-' in the place of each '_'.
std::string dashed(std::string name);

// Returns the user's word as a message shows it: in a file any string can hold line breaks.
std::string shown(const std::string& word);

}  // namespace tandem::options
