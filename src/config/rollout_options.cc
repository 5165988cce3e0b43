#include "config/rollout_options.h"

#include <fmt/format.h>

#include "base/check.h"
#include "base/size.h"
#include "device/backends.h"
#include "device/footprint.h"

namespace tandem::config {

void RolloutOptions::visit(options::Options& options) {
  visit_sampling(options);
  visit_engine(options);
}

void RolloutOptions::visit_sampling(options::Options& options) {
  const char* const group = "rollout";
  options.option(n_samples_per_prompt, "n-samples-per-prompt", group, "completions of one prompt: the group")
      .at_least(1)
      .at_most(base::kMaxCount);
  options
      .option(temperature, "rollout-temperature", group,
              "sampling temperature; 0: greedy, the most likely token each time")
      .at_least(rl::kMinTemperature)
      .or_zero()
      .at_most(100.0);
  options
      .option(top_p, "rollout-top-p", group,
              "sample among the most likely tokens up to this probability in all; 1: off")
      .greater_than(0.0)
      .at_most(1.0);
  options.option(top_k, "rollout-top-k", group, "sample among this many of the most likely tokens; -1: off")
      .at_least(-1);
  options
      .option(min_p, "rollout-min-p", group,
              "sample among tokens of at least this share of the best one's probability; 0: off")
      .at_least(0.0)
      .at_most(1.0);
  options
      .option(max_response_len, "rollout-max-response-len", group,
              fmt::format("tokens of a completion at most; unset: {}, or what the model's context leaves",
                          rl::kDefaultResponseTokens))
      .at_least(1)
      .at_most(base::kMaxCount);
  options
      .option(max_context_len, "rollout-max-context-len", group,
              "tokens of prompt and completion at most; 0: the model's limit")
      .at_least(0)
      .at_most(base::kMaxCount);
  options.option(stop, "rollout-stop", group, "texts that end a completion and stay in it");
  options.option(stop_token_ids, "rollout-stop-token-ids", group,
                 "token ids that end a completion, besides the model's EOS");
  options.option(ignore_eos, "ignore-eos", group, "EOS and stop tokens end nothing: every completion has full length");
  options.option(skip_special_tokens, "rollout-skip-special-tokens", group,
                 "leave special tokens out of the text that rewards and dumps see");
  options.option(rollout_seed, "rollout-seed", group, "seed of sampling and of the order of prompts").at_least(0);
}

void RolloutOptions::visit_engine(options::Options& options) {
  const char* const engine = "engine";
  options
      .option(
          kv_cache_bytes, "kv-cache-bytes", engine,
          "bytes of the KV cache; 0: what the batch needs, within what the device has left; with --device cpu, within "
          "1 GiB")
      .bytes()
      .at_least(0)
      .at_most(base::kMaxBytes)
      .does_not_affect_results();
  options
      .option(max_batch_tokens, "rollout-max-batch-tokens", engine,
              "tokens of one forward of the engine: decodes first, then chunks of prefills; unset: 2048, with --device "
              "cuda 8192")
      .at_least(1)
      .at_most(base::kMaxCount)
      .does_not_affect_results();
  options.option(limits.max_running, "rollout-max-running", engine, "sequences that decode together at most")
      .at_least(1)
      .at_most(base::kMaxCount)
      .does_not_affect_results();
  options
      .option(limits.max_draft_tokens, "speculative-num-draft-tokens", engine,
              "tokens of a sequence that are guessed from text seen before and checked in one step, at most, where few "
              "sequences are left; 0: none")
      .at_least(0)
      .at_most(rollout::kMostDraftRows - 1)
      .does_not_affect_results();
}

void RolloutOptions::fill_in(const std::string& device) {
  limits.max_batch_tokens = max_batch_tokens.value_or(device::footprint_of(device).batch_tokens);
}

rl::SamplingParams RolloutOptions::sampling() const {
  rl::SamplingParams params;
  params.temperature = temperature;
  params.top_p = top_p;
  params.top_k = top_k == 0 ? -1 : top_k;
  params.min_p = min_p;
  params.max_new_tokens = response_len();
  params.max_context_tokens = max_context_len;
  for (const int64_t id : stop_token_ids) {
    TANDEM_USER_CHECK(id >= 0 && id <= INT32_MAX,
                      fmt::format("--rollout-stop-token-ids {}: not a token id; ids are 0 or more", id));
    params.stop_token_ids.push_back(static_cast<int32_t>(id));
  }
  for (const std::string& text : stop) {
    TANDEM_USER_CHECK(!text.empty(), "--rollout-stop: an empty text would stop every completion; leave it out");
  }
  params.stop = stop;
  params.ignore_eos = ignore_eos;
  params.seed = static_cast<uint64_t>(rollout_seed);
  return params;
}

}  // namespace tandem::config
