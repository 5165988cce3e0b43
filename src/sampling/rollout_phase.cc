#include "sampling/rollout_phase.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/message_text.h"
#include "device/waits_for_samples.h"
#include "sampling/group_selection.h"
#include "sampling/group_shares.h"
#include "sampling/group_work.h"
#include "sampling/rank_message.h"

namespace tandem::sampling {

namespace {

using base::Clock;
using base::seconds_since;

// Of reasons to drop groups, in one rollout: each is a metric of its own.
constexpr size_t kMaxDropReasons = 32;

// Makes one rollout: draws groups, has them sampled, graded and judged, and takes them in the order in which they were
// drawn. Every rank draws all groups. Of the ranks that hold one copy of the model between them the first has them
// sampled, graded and judged.
class Sampling {
 public:
  Sampling(const RolloutRequest& request, GroupSource& source, reward::Scorer* graders, report::Report& report,
           mesh::Mesh& mesh, const RolloutPhase::IsStopped& is_stopped)
      : request_(request),
        source_(source),
        report_(report),
        mesh_(mesh),
        is_stopped_(is_stopped),
        work_(
            source.start(request, graders, [this](size_t index, GradedGroup group) { done(index, std::move(group)); })),
        selection_(request.dynamic ? request.dynamic->num_groups : std::ssize(request.prompts),
                   request.dynamic ? request.dynamic->groups_at_once : std::ssize(request.prompts),
                   request.dynamic ? request.dynamic->limits : SearchLimits()) {}

  // False when the run was asked to stop.
  bool sample_alone();
  // The same with the other ranks: the groups that may be drawn now are shared out, and each rank tells the others what
  // it has made of its own, until the rollout is full. `name` is that of this rollout among all of the run.
  bool sample_with_others(const std::string& name, KnownLengths& lengths);
  // What was sampled. UserError where a filter kept too few groups of it.
  Rollout rollout();

 private:
  struct DrawnGroup {
    const session::PromptLine* line = nullptr;
    GradedGroup graded = {};  // without samples once it is dropped
  };

  // Whether groups of this rank are its own: not where it does what the first of its replica does, or where others
  // sample for the conductor.
  bool follows() const { return source_.is_shared_by_ranks() && mesh_.tensor().rank() > 0; }
  bool has_share() const { return source_.is_shared_by_ranks() ? !follows() : mesh_.is_conductor(); }

  size_t draw();
  void done(size_t index, GradedGroup group);
  bool sample_share(GroupShares& shares, size_t first);
  bool take_messages(RankMessage mine, size_t first, KnownLengths& lengths);
  void decide(size_t index, GradedGroup group);
  void abort_excess();
  void check_that_enough_passed() const;
  void show_progress() const;
  FilteredGroups filtered() const;
  uint64_t first_group_id() const {
    return request_.first_sample_id / static_cast<uint64_t>(request_.n_samples_per_prompt);
  }

