// Makes the samples of a loan: by the engine alone, or by turns of the user's function with it. A loan goes in as a
// prompt and the ids of its samples, and comes out as samples that have no text and no reward yet.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "data/prompts.h"
#include "groups/group.h"
#include "rollout/engine.h"

namespace tandem::sampling {

class GroupSampler {
 public:
  virtual ~GroupSampler() = default;

  // Adds a loan. `key` is the loan's; the request names its group. `record` must stay valid until the loan has come
  // out.
  virtual void add(uint64_t key, rollout::GroupRequest request, const data::PromptRecord& record) = 0;
  // Works a little, without waiting for anybody but engines that share steps. Call it while a loan is in flight, and
  // always where the engine shares steps.
  virtual void step() = 0;
  // Return whether the engine has something to do, and the descriptors that are readable once others have done theirs.
  virtual bool engine_works() const = 0;
  virtual std::vector<int> descriptors() const { return {}; }
  virtual std::vector<groups::SampledLoan> take_finished() = 0;
  // Drops a loan: nothing of it comes out any more.
  virtual void abort(uint64_t key) = 0;
  virtual void abort_all() = 0;
  // Ends what the engine does: the loans in flight come out as they are, with samples that are paused.
  virtual void pause_all() = 0;
};

// Makes one completion for each sample, in one go.
class EngineSampler final : public GroupSampler {
 public:
  explicit EngineSampler(rollout::Engine& engine) : engine_(engine) {}  // borrowed

  void add(uint64_t key, rollout::GroupRequest request, const data::PromptRecord& record) override;
  void step() override;
  bool engine_works() const override { return engine_.num_unfinished_groups() > 0; }
  std::vector<groups::SampledLoan> take_finished() override;
  void abort(uint64_t key) override;
  void abort_all() override;
  void pause_all() override { engine_.abort_all(); }

 private:
  rollout::Engine& engine_;
  std::map<uint64_t, uint64_t> group_ids_;  // groups of the loans in flight, by key
  int64_t num_added_ = 0;                   // loans that the engine has not given back
};

rl::SampleStatus status_of(rl::FinishReason reason);

}  // namespace tandem::sampling
