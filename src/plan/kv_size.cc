#include "plan/kv_size.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "base/size.h"
#include "rollout/kv_layout.h"
#include "rollout/rollout_plan.h"

namespace tandem::plan {

namespace {

// A sequence may hold a copy of its last block of each kind while it writes to a shared one.
constexpr int64_t kSpareBlocks = 1;

}  // namespace

int64_t sequence_kv_bytes(const model::ModelConfig& config, const rollout::BatchLimits& limits, int64_t tokens) try {
  base::Size blocks;
  for (const rollout::BlockKind& kind : rollout::kv_layout(config).kinds) {
    blocks += rollout::most_held_blocks(kind, tokens, limits.max_batch_tokens) + kSpareBlocks;
  }
  return blocks * rollout::kv_block_bytes(config);
} catch (const base::SizeOverflow&) {
  throw UserError(
      fmt::format("config.json: keys and values of {} tokens are more bytes than 64 bits hold (num_hidden_layers {}, "
                  "num_key_value_heads {}, head_dim {}); correct it, or give a shorter --rollout-max-context-len",
                  tokens, config.num_layers, config.num_kv_heads, config.head_dim));
}

int64_t choose_kv_bytes(const config::RolloutOptions& options, const model::ModelConfig& config, int64_t num_sequences,
                        int64_t context_tokens, int64_t automatic_bytes) {
  const base::Size one = sequence_kv_bytes(config, options.limits, context_tokens);
  if (options.kv_cache_bytes > 0) {
    TANDEM_USER_CHECK(options.kv_cache_bytes >= one,
                      fmt::format("--kv-cache-bytes {}: one sequence of {} tokens needs {}; raise it, or lower {}",
                                  options.kv_cache_bytes, context_tokens, int64_t{one}, options.flags.response));
    return options.kv_cache_bytes;
  }
  // Whether all sequences fit is asked by division, because `one` times `together` may be more than 64 bits hold.
  const int64_t together = std::min(num_sequences, options.limits.max_running);
  if (automatic_bytes / one < together) return std::max<int64_t>(one, automatic_bytes);
  return std::max(one, one * together);
}

int64_t choose_context_tokens(const config::RolloutOptions& options, const model::ModelConfig& config,
                              int64_t longest_prompt, const std::string& longest_place) {
  TANDEM_USER_CHECK(options.max_context_len <= config.max_positions,
                    fmt::format("{} {}: the model's context is {} tokens "
                                "(max_position_embeddings of config.json); lower it",
                                options.flags.context, options.max_context_len, config.max_positions));
  const int64_t limit = options.max_context_len > 0 ? options.max_context_len : config.max_positions;
  TANDEM_USER_CHECK(
      longest_prompt < limit,
      fmt::format("{}the longest prompt has {} tokens and the context is {}: no room for a completion; "
                  "leave long prompts out with {}",
                  longest_place.empty() ? "" : longest_place + ": ", longest_prompt, limit, options.flags.prompt));
  const int64_t wanted = longest_prompt + options.response_len();
  TANDEM_USER_CHECK(
      wanted <= limit || !options.max_response_len || options.max_context_len > 0,
      fmt::format("{} {}: with the longest prompt ({} tokens) it exceeds the model's context of {} "
                  "(max_position_embeddings of config.json); give at most {}, or {} {} to cut completions there",
                  options.flags.response, options.response_len(), longest_prompt, limit, limit - longest_prompt,
                  options.flags.context, limit));
  return std::min(wanted, limit);
}

}  // namespace tandem::plan
