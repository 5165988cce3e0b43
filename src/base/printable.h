// Text of others as a terminal may be given it. Reward functions, models, templates and files hold what they like; a
// terminal takes some of it for commands: to change its title or clipboard, to move the cursor over what it has shown,
// to show letters in another order than they stand in.
#pragma once

#include <string>
#include <string_view>

namespace tandem::base {

// The text with "\u001b" in place of the character: all control characters but '\n' and '\t' (C0, DEL, C1), what turns
// the direction of writing (U+061C, U+200E, U+200F, U+202A to U+202E, U+2066 to U+2069) and what some take for the end
// of a line (U+2028, U+2029). "\x9b" in place of a byte that is no UTF-8. Other text stays as it is; JSON stays JSON
// and means the same.
std::string printable(std::string_view text);

}  // namespace tandem::base
