// Groups on their way: sampled, decoded to text, graded and, where groups are filtered, judged. Where that happens is
// what kinds of it differ in: in this process (local_group_work) or in those that only sample (remote_group_work).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/check.h"
#include "reward/graders.h"
#include "reward/scorer.h"
#include "rollout/engine.h"
#include "sampling/rollout_request.h"

namespace tandem::sampling {

// A group that all is known of. What is written into samples for their grades is not yet.
struct GradedGroup {
  std::vector<rl::Sample> samples;
  std::vector<reward::Grade> grades;  // one a sample, with secrets taken out of their texts; empty without graders
  GroupVerdict verdict;
  bool is_judged = false;   // by the filter
  double reward_sum = 0.0;  // of its samples with a reward, where there is a filter
  int64_t num_rewarded = 0;
  int64_t longest = 0;  // tokens of its longest completion
};

class GroupWork {
 public:
  // Told of each group in the moment when it is graded (judged); it may abort others.
  using Done = std::function<void(size_t index, GradedGroup group)>;
  virtual ~GroupWork() = default;

  // The group of that index in the rollout, which names its samples. The line is borrowed. Indices are drawn in order.
  virtual void begin(size_t index, const session::PromptLine& line) = 0;
  // One forward, so that the live line moves and a signal is seen while long completions decode; then the grades and
  // verdicts that have come. Waits for some, a tenth of a second at most, where nothing else is to do.
  virtual void advance() = 0;
  // The group is not wanted any more, and done() is not called for it.
  virtual void abort(size_t index) = 0;
  // A stop: nothing is wanted any more.
  virtual void abort_all() = 0;
  // What is not wanted any more is forgotten, wherever it is.
  virtual void finish() = 0;
  // Whether a group that begins now is soon sampled.
  virtual bool has_room() const = 0;

  virtual int64_t num_under_way() const = 0;
  virtual int64_t num_in_sampler() const = 0;
  virtual int64_t num_sampled() const = 0;  // groups, so far
  virtual int64_t num_graded() const = 0;   // samples, so far
  virtual int64_t num_cut() const = 0;      // aborted groups that had not ended
  virtual rollout::EngineStats stats() const = 0;
  // Of the processes of --custom-generate-function-path and of the graders, since this object was made.
  struct Losses {
    int64_t grader_restarts = 0, repeated_grades = 0;
    int64_t generator_restarts = 0, repeated_generations = 0;
  };
  virtual Losses losses() const = 0;
  // Engines of processes that do nothing but this work: how many there are, the share of their time in which they had
  // no group while others had, and how many were lost.
  struct Workers {
    int64_t count = 0;
    double idle_share = 0.0;
    int64_t num_lost = 0;
  };
  virtual Workers workers() const { return {}; }
};

// Of a rank that waits for what others sample for all of them.
class NoGroupWork final : public GroupWork {
 public:
  void begin(size_t /*index*/, const session::PromptLine& /*line*/) override {
    TANDEM_CHECK(false, "this rank samples nothing");
  }
  void advance() override {}
  void abort(size_t /*index*/) override {}
  void abort_all() override {}
  void finish() override {}
  bool has_room() const override { return false; }
  int64_t num_under_way() const override { return 0; }
  int64_t num_in_sampler() const override { return 0; }
  int64_t num_sampled() const override { return 0; }
  int64_t num_graded() const override { return 0; }
  int64_t num_cut() const override { return 0; }
  rollout::EngineStats stats() const override { return {}; }
  Losses losses() const override { return {}; }
};

// Who does the work: this process's engine, or others.
class GroupSource {
 public:
  virtual ~GroupSource() = default;

  // Begins the work of a rollout, one at a time. The request is borrowed; without graders (null) a group is done when
  // it is sampled.
  virtual std::unique_ptr<GroupWork> start(const RolloutRequest& request, reward::Scorer* graders,
                                           GroupWork::Done done) = 0;
  // Whether the ranks of a run share the groups, each with a source of its own; else the conductor's has all of them.
  virtual bool is_shared_by_ranks() const = 0;
  // Of the ranks that hold one copy of the model between them the first one's groups are sampled, and it says when its
  // share of them has ended; the others follow() until then.
  virtual void end_share() {}
  virtual void follow() {}
};

}  // namespace tandem::sampling
