// Stop strings, matched on the bytes of a completion as its tokens come: a string may begin inside one token and end
// inside another, and characters may be split between tokens.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tandem::rollout {

// Adds a token's bytes to `tail` (the end of the completion so far) and returns whether one of the stop strings ends in
// them. Keeps in `tail` the bytes with which a later match may begin.
bool completes_stop_string(std::string& tail, std::string_view token_bytes, const std::vector<std::string>& stop);

}  // namespace tandem::rollout
