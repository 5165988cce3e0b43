// Where a rollout's groups of completions come from: the engine alone, or turns of the user's function with it. A group
// goes in as a prompt and the ids of its samples, and comes out as samples that have no reward yet.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "rl/prompts.h"
#include "rl/sample.h"
#include "rollout/engine.h"

namespace tandem::sampling {

struct SampledGroup {
  struct Member {
    rl::Sample sample;                             // without its text
    std::string failure;                           // why it could not be made, and must not be graded; empty: it could
    bool machine_failed = false;                   // the failure is the machine's
    base::Json metadata;                           // for the reward, in place of the line's; null: that
    base::Json attributes = base::Json::object();  // that the function wrote into the sample, for the reward
  };
  uint64_t group_id = 0;
  std::vector<Member> members;
  bool is_cut = false;  // it was ended before all of it was there
};

class GroupSampler {
 public:
  virtual ~GroupSampler() = default;

  // `record` stays until the group has come out. Its id is that of no other under way.
  virtual void add(rollout::GroupRequest request, const rl::PromptRecord& record) = 0;
  // Some work, or, where others must work first, a short wait. While a group is under way.
  virtual void step() = 0;
  virtual std::vector<SampledGroup> take_finished() = 0;
  virtual void abort(uint64_t group_id) = 0;  // it comes out as far as it is, cut
  virtual void abort_all() = 0;
};

// One completion after the other, each in one go.
class EngineSampler final : public GroupSampler {
 public:
  explicit EngineSampler(rollout::Engine& engine) : engine_(engine) {}  // borrowed

  void add(rollout::GroupRequest request, const rl::PromptRecord& record) override;
  void step() override;
  std::vector<SampledGroup> take_finished() override;
  void abort(uint64_t group_id) override { engine_.abort(group_id); }
  void abort_all() override { engine_.abort_all(); }

 private:
  rollout::Engine& engine_;
  int64_t num_added_ = 0;  // and not taken
};

rl::SampleStatus status_of(rl::FinishReason reason);

}  // namespace tandem::sampling
