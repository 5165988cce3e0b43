#include "groups/length_history.h"

#include <algorithm>

namespace tandem::groups {

bool LengthHistory::Range::is_narrow() const { return longest - shortest <= longest / 5; }

void LengthHistory::remember(const Group& group) {
  Range range;
  for (const Member& member : group.members) {
    const auto length = std::ssize(member.sample.completion);
    range = {.shortest = std::min(range.shortest, length), .longest = std::max(range.longest, length)};
  }
  all_ = {.shortest = std::min(all_.shortest, range.shortest), .longest = std::max(all_.longest, range.longest)};
  Range& last = last_[group.line->prompt.get()];
  sum_ += range.longest - last.longest;
  last = range;
}

GroupLength LengthHistory::expected(const rl::Prompt& prompt, int64_t max_new_tokens) const {
  const auto prompt_tokens = std::ssize(prompt.tokens);
  if (last_.empty()) return {.completion = max_new_tokens / 4, .prompt = prompt_tokens};
  if (const auto found = last_.find(&prompt); found != last_.end()) {
    const Range& last = found->second;
    return {.completion = last.longest, .prompt = prompt_tokens, .is_certain = last.is_narrow()};
  }
  return {.completion = sum_ / std::ssize(last_), .prompt = prompt_tokens, .is_certain = all_.is_narrow()};
}

}  // namespace tandem::groups
