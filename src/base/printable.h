// Makes foreign text safe for a terminal. Reward functions, models, templates and files may hold any bytes, and a
// terminal takes some of them for commands: to change its title or clipboard, to move the cursor over earlier output,
// or to show letters in another order.
#pragma once

#include <string>
#include <string_view>

namespace tandem::base {

// Returns the text with "\u001b" in place of each character that is unsafe: all control characters but '\n' and '\t'
// (C0, DEL, C1), those that turn the direction of writing (U+061C, U+200E, U+200F, U+202A to U+202E, U+2066 to U+2069)
// and those that some programs take for the end of a line (U+2028, U+2029). A byte that is no UTF-8 becomes "\x9b".
// Other text stays as it is; JSON stays JSON and means the same.
std::string printable(std::string_view text);

}  // namespace tandem::base
