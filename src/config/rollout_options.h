// Declares the options for how completions are sampled, and for the engine's memory and batch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "options/options.h"
#include "rl/sample.h"
#include "rollout/batch_limits.h"

namespace tandem::config {

// Names the flags that lengths came from, for errors: an evaluation has its own.
struct LengthFlags {
  const char* response = "--rollout-max-response-len";
  const char* context = "--rollout-max-context-len";
  const char* prompt = "--rollout-max-prompt-len";
};

struct RolloutOptions {
  int64_t n_samples_per_prompt = 1;
  double temperature = 1.0;
  double top_p = 1.0;
  int64_t top_k = -1;
  double min_p = 0.0;
  std::optional<int64_t> max_response_len;  // unset: rl::kDefaultResponseTokens, limited to the model's context
  int64_t max_context_len = 0;              // 0: the model's
  std::vector<std::string> stop;
  std::vector<int64_t> stop_token_ids;
  bool ignore_eos = false;
  bool skip_special_tokens = true;  // vime: false; an EOS in the text would fail every exact match
  int64_t rollout_seed = 42;

  int64_t kv_cache_bytes = 0;               // 0: as much as the batch needs (plan/kv_size.h, plan/engine_kv.h)
  std::optional<int64_t> max_batch_tokens;  // unset: as many as suit the device
  rollout::BatchLimits limits;              // after fill_in() with max_batch_tokens

  LengthFlags flags;

  void visit(options::Options& options);
  void visit_sampling(options::Options& options);  // options that one request may override
  void visit_engine(options::Options& options);    // options that are fixed for an engine's life
  // Gives what the user left to the device of --device. Call it when the options are read.
  void fill_in(const std::string& device);
  int64_t response_len() const { return max_response_len.value_or(rl::kDefaultResponseTokens); }
  rl::SamplingParams sampling() const;
};

}  // namespace tandem::config
