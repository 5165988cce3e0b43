#include "sampling/drawing.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/message_text.h"
#include "groups/schedule.h"
#include "sampling/in_flight_drawing.h"

namespace tandem::sampling {

namespace {

// Each reason to drop groups is a metric of its own, so a rollout has at most that many.
constexpr size_t kMaxDropReasons = 32;

// Returns the group of a prompt whose completion is the answer of its line.
groups::Group given_group(const session::PromptLine& line, uint64_t sample_id) {
  TANDEM_CHECK(!line.answer.tokens.empty(), "the line's answer was not read", line.record.line);
  groups::Group group = {.line = &line, .members = std::vector<groups::Member>(1), .graded = {}};
  rl::Sample& sample = group.members.front().sample;
  sample.group_id = sample.sample_id = sample_id;
  sample.prompt = line.prompt;
  sample.completion = line.answer.tokens;
  sample.text = line.answer.text;
  sample.loss_mask.assign(sample.completion.size(), 1);
  sample.has_reward = false;
  sample.is_given = true;
  group.graded.grades.resize(1);
  group.graded.grades.front().sample_id = sample_id;
  return group;
}

// Draws whole groups, and takes the first of those that the filter keeps.
class WholeGroups final : public Drawing {
 public:
  WholeGroups(const RolloutRequest& request, groups::GroupPool& pool, groups::LengthHistory* lengths)
      : request_(request),
        pool_(pool),
        lengths_(lengths),
        schedule_(num_wanted(), num_at_once(), request.dynamic ? request.dynamic->limits : groups::SearchLimits()) {
    TANDEM_CHECK(request.takes_answer.empty() || (!request.dynamic && request.n_samples_per_prompt == 1 &&
                                                  request.takes_answer.size() == request.prompts.size()));
  }

  void draw() override {
    for (int64_t left = schedule_.num_to_draw(); left > 0; --left) {
      const size_t number = schedule_.num_drawn();
      const session::PromptLine* const line =
          request_.dynamic ? request_.dynamic->next_prompt() : request_.prompts[number];
      if (takes_answer(number)) {
        pool_.put_back(number, given_group(*line, request_.first_sample_id + number));
        schedule_.draw();
        schedule_.decide(number, /*is_kept=*/true);
        continue;
      }
      pool_.open(number, *line,
                 lengths_ == nullptr ? groups::GroupLength()
                                     : lengths_->expected(*line->prompt, request_.sampling.max_new_tokens));
      schedule_.draw();
    }
  }

  // No group is drawn after those that can no longer be taken.
  void decide(Coordinator& coordinator) override {
    for (const size_t group : pool_.take_done()) {
      if (schedule_.may_be_taken(group)) schedule_.decide(group, pool_.group(group).graded.verdict.is_kept);
    }
    if (!request_.dynamic) return;
    size_t begin = std::min(excess_begin_, schedule_.num_drawn());
    for (; begin > 0 && !schedule_.may_be_taken(begin - 1); --begin) coordinator.abort(begin - 1);
    if (begin < schedule_.num_drawn()) excess_begin_ = begin;
  }
  bool is_over() const override { return schedule_.is_over(); }

  TakenGroups take() override {
    TakenGroups taken = {.numbers = schedule_.taken(), .groups = {}};
    if (request_.dynamic) taken.filtered = filtered(taken.numbers.size());
    for (const size_t number : taken.numbers) {
      taken.groups.push_back(pool_.take(number));
      if (lengths_ != nullptr && !takes_answer(number)) lengths_->remember(taken.groups.back());
    }
    return taken;
  }

  void show_progress(const Coordinator& coordinator, report::Report& report) const override {
    const std::string tokens = base::with_commas(coordinator.numbers().counted.stats.generated_tokens);
    const int64_t num_groups =
        std::ssize(request_.prompts) - std::ranges::count(request_.takes_answer, true);  // that are sampled
    if (const std::optional<DynamicSampling>& dynamic = request_.dynamic) {
      const int64_t kept = std::min(schedule_.num_kept(), dynamic->num_groups);
      report.progress(request_.title, kept, dynamic->num_groups,
                      fmt::format("groups kept of {} sampled, {} tokens", pool_.num_sampled(), tokens));
    } else if (pool_.num_sampled() < num_groups) {
      report.progress(request_.title, pool_.num_sampled(), num_groups, fmt::format("prompts, {} tokens", tokens));
    } else {
      report.progress(request_.title, pool_.num_graded(), num_groups * request_.n_samples_per_prompt, "rewards");
    }
  }

 private:
  bool takes_answer(size_t number) const { return !request_.takes_answer.empty() && request_.takes_answer[number]; }
  int64_t num_wanted() const { return request_.dynamic ? request_.dynamic->num_groups : std::ssize(request_.prompts); }
  int64_t num_at_once() const {
    return request_.dynamic ? request_.dynamic->groups_at_once : std::ssize(request_.prompts);
  }
  // Returns the counts over the groups up to the last one taken, which depend only on the order of groups.
  FilteredGroups filtered(size_t num_taken) const {
    const uint64_t first_group_id = request_.first_sample_id / static_cast<uint64_t>(request_.n_samples_per_prompt);
    FilterCounts counts;
    for (size_t i = 0; i < schedule_.num_judged(); ++i) counts.add(first_group_id + i, pool_.group(i).graded);
    FilteredGroups result = counts.result(static_cast<int64_t>(num_taken), request_.dynamic->num_groups);
    result.num_excess = static_cast<int64_t>(schedule_.num_drawn() - schedule_.num_judged());
    result.num_aborted = pool_.num_cut();
    return result;
  }

  const RolloutRequest& request_;
  groups::GroupPool& pool_;
  groups::LengthHistory* const lengths_;
  groups::Schedule schedule_;
  size_t excess_begin_ = std::numeric_limits<size_t>::max();  // groups from here on have been ended
};

}  // namespace

std::unique_ptr<Drawing> make_drawing(const RolloutRequest& request, groups::GroupPool& pool,
                                      groups::LengthHistory* lengths) {
  if (request.in_flight && request.in_flight->log != nullptr) return std::make_unique<ReplayDrawing>(request, lengths);
  if (request.in_flight) return std::make_unique<PhaseDrawing>(request, lengths);
  return std::make_unique<WholeGroups>(request, pool, lengths);
}

void FilterCounts::add(uint64_t group_id, const groups::GroupGrades& group) {
  ++counts_.num_groups;
  reward_sum_ += group.reward_sum;
  num_rewarded_ += group.num_rewarded;
  if (!group.is_judged) return;
  ++counts_.num_judged;
  if (!group.verdict.failure.empty() && ++counts_.num_failures == 1)
    counts_.first_failure = fmt::format("group {}: {}", group_id, group.verdict.failure);
  if (group.verdict.is_kept) return;
  const bool is_listed = counts_.dropped.contains(group.verdict.reason) || counts_.dropped.size() < kMaxDropReasons;
  ++counts_.dropped[is_listed ? group.verdict.reason : "other"];
}

FilteredGroups FilterCounts::result(int64_t num_kept, int64_t num_wanted) const {
  FilteredGroups result = counts_;
  result.num_kept = num_kept;
  result.num_wanted = num_wanted;
  if (num_rewarded_ > 0) result.mean_reward = reward_sum_ / static_cast<double>(num_rewarded_);
  result.has_mean_reward = num_rewarded_ > 0;
  return result;
}

}  // namespace tandem::sampling
