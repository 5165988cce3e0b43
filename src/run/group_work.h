// Groups on their way through one process: sampled, decoded to text, graded and, where groups are filtered, judged.
// Each goes to the graders as soon as it is sampled, while others decode.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/env.h"
#include "run/group_sampler.h"
#include "run/rollout_request.h"
#include "text/scorer.h"
#include "text/text_worker.h"

namespace tandem::run {

// A group that all is known of. What is written into samples for their grades is not yet.
struct GradedGroup {
  std::vector<rl::Sample> samples;
  std::vector<text::Grade> grades;  // one a sample, with secrets taken out of their texts; empty without graders
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
  // All borrowed; without graders (null) a group is done when it is sampled.
  GroupWork(const RolloutRequest& request, rollout::Engine& engine, text::TextWorker& text, text::Scorer* graders,
            Done done);

  // The group of that index in the rollout, which names its samples.
  void begin(size_t index, const PromptLine& line);
  // One forward, so that the live line moves and a signal is seen while long completions decode; then the grades and
  // verdicts that have come. Waits for some, a tenth of a second at most, where nothing else is to do.
  void advance();
  // The group is not wanted any more, and done() is not called for it.
  void abort(size_t index);
  // A stop: nothing is wanted any more.
  void abort_all();
  // What is not wanted any more is forgotten, wherever it is.
  void finish();

  int64_t num_under_way() const { return std::ssize(groups_); }
  int64_t num_in_sampler() const { return num_in_sampler_; }
  int64_t num_sampled() const { return num_sampled_; }  // groups, so far
  int64_t num_graded() const { return num_graded_; }    // samples, so far
  int64_t num_cut() const { return num_cut_; }          // aborted groups that had not ended
  // Of the processes of --custom-generate-function-path and of the graders, since this object was made.
  struct Losses {
    int64_t grader_restarts = 0, repeated_grades = 0;
    int64_t generator_restarts = 0, repeated_generations = 0;
  };
  Losses losses() const;

 private:
  struct UnderWay {
    const PromptLine* line = nullptr;
    std::vector<SampledGroup::Member> members;  // none before it is sampled
    std::vector<text::Grade> grades;
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
  std::vector<std::string> decode(const std::vector<std::vector<int32_t>>& tokens);

  uint64_t group_id(size_t index) const { return request_.first_sample_id / n_ + index; }
  size_t index_of_group(uint64_t id) const { return id - request_.first_sample_id / n_; }

  const RolloutRequest& request_;
  const uint64_t n_;
  text::TextWorker& text_;
  text::Scorer* const graders_;
  const Done done_;
  const base::Redaction redaction_;  // reasons quote what user code raised, and go into samples/ as columns do
  const std::unique_ptr<GroupSampler> sampler_;
  std::map<size_t, UnderWay> groups_;  // by index: those that are wanted and not done
  int64_t num_in_sampler_ = 0, num_sampled_ = 0;
  int64_t num_in_grading_ = 0, num_in_filter_ = 0;  // samples, groups
  int64_t num_graded_ = 0, num_cut_ = 0;
  const Losses losses_before_;
};

}  // namespace tandem::run
