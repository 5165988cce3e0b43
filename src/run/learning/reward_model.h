// The reward model of --rm-model: it scores the conversations of a whole rollout, on the run's device and in its train
// phase. A conversation is a prompt and its completion, rendered by the reward model's own chat template and encoded by
// its own tokenizer, as TRL does it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/data_options.h"
#include "config/reward_options.h"
#include "model/reward_model.h"
#include "rl/sample.h"
#include "run/learning/scoring_model.h"
#include "sampling/rollout.h"
#include "session/model_session.h"
#include "session/prompt_set.h"
#include "session/run_memory.h"
#include "text/text_worker.h"
#include "trainer/ranks.h"
#include "trainer/trainer_config.h"

namespace tandem::run {

// Throws UserError for the first thing that is wrong with --rm-model, before a weight is read: files that lack a
// tensor, a head of several labels, a tokenizer that has more ids than the model or no chat template where
// `is_rendered` says that prompts need one. Does nothing without --rm-model.
void check_reward_model(const config::RewardOptions& options, const session::ModelSession& session, bool is_rendered);

class RewardModel {
 public:
  struct Settings {
    bool is_offloaded = false;
    bool sequence_parallel = false;  // value of model::TensorShard's
    int64_t max_tokens = 0;          // of a conversation: plan::reward_model_tokens()
    trainer::BatchConfig batch;
  };
  // Loads the weights, in the session's dtype, and starts the tokenizer. Borrows the session. `options` name a reward
  // model; by `data` a text is the whole prompt, or a user's message. The ledger of `memory` records what lasts;
  // without one, in a process that plans no memory, the weights stay on the device.
  RewardModel(const config::RewardOptions& options, const config::DataOptions& data, session::ModelSession& session,
              const Settings& settings, session::RunMemory* memory);

  // Scores a rollout of these prompts and puts the scores into it (sampling::put_model_rewards), as `options` weigh
  // them. A conversation that is too long has no score: it fails with class too_long. All ranks call it with the same
  // rollout.
  void score(const config::RewardOptions& options, const session::PromptSet& prompts, sampling::Rollout& rollout,
             const trainer::Ranks& ranks);

 private:
  // Returns the tokens of the conversations of those samples, in their order.
  std::vector<std::vector<int32_t>> conversations(const session::PromptSet& prompts,
                                                  const std::vector<const rl::Sample*>& samples);

  session::ModelSession& session_;
  const std::string directory_;
  const config::DataOptions data_;
  const Settings settings_;
  text::TextWorker text_;
  model::RewardHead head_;
  std::optional<weights::WeightStore> weights_;  // unset: the model has its own
  std::optional<ScoringModel> model_;
};

}  // namespace tandem::run
