// The owner of a turn: turns of one sample begin with tokens that the previous turns have computed. No torch.
#pragma once

#include <cstdint>

namespace tandem::rollout {

// A sample, and the group whose samples begin alike.
struct PrefixOwner {
  uint64_t group_id = 0, sample_id = 0;

  static void fields(auto& wire, auto& m) { wire(m.group_id, m.sample_id); }
};

}  // namespace tandem::rollout
