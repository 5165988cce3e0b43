// Limits of the work that the engine computes at once. No torch: options, plan and engine share it.
#pragma once

#include <algorithm>
#include <cstdint>

namespace tandem::rollout {

constexpr int64_t kMostDraftRows = 16;

struct BatchLimits {
  int64_t max_batch_tokens = 2048;  // tokens of one forward: decodes first, then prefill chunks; > 0
  int64_t max_running = 256;        // sequences that decode together, > 0
  // Tokens that are guessed of a sequence and computed in one step, where few sequences are left; >= 0, 0: none. A step
  // with guesses has up to kMostDraftRows rows.
  int64_t max_draft_tokens = 0;

  // Returns the most rows of a step in which every row draws, where there are so many sequences.
  int64_t most_decode_rows(int64_t sequences) const {
    const int64_t running = std::min(sequences, max_running);
    return max_draft_tokens > 0 ? std::max(running, kMostDraftRows) : running;
  }
  // Returns the most rows of a recorded step. The engine takes memory for so many, however many sequences there are.
  int64_t most_recorded_rows() const { return std::min(most_decode_rows(max_running), max_batch_tokens); }
};

}  // namespace tandem::rollout
