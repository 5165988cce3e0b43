// Sets the lines of help texts, those of a verb and the list of verbs.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tandem::options {

// Returns how many columns a help text may take: 110, or where the descriptor is a terminal those of the terminal
// ($COLUMNS first), from 60 to 120.
size_t help_columns(int descriptor);

// Adds `text` to `out` in lines of at most so many columns, all but the first indented, and ends the last. A list of
// choices, [a|b|c], that is longer than a line is broken after a '|'; another such word is not.
void append_wrapped(std::string& out, std::string_view text, size_t indent, size_t columns);

}  // namespace tandem::options
