// The sizes of sequences: how long they may get, and how many bytes their keys and values need.
#pragma once

#include <cstdint>
#include <string>

#include "config/rollout_options.h"
#include "model/config.h"
#include "rollout/batch_limits.h"

namespace tandem::plan {

// The largest KV cache that a run takes of the host without being asked. A larger batch then decodes in waves.
constexpr int64_t kMaxAutomaticKvBytes = int64_t{1} << 30;

// The most bytes of keys and values that one sequence of so many tokens holds at once, with the copy that it may hold
// of its last block of each kind. Of layers that have a window it gives up what lies before that.
int64_t sequence_kv_bytes(const model::ModelConfig& config, const rollout::BatchLimits& limits, int64_t tokens);

// The bytes of the KV cache for `num_sequences` of at most `context_tokens`: what --kv-cache-bytes says, or else what
// they need, but at most `automatic_bytes` or one sequence. It throws a UserError where not even one such sequence fits
// what the flag allows.
int64_t choose_kv_bytes(const config::RolloutOptions& options, const model::ModelConfig& config, int64_t num_sequences,
                        int64_t context_tokens, int64_t automatic_bytes = kMaxAutomaticKvBytes);

// The tokens that prompt + completion may have, given the longest prompt. A response length that the user asked for
// must fit; the default is cut at the model's limit. The UserError names the flag, and the prompt's place if it is
// known.
int64_t choose_context_tokens(const config::RolloutOptions& options, const model::ModelConfig& config,
                              int64_t longest_prompt, const std::string& longest_place = {});

}  // namespace tandem::plan
