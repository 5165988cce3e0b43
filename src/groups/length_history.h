// Keeps how long the completions of each prompt were when it was sampled last. No torch.
#pragma once

#include <cstdint>
#include <limits>
#include <unordered_map>

#include "groups/group.h"
#include "groups/group_pool.h"

namespace tandem::groups {

// Remembers how long the completions of each prompt were when it was sampled last, so that the longest can begin first,
// and whether they were alike, so that those of certain length are not spread.
class LengthHistory {
 public:
  void remember(const Group& group);
  // Returns what is expected of a prompt's group: what it had last, else what an average group had. Before anything has
  // been sampled, a completion is taken to have a quarter of the tokens that it may have. A length is certain if the
  // completions of the prompt were alike or, for a prompt that was not sampled, if all completions were.
  GroupLength expected(const rl::Prompt& prompt, int64_t max_new_tokens) const;

 private:
  struct Range {  // of completions, in tokens
    int64_t shortest = std::numeric_limits<int64_t>::max(), longest = 0;
    bool is_narrow() const;
  };
  std::unordered_map<const rl::Prompt*, Range> last_;  // of each prompt
  Range all_;                                          // of all that were ever sampled
  int64_t sum_ = 0;                                    // of the longest of each prompt
};

}  // namespace tandem::groups
