// Groups on their way through this process: each goes to the graders as soon as it is sampled, while others decode.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/env.h"
#include "mesh/mesh.h"
#include "reward/scorer.h"
#include "rollout/replica.h"
#include "sampling/group_sampler.h"
#include "sampling/group_work.h"
#include "sampling/rollout_request.h"
#include "text/text_worker.h"

namespace tandem::sampling {

class LocalGroupWork final : public GroupWork {
 public:
  // All borrowed; without graders (null) a group is done when it is sampled. The engine's numbers begin anew.
  LocalGroupWork(const RolloutRequest& request, rollout::Engine& engine, text::TextWorker& text,
                 reward::Scorer* graders, Done done);

  void begin(size_t index, const session::PromptLine& line) override;
  void advance() override;
  void abort(size_t index) override;
  void abort_all() override;
  void finish() override;
  // What the engine has no room for is better left to a rank that has.
  bool has_room() const override { return engine_.has_room(); }

  int64_t num_under_way() const override { return std::ssize(groups_); }
  int64_t num_in_sampler() const override { return num_in_sampler_; }
  int64_t num_sampled() const override { return num_sampled_; }
  int64_t num_graded() const override { return num_graded_; }
  int64_t num_cut() const override { return num_cut_; }
  rollout::EngineStats stats() const override { return engine_.stats(); }
  Losses losses() const override;

 private:
  struct UnderWay {
    const session::PromptLine* line = nullptr;
    std::vector<SampledGroup::Member> members;  // none before it is sampled
    std::vector<reward::Grade> grades;
    size_t num_graded = 0;
    GradedGroup result;
  };

  Losses total_losses() const;
  void take_sampled();
  void take_sampled(SampledGroup group);
  void take_graded();
  void judge(size_t index);
  void take_judged();
  void hand_over(size_t index);
  // Gives the pieces of samples of several turns their texts.
  void decode_pieces(std::vector<SampledGroup::Member>& members);
  std::vector<std::string> decode(const std::vector<std::vector<int32_t>>& tokens, bool skip_special_tokens);

  uint64_t group_id(size_t index) const { return request_.first_sample_id / n_ + index; }
  size_t index_of_group(uint64_t id) const { return id - request_.first_sample_id / n_; }

  const RolloutRequest& request_;
  const uint64_t n_;
  rollout::Engine& engine_;
  text::TextWorker& text_;
  reward::Scorer* const graders_;
  const Done done_;
  const base::Redaction redaction_;  // reasons quote what user code raised, and go into samples/ as columns do
  const std::unique_ptr<GroupSampler> sampler_;
  std::map<size_t, UnderWay> groups_;  // by index: those that are wanted and not done
  int64_t num_in_sampler_ = 0, num_sampled_ = 0;
  int64_t num_in_grading_ = 0, num_in_filter_ = 0;  // samples, groups
  int64_t num_graded_ = 0, num_cut_ = 0;
  const Losses losses_before_;
};

// This process's engine, text worker and graders.
class EngineSource final : public GroupSource {
 public:
  // All borrowed.
  EngineSource(rollout::Engine& engine, text::TextWorker& text, mesh::Mesh& mesh);

  std::unique_ptr<GroupWork> start(const RolloutRequest& request, reward::Scorer* graders,
                                   GroupWork::Done done) override;
  bool is_shared_by_ranks() const override { return true; }
  void end_share() override;
  void follow() override;

 private:
  rollout::Engine& engine_;
  text::TextWorker& text_;
  mesh::Mesh& mesh_;
  const std::unique_ptr<rollout::LeadingEngine> leading_;  // or null: this rank leads no others
};

}  // namespace tandem::sampling
