// Makes samples by the user's function, in several turns (--custom-generate-function-path, docs/SAMPLING.md). The
// function runs in worker processes; its calls for completions go through the engine here. A sample is a value: its
// draws depend on the seed, its id and the tokens that each call begins with, not on when a call comes. What the
// function returns is checked against what the engine sampled: a token that is trained on was sampled after exactly the
// tokens before it, and its log-probs are the engine's.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "reward/generators.h"
#include "sampling/group_sampler.h"

namespace tandem::sampling {

// Returns a run's sampling parameters in the words of `sampling_params`.
base::Json sampling_json(const rl::SamplingParams& sampling, bool skip_special_tokens);
// Returns `base` with the parameters that a call asks for in place of its own. Throws UserError, one line for the
// function, for values that cannot be.
rl::SamplingParams sampling_of_call(const rl::SamplingParams& base, const base::Json& asked);

// Hashes the first n tokens of a sequence, for every n.
class PrefixHash {
 public:
  void add(int32_t token);
  uint64_t value() const { return value_; }
  static uint64_t of(const std::vector<int32_t>& tokens);

 private:
  uint64_t value_ = 0;
};

// Records a call to the engine, and the completion that it sampled.
struct TurnRecord {
  uint64_t prefix = 0;     // PrefixHash of the tokens that the call began with
  size_t num_prefix = 0;   // number of those tokens
  bool is_policy = false;  // sampled as the run samples, so that it can be trained on
  rl::Completion completion;
};

// Returns the sample that a function made, from what it returned and what the engine sampled for it. `max_tokens`
// bounds prompt and response together; a longer response is cut. `vocab` is the model's, which may be larger than its
// tokenizer's; every token id must be below it, masked or not. Throws UserError, one line, for a sample that cannot be
// trained on.
rl::Sample sample_of_turns(const reward::Generated& made, const rl::SharedPrompt& prompt, uint64_t group_id,
                           const std::vector<TurnRecord>& turns, int64_t max_tokens, int64_t vocab,
                           bool has_behavior_logprobs);

class TurnSampler final : public GroupSampler {
 public:
  struct Settings {
    std::string function;  // FILE.py:function, for messages
    bool skip_special_tokens = false;
    bool is_evaluation = false;
    std::string metadata_key;
    int64_t context_tokens = 0;  // the model's
    int64_t vocab = 0;           // the model's
  };
  // The engine and the processes are borrowed; the engine does nothing else meanwhile.
  TurnSampler(rollout::Engine& engine, reward::Generators& generators, Settings settings)
      : engine_(engine), generators_(generators), settings_(std::move(settings)) {}
  ~TurnSampler() override;

  void add(uint64_t key, rollout::GroupRequest request, const data::PromptRecord& record) override;
  void step() override;
  bool engine_works() const override { return engine_.num_unfinished_groups() > 0; }
  std::vector<int> descriptors() const override { return {generators_.descriptor()}; }
  std::vector<groups::SampledLoan> take_finished() override;
  void abort(uint64_t key) override;
  void abort_all() override;
  void pause_all() override;

 private:
  struct Group {  // the part of a group that is one loan
    uint64_t group_id = 0;
    rl::SharedPrompt prompt;
    const data::PromptRecord* record = nullptr;
    rl::SamplingParams sampling;
    int64_t max_tokens = 0;  // bound on prompt and response
    std::vector<uint64_t> sample_ids;
    std::map<uint64_t, groups::Member> members;  // finished members, by sample id
  };
  struct Session {
    uint64_t key = 0;                       // key of its loan
    uint64_t attempt = 0;                   // attempt of the function that makes these calls
    std::map<uint64_t, int64_t> num_begun;  // calls begun with each prefix, by PrefixHash
    std::vector<TurnRecord> turns;          // answered calls
    std::set<uint64_t> in_engine;           // calls not answered yet, by the engine's number
    int64_t num_calls = 0;
  };
  struct Call {
    uint64_t sample_id = 0, attempt = 0, call = 0;
    TurnRecord turn;
  };

  void take_events();
  void ask_engine(reward::EngineCall call);
  void take_answers();
  void finish(reward::Generated made);
  groups::Member member_of(const reward::Generated& made, Session& session, const Group& group) const;
  static groups::Member failed_member(const Group& group, uint64_t sample_id);
  // Ends the session's calls in the engine.
  void end_calls(Session& session);
  void end_session(uint64_t sample_id);

  rollout::Engine& engine_;
  reward::Generators& generators_;
  const Settings settings_;
  std::map<uint64_t, Group> groups_;      // groups under way, by their loans' keys
  std::map<uint64_t, Session> sessions_;  // by sample id
  std::map<uint64_t, Call> calls_;        // calls in the engine, by the engine's number
  uint64_t last_call_ = 0;
  std::vector<groups::SampledLoan> finished_;
};

}  // namespace tandem::sampling
