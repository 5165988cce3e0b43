// Declares a request to the rollout engine, and the engine's numbers. No torch.
#pragma once

#include <cstdint>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "rl/sample.h"
#include "rollout/prefix_owner.h"

namespace tandem::rollout {

struct GroupRequest {
  uint64_t group_id = 0;
  rl::SharedPrompt prompt;           // at least one token
  std::vector<uint64_t> sample_ids;  // n ids, one for each completion
  rl::SamplingParams sampling;
  // Owner of a turn of a conversation, which is a group of one. The KV cache of its beginning is taken from the
  // previous turn, and its own is kept for the next one, as long as memory allows and until release().
  std::optional<PrefixOwner> owner = {};
  // Completions so far, in the order of sample_ids, or empty: none has a token. A begun completion goes on as a
  // preempted one does, so with the same weights it gets the bits that it would have got uncut.
  std::vector<rl::Completion> begun = {};
  // Most tokens that each completion gets from this request; 0, or empty for all: as many as `sampling` allows. A
  // completion that has used its budget and has not ended comes out with reason kPaused.
  std::vector<int64_t> budgets = {};

  // The message has the tokens of the prompt, and nothing else of it.
  static void fields(auto& wire, auto& m) {
    wire(m.group_id, m.sample_ids, m.sampling, m.owner, m.begun, m.budgets);
    if constexpr (std::remove_cvref_t<decltype(wire)>::kReads) {
      std::vector<int32_t> tokens;
      wire(tokens);
      m.prompt = rl::make_prompt(std::move(tokens));
    } else {
      wire(m.prompt->tokens);
    }
  }
};

struct EngineStats {  // counts since the last reset_stats()
  int64_t generated_tokens = 0, prefill_tokens = 0, shared_prompt_tokens = 0, recomputed_tokens = 0;
  int64_t resumed_tokens = 0;  // tokens of begun completions that were prefilled to go on from them
  int64_t kept_tokens = 0;     // tokens of turns whose KV cache was kept from the previous turn
  int64_t kept_dropped = 0;    // kept prefixes that memory was too short for
  int64_t wasted_rows = 0;     // rows decoded for sequences that the previous token had ended
  int64_t draft_tokens = 0;    // tokens that were guessed and computed before they were drawn
  int64_t right_drafts = 0;    // guessed tokens that were drawn
  int64_t draft_steps = 0;     // guesses, of one sequence in one step
  int64_t forwards = 0, preemptions = 0, copies_on_write = 0, peak_running = 0, peak_blocks = 0, num_blocks = 0;

  static void fields(auto& wire, auto& m) {
    wire(m.generated_tokens, m.prefill_tokens, m.shared_prompt_tokens, m.recomputed_tokens, m.resumed_tokens);
    wire(m.kept_tokens, m.kept_dropped, m.wasted_rows, m.draft_tokens, m.right_drafts, m.draft_steps);
    wire(m.forwards, m.preemptions, m.copies_on_write);
    wire(m.peak_running, m.peak_blocks, m.num_blocks);
  }
};
// Adds the numbers of another engine to `sum`, and takes the larger one of each peak.
void add(const EngineStats& of_engine, EngineStats& sum);
// Returns what has been counted since `before`, with the peaks of now.
EngineStats since(const EngineStats& before, const EngineStats& now);

}  // namespace tandem::rollout
