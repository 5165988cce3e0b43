#include "rollout/stop_strings.h"

#include <algorithm>

namespace tandem::rollout {

bool completes_stop_string(std::string& tail, std::string_view token_bytes, const std::vector<std::string>& stop) {
  const size_t old_bytes = tail.size();
  tail.append(token_bytes);
  size_t longest = 1;
  for (const std::string& text : stop) {
    // A match that ends in the new bytes begins at most size - 1 bytes before them.
    const size_t from = old_bytes - std::min(old_bytes, text.size() - 1);
    if (tail.find(text, from) != std::string::npos) return true;
    longest = std::max(longest, text.size());
  }
  if (tail.size() >= longest) tail.erase(0, tail.size() - (longest - 1));
  return false;
}

}  // namespace tandem::rollout
