// Defines the records of a step: a prompt, its group of completions, and each one as a sample with reward and
// advantage. They are plain host data; the rollout engine fills them, rewards complete them, the trainer reads them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace tandem::rl {

// A completion has at most this many tokens by default: most answers fit.
constexpr int64_t kDefaultResponseTokens = 1024;

// Holds the prompt of a group. It exists once, whatever is made of it: the data set, the engine and all samples of a
// group hold the same object.
struct Prompt {
  std::vector<int32_t> tokens;  // at least one
  std::string text;             // text that was encoded; empty if tokens were given
  std::string label;            // label as dumps show it; empty: none
};
using SharedPrompt = std::shared_ptr<const Prompt>;

inline SharedPrompt make_prompt(std::vector<int32_t> tokens, std::string text = {}, std::string label = {}) {
  return std::make_shared<const Prompt>(
      Prompt{.tokens = std::move(tokens), .text = std::move(text), .label = std::move(label)});
}

// The quotient of logits and less would not stay a finite float32.
constexpr double kMinTemperature = 1e-4;

// Holds the parameters by which one group is sampled. Defaults are the engine's; those of the flags are in
// config/rollout_options.h.
struct SamplingParams {
  double temperature = 1.0;                         // at least kMinTemperature; 0: greedy, log-probs at temperature 1
  double top_p = 1.0;                               // 1: off
  int64_t top_k = -1;                               // -1: off
  double min_p = 0.0;                               // 0: off
  int64_t max_new_tokens = kDefaultResponseTokens;  // > 0
  int64_t max_context_tokens = 0;                   // limit of prompt + completion; 0: the model's
  std::vector<int32_t> stop_token_ids;              // besides the model's EOS ids
  std::vector<std::string> stop;                    // matched on token bytes; the text is kept as generated
  bool ignore_eos = false;                          // EOS and stop ids do not end a completion
  uint64_t seed = 0;                                // seed of the run, or of one request

  static void fields(auto& wire, auto& m) {  // base/wire_fields.h
    wire(m.temperature, m.top_p, m.top_k, m.min_p, m.max_new_tokens, m.max_context_tokens, m.stop_token_ids, m.stop);
    wire(m.ignore_eos, m.seed);
  }

  // Returns true if top-p, top-k or min-p may cut the distribution: sampling is then off-policy by nature.
  bool truncates() const { return temperature > 0 && (top_p < 1.0 || top_k > 0 || min_p > 0.0); }
};

// kPaused: the completion used its token budget and has not ended. A later request goes on from it.
enum class FinishReason : uint8_t { kRunning, kStop, kLength, kAbort, kPaused };
const char* to_string(FinishReason reason);  // "running", "stop", "length", "abort", "paused"

// From token `begin` of the completion on, tokens were sampled with weights of this version.
struct VersionSpan {
  int64_t begin = 0;
  uint64_t version = 0;

  static void fields(auto& wire, auto& m) { wire(m.begin, m.version); }
};

// A completion is one sampled continuation of a prompt.
struct Completion {
  uint64_t sample_id = 0;                // counter over the whole run, which names the random stream
  std::vector<int32_t> tokens;           // [N], includes the EOS or stop token that ended it
  std::vector<float> logprobs;           // [N] policy log-probs: log softmax(logits / temperature)[token], untruncated
  std::vector<float> behavior_logprobs;  // [N] log-probs in the truncated distribution, or empty
  FinishReason finish_reason = FinishReason::kRunning;
  std::vector<VersionSpan> versions;  // ascending by begin

  static void fields(auto& wire, auto& m) {
    constexpr uint8_t kNumReasons = 5;
    wire(m.sample_id, m.tokens, m.logprobs, m.behavior_logprobs);
    wire.choice(m.finish_reason, kNumReasons);
    wire(m.versions);
  }
};

// A group is a prompt and its completions, in sample order.
struct Group {
  uint64_t group_id = 0;
  SharedPrompt prompt;
  std::vector<Completion> completions;
};

// The status tells how a completion ended, and does not depend on its grading.
enum class SampleStatus : uint8_t { kCompleted, kTruncated, kAborted };
const char* to_string(SampleStatus status);  // "completed", "truncated", "aborted"

// A piece is adjacent tokens of a completion that one speaker gave, in a sample of several turns.
struct SamplePiece {
  int64_t begin = 0;        // index in the completion of its first token; it ends where the next piece begins
  bool is_sampled = false;  // the engine sampled it in one call; false: the user's function inserted it
  std::string text;         // decoded with its special tokens, for dumps

  static void fields(auto& wire, auto& m) { wire(m.begin, m.is_sampled, m.text); }
};

// Counts what a generate function's endpoint (docs/AGENTS.md) was asked for a sample.
struct EndpointCounts {
  int64_t answers = 0;    // requests that the engine answered
  int64_t restarts = 0;   // answered requests whose history does not continue what was sampled
  int64_t untrained = 0;  // answers with other sampling parameters than the run's
  int64_t refused = 0;    // requests that were refused, also those without a valid token that came meanwhile