  const RolloutRequest& request_;
  GroupSource& source_;
  report::Report& report_;
  mesh::Mesh& mesh_;
  const RolloutPhase::IsStopped& is_stopped_;
  const std::unique_ptr<GroupWork> work_;
  GroupSelection selection_;
  std::vector<DrawnGroup> groups_;                            // in the order in which they were drawn
  size_t excess_begin_ = std::numeric_limits<size_t>::max();  // groups from here on have been ended
  // Of a rank among several.
  std::map<size_t, GradedGroup> mine_;  // that the others do not have yet
  int64_t num_begun_ = 0;
  // Of all ranks.
  rollout::EngineStats stats_;
  GroupWork::Losses losses_;
  double idle_s_ = 0.0, ranks_s_ = 0.0;  // seconds of all ranks: waiting for the last one, and all
};

// The groups that may be drawn now; returns the first.
size_t Sampling::draw() {
  const size_t first = groups_.size();
  for (int64_t left = selection_.num_to_draw(); left > 0; --left) {
    const size_t index = groups_.size();
    groups_.push_back({.line = request_.dynamic ? request_.dynamic->next_prompt() : request_.prompts[index]});
    selection_.draw();
  }
  return first;
}

void Sampling::done(size_t index, GradedGroup group) {
  if (mesh_.is_alone()) return decide(index, std::move(group));
  mine_.emplace(index, std::move(group));
}

bool Sampling::sample_alone() {
  while (true) {
    for (size_t index = draw(); index < groups_.size(); ++index) work_->begin(index, *groups_[index].line);
    if (is_stopped_()) {
      work_->abort_all();
      return false;
    }
    if (selection_.is_over()) break;
    show_progress();
    work_->advance();
  }
  work_->finish();
  stats_ = work_->stats();
  losses_ = work_->losses();
  return true;
}

bool Sampling::sample_with_others(const std::string& name, KnownLengths& lengths) {
  for (int64_t wave = 0; !selection_.is_over(); ++wave) {
    const size_t first = draw();
    std::vector<GroupLength> expected;
    for (size_t index = first; index < groups_.size(); ++index) {
      const rl::SharedPrompt& prompt = groups_[index].line->prompt;
      const auto known = lengths.find(prompt.get());
      expected.push_back({.completion = known == lengths.end() ? std::nullopt : std::optional(known->second),
                          .prompt = std::ssize(prompt->tokens)});
    }
    const bool is_shared = source_.is_shared_by_ranks();
    const mesh::Group replicas = mesh_.data();
    GroupShares shares(expected, is_shared ? replicas.rank() : 0, is_shared ? replicas.size() : 1, [&](int owner) {
      return mesh_.take_ticket(fmt::format("{}/wave {}/of replica {}", name, wave, owner));
    });
    const Clock::time_point begin = Clock::now();
    RankMessage mine;
    if (has_share()) {
      mine.is_stopped = !sample_share(shares, first);
      source_.end_share();
      mine.groups = std::exchange(mine_, {});
      mine.stats = work_->stats();
      mine.losses = work_->losses();
    } else if (follows()) {
      source_.follow();
    }
    mine.seconds = seconds_since(begin);
    if (!take_messages(std::move(mine), first, lengths)) return false;
  }
  return true;
}

bool Sampling::sample_share(GroupShares& shares, size_t first) {
  bool is_some_left = true;
  while (true) {
    // What the engine has no room for is better left to a rank that has.
    while (is_some_left && work_->num_under_way() < shares.most_at_once() &&
           (work_->num_under_way() == 0 || work_->has_room())) {
      const std::optional<size_t> next = shares.next();
      is_some_left = next.has_value();
      if (!next) break;
      work_->begin(first + *next, *groups_[first + *next].line);
      ++num_begun_;
    }
    if (is_stopped_()) {
      work_->abort_all();
      return false;
    }
    if (work_->num_under_way() == 0) return true;
    show_progress();
    work_->advance();
  }
}

// False where a rank was asked to stop.
bool Sampling::take_messages(RankMessage mine, size_t first, KnownLengths& lengths) {
  const auto prompt_of = [&](size_t index) {
    TANDEM_ENV_CHECK(index >= first && index < groups_.size(), "another rank sampled group", index,
                     "of a rollout, which nobody was asked for: start all ranks with the same build and flags");
    return groups_[index].line->prompt;
  };
  std::vector<RankMessage> messages;
  const std::vector<std::string> texts = [&] {
    const device::WaitsForSamples as_long_as_it_takes(mesh_.host());
    return device::all_gather_text(mesh_.host(), to_bytes(mine, prompt_of));
  }();
  for (int rank = 0; rank < mesh_.size(); ++rank) {
    const bool is_mine = rank == mesh_.rank();
    messages.push_back(is_mine ? std::move(mine) : rank_message(texts[static_cast<size_t>(rank)], prompt_of));
  }
  if (std::ranges::any_of(messages, &RankMessage::is_stopped)) return false;
  stats_ = {};
  losses_ = {};
  const double slowest = std::ranges::max(messages, {}, &RankMessage::seconds).seconds;
  std::map<size_t, GradedGroup> groups;
  for (RankMessage& message : messages) {
    add(message.stats, stats_);
    add(message.losses, losses_);
    idle_s_ += slowest - message.seconds;
    ranks_s_ += slowest;
    groups.merge(message.groups);
    TANDEM_ENV_CHECK(message.groups.empty(),
                     "two ranks were given one group: somebody else has written into the ranks' store; look who is on "
                     "the network between the machines");
  }
  // Ranks take groups by numbers from their store.
  TANDEM_ENV_CHECK(groups.size() == groups_.size() - first, groups_.size() - first - groups.size(), "of",
                   groups_.size() - first,
                   "groups were taken by no rank: somebody else has written into the ranks' store; look who is on the "
                   "network between the machines");
  for (auto& [index, group] : groups) {
    lengths[groups_[index].line->prompt.get()] = group.longest;
    if (selection_.may_be_taken(index)) decide(index, std::move(group));
  }
  return true;
}

void Sampling::decide(size_t index, GradedGroup group) {
  const bool is_kept = group.verdict.is_kept;
  groups_[index].graded = std::move(group);
  selection_.decide(index, is_kept);
  if (request_.dynamic && mesh_.is_alone()) abort_excess();
}

// Groups that can no longer be taken need not be finished. None is drawn behind them.
void Sampling::abort_excess() {
  size_t begin = std::min(excess_begin_, groups_.size());
  for (; begin > 0 && !selection_.may_be_taken(begin - 1); --begin) work_->abort(begin - 1);
  if (begin < groups_.size()) excess_begin_ = begin;
}

void Sampling::check_that_enough_passed() const {
  if (!request_.dynamic || selection_.is_full()) return;
  const DynamicSampling& dynamic = *request_.dynamic;
  const FilteredGroups found = filtered();
  if (found.num_kept > 0 && !dynamic.stops_when_too_few) return;
  std::vector<std::pair<int64_t, std::string>> sorted;
  for (const auto& [reason, count] : found.dropped) sorted.emplace_back(count, reason);
  std::ranges::sort(sorted, std::greater());
  std::string shown;
  for (size_t i = 0; i < std::min<size_t>(sorted.size(), 3); ++i)
    shown += fmt::format("{}{} {}", i == 0 ? "" : ", ", sorted[i].first, sorted[i].second);
  const bool is_budget = found.num_groups >= dynamic.limits.max_groups;
  const std::string limit = is_budget ? fmt::format("--max-sampled-groups {}", dynamic.limits.max_groups)
                                      : fmt::format("{} dropped in a row, at least a whole pass over the data",
                                                    dynamic.limits.max_dropped_in_a_row);
  throw UserError(fmt::format(
      "{}: --dynamic-sampling-filter-path {} kept {} of the {} groups that a rollout needs, and dropped {} ({}), until "
      "a limit ended the search ({}): give prompts that are sometimes answered right, raise --n-samples-per-prompt or "
      "--rollout-temperature, {}",
      request_.title, dynamic.filter_name, found.num_kept == 0 ? "none" : std::to_string(found.num_kept),
      dynamic.num_groups, found.num_dropped(), shown, limit,
      found.num_kept > 0 ? "or give --on-too-few-groups train to train on those"
      : is_budget        ? "raise --max-sampled-groups, or leave the filter out"
                         : "or leave the filter out"));
}

void Sampling::show_progress() const {
  const std::string tokens = base::with_commas(work_->stats().generated_tokens);
  if (const std::optional<DynamicSampling>& dynamic = request_.dynamic) {
    const int64_t kept = std::min(selection_.num_kept(), dynamic->num_groups);
    report_.progress(request_.title, kept, dynamic->num_groups,
                     fmt::format("groups kept of {} sampled, {} tokens", work_->num_sampled(), tokens));
  } else if (!mesh_.is_alone()) {
    report_.progress(request_.title, work_->num_sampled(), num_begun_,
                     fmt::format("prompts of rank {}, {} tokens", mesh_.rank(), tokens));
  } else if (work_->num_in_sampler() > 0) {
    report_.progress(request_.title, work_->num_sampled(), std::ssize(request_.prompts),
                     fmt::format("prompts, {} tokens", tokens));
  } else {
    report_.progress(request_.title, work_->num_graded(), std::ssize(request_.prompts) * request_.n_samples_per_prompt,
                     "rewards");
  }
}

// Of the groups up to the last one taken, which the order alone decides.
FilteredGroups Sampling::filtered() const {
  FilteredGroups result;
  result.num_kept = std::ssize(selection_.taken());
  result.num_wanted = request_.dynamic->num_groups;
  double reward_sum = 0.0;
  int64_t num_rewarded = 0;
  for (size_t i = 0; i < selection_.num_judged(); ++i) {
    const GradedGroup& group = groups_[i].graded;
    ++result.num_groups;
    reward_sum += group.reward_sum;
    num_rewarded += group.num_rewarded;
    if (!group.is_judged) continue;
    ++result.num_judged;
    if (!group.verdict.failure.empty() && ++result.num_failures == 1)
      result.first_failure = fmt::format("group {}: {}", first_group_id() + i, group.verdict.failure);
    if (group.verdict.is_kept) continue;
    const bool is_listed = result.dropped.contains(group.verdict.reason) || result.dropped.size() < kMaxDropReasons;
    ++result.dropped[is_listed ? group.verdict.reason : "other"];
  }
  if (num_rewarded > 0) result.mean_reward = reward_sum / static_cast<double>(num_rewarded);
  result.has_mean_reward = num_rewarded > 0;
  result.num_excess = static_cast<int64_t>(groups_.size() - selection_.num_judged());
  result.num_aborted = work_->num_cut();
  return result;
}

Rollout Sampling::rollout() {
  check_that_enough_passed();
  Rollout rollout;
  for (const size_t index : selection_.taken()) {
    std::ranges::move(groups_[index].graded.samples, std::back_inserter(rollout.samples));
    std::ranges::move(groups_[index].graded.grades, std::back_inserter(rollout.grades));
  }
  rollout.stats = stats_;
  rollout.is_sampled = true;
  rollout.num_ranks = mesh_.size();
  if (ranks_s_ > 0) rollout.idle_share = idle_s_ / ranks_s_;
  if (const GroupWork::Workers workers = work_->workers(); workers.count > 0) {
    rollout.num_workers = workers.count;
    rollout.num_ranks = workers.count * mesh_.tensor().size();  // an engine is spread as the trainers are
    rollout.idle_share = workers.idle_share;
    rollout.num_lost_workers = workers.num_lost;
  }
  rollout.num_generate_restarts = losses_.generator_restarts;
  rollout.num_generate_repeated = losses_.repeated_generations;
  if (request_.dynamic) rollout.filtered = filtered();
  if (!request_.is_graded) return rollout;
  put_grades(request_.failure_reward, rollout);
  rollout.num_repeated = losses_.repeated_grades;
  rollout.num_restarts = losses_.grader_restarts;
  return rollout;
}

}  // namespace

std::optional<Rollout> RolloutPhase::run(const RolloutRequest& request, reward::Scorer* graders,
                                         report::Report& report) {
  const Clock::time_point begin = Clock::now();
  Sampling sampling(request, source_, graders, report, mesh_, is_stopped_);
  const std::string name = fmt::format("rollout {}", num_begun_++);
  if (mesh_.is_alone() ? !sampling.sample_alone() : !sampling.sample_with_others(name, lengths_)) return std::nullopt;
  Rollout rollout = sampling.rollout();
  warn_of_names(rollout, request.title);
  rollout.seconds = seconds_since(begin);
  if (mesh_.is_alone()) return rollout;
  const double seconds = rollout.seconds;
  for (const std::vector<double>& of_rank : device::all_gather_numbers(mesh_.host(), {&seconds, 1}))
    rollout.seconds = std::max(rollout.seconds, of_rank.front());
  return rollout;
}

void RolloutPhase::warn_of_names(const Rollout& rollout, const std::string& title) {
  if (!speaks() || rollout.num_unnamed == 0 || std::exchange(names_are_said_, true)) return;
  base::log_warning(
      "{}: the reward gave numbers or columns under more than {} names; the first {} are kept and {} "
      "values are left out (fault/reward_names): name a quantity alike in every sample",
      title, kMaxRewardNames, kMaxRewardNames, rollout.num_unnamed);
}

}  // namespace tandem::sampling
