// What a prompt becomes on its way through a step: a group of completions, scored, with an advantage.
// Plain host data; the rollout engine fills it, rewards complete it, the trainer reads it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace tandem::rl {

// Tokens of a completion where nobody gives a limit: most answers fit in them.
constexpr int64_t kDefaultResponseTokens = 1024;

// What a group is asked. It exists once, whatever is made of it: the data set, the engine and all samples of a group
// hold the same object.
struct Prompt {
  std::vector<int32_t> tokens;  // at least one
  std::string text;             // what was encoded; empty where tokens were given
  std::string label;            // as dumps show it; empty: none
};
using SharedPrompt = std::shared_ptr<const Prompt>;

inline SharedPrompt make_prompt(std::vector<int32_t> tokens, std::string text = {}, std::string label = {}) {
  return std::make_shared<const Prompt>(
      Prompt{.tokens = std::move(tokens), .text = std::move(text), .label = std::move(label)});
}

// How one group is sampled. Defaults are the engine's; those of the flags are in config/rollout_options.h.
struct SamplingParams {
  double temperature = 1.0;                         // 0: greedy, log-probs then at temperature 1
  double top_p = 1.0;                               // 1: off
  int64_t top_k = -1;                               // -1: off
  double min_p = 0.0;                               // 0: off
  int64_t max_new_tokens = kDefaultResponseTokens;  // > 0
  int64_t max_context_tokens = 0;                   // prompt + completion; 0: the model's
  std::vector<int32_t> stop_token_ids;              // besides the model's EOS ids
  std::vector<std::string> stop;                    // matched on token bytes; the text is kept as generated
  bool ignore_eos = false;                          // EOS and stop ids do not end a completion
  uint64_t seed = 0;                                // of the run, or of one request

  static void fields(auto& wire, auto& m) {  // base/wire_fields.h
    wire(m.temperature, m.top_p, m.top_k, m.min_p, m.max_new_tokens, m.max_context_tokens, m.stop_token_ids, m.stop);
    wire(m.ignore_eos, m.seed);
  }

  // True where top-p, top-k or min-p may cut the distribution: sampling is then off-policy by nature.
  bool truncates() const { return temperature > 0 && (top_p < 1.0 || top_k > 0 || min_p > 0.0); }
};

enum class FinishReason : uint8_t { kRunning, kStop, kLength, kAbort };
const char* to_string(FinishReason reason);  // "running", "stop", "length", "abort"

// From token `begin` of the completion on, tokens were sampled with weights of this version.
struct VersionSpan {
  int64_t begin = 0;
  uint64_t version = 0;

  static void fields(auto& wire, auto& m) { wire(m.begin, m.version); }
};

// One sampled continuation of a prompt.
struct Completion {
  uint64_t sample_id = 0;                // counter over the whole run: the random stream's name
  std::vector<int32_t> tokens;           // [N], includes the EOS or stop token that ended it
  std::vector<float> logprobs;           // [N] log softmax(logits / temperature)[token], untruncated: the policy's
  std::vector<float> behavior_logprobs;  // [N] or empty; log-prob in the truncated distribution
  FinishReason finish_reason = FinishReason::kRunning;
  std::vector<VersionSpan> versions;  // ascending by begin
};

// A prompt and its completions, in sample order.
struct Group {
  uint64_t group_id = 0;
  SharedPrompt prompt;
  std::vector<Completion> completions;
};

// How a completion ended, which stays so whatever becomes of its grading.
enum class SampleStatus : uint8_t { kCompleted, kTruncated, kAborted };
const char* to_string(SampleStatus status);  // "completed", "truncated", "aborted"

// Neighbouring tokens of a completion that one speaker gave, in a sample of several turns.
struct SamplePiece {
  int64_t begin = 0;        // the first of its tokens in the completion; it ends where the next piece begins
  bool is_sampled = false;  // the engine sampled it in one call; false: the user's function inserted it
  std::string text;         // decoded with its special tokens, for dumps

  static void fields(auto& wire, auto& m) { wire(m.begin, m.is_sampled, m.text); }
};

// A completion that is scored and ready to train on.
struct Sample {
  uint64_t group_id = 0;
  uint64_t sample_id = 0;
  SharedPrompt prompt;                   // the same object for all samples of a group
  std::vector<int32_t> completion;       // [N]
  std::vector<float> rollout_logprobs;   // [N] the engine's policy log-probs
  std::vector<float> behavior_logprobs;  // [N] or empty
  std::vector<float> ref_logprobs;       // [N] or empty: no reference
  std::vector<uint8_t> loss_mask;        // [N] 1 where the loss counts
  std::vector<double> advantages;        // [N] or [1] for a scalar per sample
  double reward = 0.0;                   // as the reward function gave it
  double overlong_penalty = 0.0;         // taken from it before advantages are made: for its length,
  double kl_penalty = 0.0;               // and for its distance from the reference (reward_shaping.h)
  bool grading_failed = false;           // the grader gave no reward; counted and shown
  bool has_reward = true;  // false: dropped because its grading failed; out of the loss and its group's statistics
  SampleStatus status = SampleStatus::kCompleted;
  bool remove = false;  // out of the loss, still counted in G
  std::vector<VersionSpan> versions;
  int64_t num_turns = 0;            // calls of the engine by --custom-generate-function-path; 0: sampled in one go
  std::string text;                 // of the completion, for dumps
  std::vector<SamplePiece> pieces;  // the completion in parts, in order; none: sampled in one go

  // Every field but the prompt, which each process has of its own.
  static void fields(auto& wire, auto& m) {
    constexpr uint8_t kNumStatuses = 3;
    wire(m.group_id, m.sample_id, m.completion, m.rollout_logprobs, m.behavior_logprobs, m.ref_logprobs, m.loss_mask);
    wire(m.advantages, m.reward, m.overlong_penalty, m.kl_penalty, m.grading_failed, m.has_reward);
    wire.choice(m.status, kNumStatuses);
    wire(m.remove, m.versions, m.num_turns, m.text, m.pieces);
    if constexpr (std::remove_cvref_t<decltype(wire)>::kReads) m.check_pieces();
  }
  // EnvironmentError: pieces are out of order, or begin behind the completion's end.
  void check_pieces() const;

  bool is_trained(size_t token) const { return !remove && loss_mask[token] != 0; }
  double shaped_reward() const { return reward - overlong_penalty - kl_penalty; }
  int64_t num_tokens() const { return static_cast<int64_t>(prompt->tokens.size() + completion.size()); }
};

// Whether two neighbours are of one group, whose prompt the trainer's forward runs once. Another group may well have
// the same prompt: where an epoch ends, the next one begins with any.
inline bool share_prompt(const Sample& a, const Sample& b) { return a.group_id == b.group_id && a.prompt == b.prompt; }

}  // namespace tandem::rl