  static void fields(auto& wire, auto& m) { wire(m.answers, m.restarts, m.untrained, m.refused); }
};

// A sample is a completion that has a reward and is ready to train on.
struct Sample {
  uint64_t group_id = 0;
  uint64_t sample_id = 0;
  SharedPrompt prompt;                   // one object for all samples of a group
  std::vector<int32_t> completion;       // [N]
  std::vector<float> rollout_logprobs;   // [N] the engine's policy log-probs
  std::vector<float> behavior_logprobs;  // [N] or empty
  std::vector<float> ref_logprobs;       // [N] or empty: no reference
  std::vector<float> teacher_logprobs;   // [N] or empty: no teacher
  // [N] or empty: those of the weights before the first optimizer step on the rollout, for --old-logprobs proximal.
  std::vector<float> proximal_logprobs;
  std::vector<uint8_t> loss_mask;  // [N] 1 where the loss counts
  std::vector<double> advantages;  // [N] or [1] for a scalar per sample
  double reward = 0.0;             // value of the reward function
  double overlong_penalty = 0.0;   // penalty for its length, subtracted from the reward before advantages are computed
  double kl_penalty = 0.0;         // penalty for its distance from the reference (reward_shaping.h)
  bool grading_failed = false;     // the grader gave no reward; counted and shown
  bool has_reward = true;  // false: dropped because its grading failed; out of the loss and its group's statistics
  SampleStatus status = SampleStatus::kCompleted;
  bool remove = false;  // excluded from the loss, still counted in G
  // The completion is the answer of the data line, which nobody sampled: it has no rollout log-probs, no versions and
  // no reward, and of the loss the distillation term alone.
  bool is_given = false;
  std::vector<VersionSpan> versions;
  int64_t num_turns = 0;            // calls of the engine by --custom-generate-function-path; 0: sampled in one go
  std::string text;                 // text of the completion, for dumps
  std::vector<SamplePiece> pieces;  // completion in parts, in order; empty: sampled in one go
  // Indices in the completion at which further sequences begin, ascending. A further sequence is a context of its own:
  // it sees neither the prompt nor another sequence, its positions count from 0, and its first token is not trained on.
  // It has two tokens at least. Empty: the whole completion continues the prompt.
  std::vector<int64_t> sequence_begins;
  EndpointCounts endpoint;

  // The list has every field but the prompt, which each process has of its own, and the log-probs that the trainer
  // scores after a rollout: the proximal ones and the teacher's.
  static void fields(auto& wire, auto& m) {
    fields_of_one_sequence(wire, m);
    wire(m.sequence_begins, m.endpoint, m.is_given);
    if constexpr (std::remove_cvref_t<decltype(wire)>::kReads) m.check_sequences();
  }
  // Leaves out what only generate functions make, and whether the answer was given. Checkpoints of older versions have
  // the samples in flight in this form (groups/in_flight.cc).
  static void fields_of_one_sequence(auto& wire, auto& m) {
    constexpr uint8_t kNumStatuses = 3;
    wire(m.group_id, m.sample_id, m.completion, m.rollout_logprobs, m.behavior_logprobs, m.ref_logprobs, m.loss_mask);
    wire(m.advantages, m.reward, m.overlong_penalty, m.kl_penalty, m.grading_failed, m.has_reward);
    wire.choice(m.status, kNumStatuses);
    wire(m.remove, m.versions, m.num_turns, m.text, m.pieces);
    if constexpr (std::remove_cvref_t<decltype(wire)>::kReads) m.check_pieces();
  }
  // EnvironmentError: pieces are out of order, or begin behind the completion's end.
  void check_pieces() const;
  // EnvironmentError: sequences are out of order, or one of them is shorter than two tokens.
  void check_sequences() const;
  // Returns the number of tokens of the completion that continue the prompt.
  size_t num_after_prompt() const {
    return sequence_begins.empty() ? completion.size() : static_cast<size_t>(sequence_begins.front());
  }

  bool is_trained(size_t token) const { return !remove && loss_mask[token] != 0; }
  // Returns the index of the token from which on all were sampled with weights of `version`: the completion's length if
  // its last span is of others, or if nobody sampled it. A sample without spans counts as sampled with these.
  int64_t first_token_of(uint64_t version) const;
  double shaped_reward() const { return reward - overlong_penalty - kl_penalty; }
  int64_t num_tokens() const { return static_cast<int64_t>(prompt->tokens.size() + completion.size()); }
};

// Returns whether two adjacent samples are of one group, whose prompt the trainer's forward runs once. Another group
// may have the same prompt: where an epoch ends, the next one begins with any.
inline bool share_prompt(const Sample& a, const Sample& b) { return a.group_id == b.group_id && a.prompt == b.prompt; }

}  // namespace tandem::rl
