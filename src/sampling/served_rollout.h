// One rollout as a process that only samples sees it: the groups that it was given, on their way.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "base/clock.h"
#include "config/train_config.h"
#include "rollout/engine.h"
#include "sampling/local_group_work.h"
#include "sampling/rank_message.h"
#include "sampling/rewards.h"
#include "sampling/worker_messages.h"
#include "text/text_worker.h"

namespace tandem::sampling {

// What a worker samples and grades with.
struct WorkerParts {
  const config::TrainConfig& config;
  const Evaluation& evaluation;
  int64_t context_tokens = 0;  // the model's
  int64_t vocab = 0;           // the model's: a token id is below it
  rollout::Engine& engine;
  text::TextWorker& text;
  Rewards& rewards;
};

class ServedRollout {
 public:
  // UserError where the run asks for what these parts do not have.
  ServedRollout(const Open& open, const WorkerParts& parts);
  // The rollout is over: what is under way is dropped.
  void close();

  uint64_t number() const { return open_.rollout; }
  void add(Task task);
  void abort(uint64_t index);
  // Groups to ask for now.
  int64_t num_to_pull();
  bool has_work() const { return work_->num_under_way() > 0; }
  // Works a little; returns what is to be said of groups that are done.
  std::optional<Done> advance();

 private:
  RolloutRequest request() const;
  reward::Scorer* scorer() const;
  rl::SharedPrompt prompt_of(size_t index) const { return lines_.at(index).prompt; }

  const Open open_;
  const WorkerParts parts_;
  const RolloutRequest request_;
  std::map<size_t, session::PromptLine> lines_;
  RankMessage done_;
  int64_t num_asked_ = 0;  // groups that were asked for and have not come
  std::unique_ptr<GroupWork> work_;
};

}  // namespace tandem::sampling
