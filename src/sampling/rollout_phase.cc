#include "sampling/rollout_phase.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/message_text.h"
#include "device/waits_for_samples.h"
#include "memory/arena_allocator.h"
#include "sampling/coordinator.h"
#include "sampling/group_pool.h"
#include "sampling/pool_client.h"
#include "sampling/rollout_message.h"
#include "sampling/sampler.h"
#include "sampling/schedule.h"

namespace tandem::sampling {

namespace {

using base::Clock;
using base::seconds_since;

// Each reason to drop groups is a metric of its own, so a rollout has at most that many.
constexpr size_t kMaxDropReasons = 32;
constexpr double kPollInterval = 0.05;  // seconds between two looks at the stop signal

int64_t num_wanted(const RolloutRequest& request) {
  return request.dynamic ? request.dynamic->num_groups : std::ssize(request.prompts);
}
int64_t num_at_once(const RolloutRequest& request) {
  return request.dynamic ? request.dynamic->groups_at_once : std::ssize(request.prompts);
}

void check_that_enough_passed(const RolloutRequest& request, const Rollout& rollout) {
  if (!request.dynamic || rollout.filtered->num_missing() == 0) return;
  const DynamicSampling& dynamic = *request.dynamic;
  const FilteredGroups& found = *rollout.filtered;
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
      request.title, dynamic.filter_name, found.num_kept == 0 ? "none" : std::to_string(found.num_kept),
      dynamic.num_groups, found.num_dropped(), shown, limit,
      found.num_kept > 0 ? "or give --on-too-few-groups train to train on those"
      : is_budget        ? "raise --max-sampled-groups, or leave the filter out"
                         : "or leave the filter out"));
}

// Draws the groups of one rollout into a pool, and takes those that the schedule keeps.
class Drawing {
 public:
  using Lengths = std::unordered_map<const rl::Prompt*, int64_t>;
  Drawing(const RolloutRequest& request, GroupPool& pool, const Lengths* lengths)
      : request_(request),
        pool_(pool),
        lengths_(lengths),
        schedule_(num_wanted(request), num_at_once(request),
                  request.dynamic ? request.dynamic->limits : SearchLimits()) {}

  // Draws the groups that may be drawn now.
  void draw() {
    for (int64_t left = schedule_.num_to_draw(); left > 0; --left) {
      const session::PromptLine* const line =
          request_.dynamic ? request_.dynamic->next_prompt() : request_.prompts[pool_.num_opened()];
      pool_.open(*line, length_of(*line->prompt));
      schedule_.draw();
    }
  }
  // Decides about groups that are done, and ends those that can no longer be taken; no group is drawn after these.
  void decide(Coordinator& coordinator) {
    for (const size_t group : pool_.take_done()) {
      if (schedule_.may_be_taken(group)) schedule_.decide(group, pool_.group(group).graded.verdict.is_kept);
    }
    if (!request_.dynamic) return;
    size_t begin = std::min(excess_begin_, pool_.num_opened());
    for (; begin > 0 && !schedule_.may_be_taken(begin - 1); --begin) coordinator.abort(begin - 1);
    if (begin < pool_.num_opened()) excess_begin_ = begin;
  }
  bool is_over() const { return schedule_.is_over(); }
  std::vector<size_t> taken() const { return schedule_.taken(); }

  void show_progress(const Coordinator& coordinator, report::Report& report) const;
  FilteredGroups filtered() const;

 private:
  const RolloutRequest& request_;
  GroupPool& pool_;
  const Lengths* const lengths_;  // null: the order of groups gains nothing
  const int64_t average_ = lengths_ == nullptr ? 0 : average_of(*lengths_, request_.sampling.max_new_tokens);
  Schedule schedule_;
  size_t excess_begin_ = std::numeric_limits<size_t>::max();  // groups from here on have been ended

  GroupLength length_of(const rl::Prompt& prompt) const {
    if (lengths_ == nullptr) return {};
    const auto known = lengths_->find(&prompt);
    return {.completion = known == lengths_->end() ? average_ : known->second, .prompt = std::ssize(prompt.tokens)};
  }
  // Before anything has been sampled, a completion is taken to have a quarter of the tokens that it may have.
  static int64_t average_of(const Lengths& lengths, int64_t max_new_tokens) {
    if (lengths.empty()) return max_new_tokens / 4;
    int64_t sum = 0;
    for (const auto& [prompt, length] : lengths) sum += length;
    return sum / std::ssize(lengths);
  }
};

void Drawing::show_progress(const Coordinator& coordinator, report::Report& report) const {
  const std::string tokens = base::with_commas(coordinator.stats().generated_tokens);
  const int64_t num_groups = std::ssize(request_.prompts);
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

// Returns the counts over the groups up to the last one taken, which depend only on the order of groups.
FilteredGroups Drawing::filtered() const {
  FilteredGroups result;
  result.num_kept = std::ssize(schedule_.taken());
  result.num_wanted = request_.dynamic->num_groups;
  const uint64_t first_group_id = request_.first_sample_id / static_cast<uint64_t>(request_.n_samples_per_prompt);
  double reward_sum = 0.0;
  int64_t num_rewarded = 0;
  for (size_t i = 0; i < schedule_.num_judged(); ++i) {
    const GroupGrades& group = pool_.group(i).graded;
    ++result.num_groups;
    reward_sum += group.reward_sum;
    num_rewarded += group.num_rewarded;
    if (!group.is_judged) continue;
    ++result.num_judged;
    if (!group.verdict.failure.empty() && ++result.num_failures == 1)
      result.first_failure = fmt::format("group {}: {}", first_group_id + i, group.verdict.failure);
    if (group.verdict.is_kept) continue;
    const bool is_listed = result.dropped.contains(group.verdict.reason) || result.dropped.size() < kMaxDropReasons;
    ++result.dropped[is_listed ? group.verdict.reason : "other"];
  }
  if (num_rewarded > 0) result.mean_reward = reward_sum / static_cast<double>(num_rewarded);
  result.has_mean_reward = num_rewarded > 0;
  result.num_excess = static_cast<int64_t>(pool_.num_opened() - schedule_.num_judged());
  result.num_aborted = pool_.num_cut();
  return result;
}

}  // namespace

RolloutPhase::RolloutPhase(rollout::Engine& engine, text::TextWorker& text, mesh::Mesh& mesh, const LinkSettings& links,
                           IsStopped is_stopped)
    : mesh_(mesh),
      engine_(&engine),
      text_(&text),
      workers_(nullptr),
      timeout_s_(links.timeout_s),
      is_stopped_(std::move(is_stopped)),
      links_(link_ranks(mesh, links)),
      leading_(mesh.tensor().size() > 1 && mesh.tensor().rank() == 0
                   ? std::make_unique<rollout::LeadingEngine>(engine, mesh.tensor().host)
                   : nullptr) {}

RolloutPhase::RolloutPhase(rollout::Engine& engine, text::TextWorker& text)
    : solo_(mesh::solo_mesh()),
      mesh_(*solo_),
      engine_(&engine),
      text_(&text),
      workers_(nullptr),
      timeout_s_(0.0),
      is_stopped_(session::stop_requested) {}

RolloutPhase::RolloutPhase(Connections* workers, double timeout_s, mesh::Mesh& mesh)
    : mesh_(mesh),
      engine_(nullptr),
      text_(nullptr),
      workers_(workers),
      timeout_s_(timeout_s),
      is_stopped_(session::stop_requested) {}

std::optional<Rollout> RolloutPhase::run(const RolloutRequest& request, reward::Scorer* graders,
                                         report::Report& report) {
  const uint64_t number = num_begun_++;
  std::optional<Rollout> rollout;
  if (mesh_.is_conductor()) {
    Gathered gathered = gather(request, number, graders, report);
    if (!mesh_.is_alone()) {
      const memory::BypassArena message;
      device::broadcast_text(mesh_.host(), 0, to_bytes(gathered.rollout, gathered.groups));
    }
    rollout = std::move(gathered.rollout);
  } else {
    if (engine_ != nullptr && mesh_.tensor().rank() > 0) {
      rollout::follow(*engine_, mesh_.tensor().host);
    } else if (engine_ != nullptr) {
      try {
        sample_for_rank0(request, number, graders);
      } catch (const mesh::ChannelClosed& error) {
        throw device::PeerLost(fmt::format("rank 0: {}", error.what()));
      }
    }
    rollout = hear_from_rank0(request);
  }
  if (!rollout) return std::nullopt;
  check_that_enough_passed(request, *rollout);
  warn_of_names(*rollout, request.title);
  return rollout;
}

RolloutPhase::Gathered RolloutPhase::gather(const RolloutRequest& request, uint64_t number, reward::Scorer* graders,
                                            report::Report& report) {
  const Clock::time_point begin = Clock::now();
  const int64_t n = request.n_samples_per_prompt;
  const int64_t num_samples = num_at_once(request) * n;
  Connections* const connections = links_.connections ? links_.connections.get() : workers_;
  GroupPool pool(n, request.is_graded);
  std::optional<Sampler> own;
  if (engine_ != nullptr) {
    const int64_t num_samplers = mesh_.data().size();
    own.emplace(request, leading_ ? *leading_ : *engine_, *text_, graders,
                (num_samples + num_samplers - 1) / num_samplers, /*shares=*/num_samplers > 1);
  }
  Gathered gathered;
  {
    Coordinator coordinator(request, number, pool, own ? &*own : nullptr,
                            connections == nullptr ? std::nullopt
                                                   : std::optional(Coordinator::Others{.connections = *connections,
                                                                                       .timeout_s = timeout_s_}),
                            num_samples);
    Drawing drawing(request, pool, connections == nullptr ? nullptr : &lengths_);
    bool is_stopped = false;
    while (true) {
      drawing.draw();
      is_stopped = is_stopped_() || coordinator.is_stop_asked();
      if (is_stopped || drawing.is_over()) break;
      drawing.show_progress(coordinator, report);
      coordinator.serve();
      drawing.decide(coordinator);
    }
    if (own) own->abort_all();  // drops the samples that nobody wants
    if (!is_stopped) {
      gathered.groups = drawing.taken();
      gathered.rollout = rollout_of_groups(request, pool, gathered.groups, coordinator);
      if (request.dynamic) gathered.rollout->filtered = drawing.filtered();
    }
  }
  if (leading_) leading_->end();
  if (gathered.rollout) gathered.rollout->seconds = seconds_since(begin);
  return gathered;
}

Rollout RolloutPhase::rollout_of_groups(const RolloutRequest& request, GroupPool& pool,
                                        const std::vector<size_t>& groups, const Coordinator& coordinator) {
  Rollout rollout;
  for (const size_t index : groups) {
    Group& group = pool.group(index);
    int64_t longest = 0;
    for (Member& member : group.members) {
      longest = std::max(longest, std::ssize(member.sample.completion));
      rollout.samples.push_back(std::move(member.sample));
    }
    if (connections_to_lend()) lengths_[group.line->prompt.get()] = longest;
    std::ranges::move(group.graded.grades, std::back_inserter(rollout.grades));
  }
  rollout.stats = coordinator.stats();
  rollout.is_sampled = true;
  rollout.num_ranks = mesh_.size();
  const Coordinator::Samplers samplers = coordinator.samplers();
  if (samplers.count > 1 || engine_ == nullptr) rollout.idle_share = samplers.idle_share;
  if (engine_ == nullptr) {
    rollout.num_workers = samplers.count;
    rollout.num_ranks = samplers.count * mesh_.tensor().size();  // an engine is spread as the trainers are
    rollout.num_lost_workers = samplers.num_lost;
  }
  const ProcessLosses losses = coordinator.losses();
  rollout.num_generate_restarts = losses.generator_restarts;
  rollout.num_generate_repeated = losses.repeated_generations;
  if (!request.is_graded) return rollout;
  put_grades(request.failure_reward, rollout);
  rollout.num_repeated = losses.repeated_grades;
  rollout.num_restarts = losses.grader_restarts;
  return rollout;
}

void RolloutPhase::sample_for_rank0(const RolloutRequest& request, uint64_t number, reward::Scorer* graders) {
  mesh::Channel& rank0 = *links_.rank0;
  std::optional<Sampler> sampler;
  std::optional<PoolClient> client;
  bool is_over = false, has_asked_to_stop = false;
  while (!is_over) {
    // A lost rank ends the whole run. Rank 0 may wait for something for any length of time, so there is no timeout
    // here.
    std::optional<std::string> frame = client ? client->receive(kPollInterval) : rank0.receive(kPollInterval);
    for (; frame && !is_over; frame = is_over ? std::nullopt : rank0.receive(0.0)) {
      Message message = message_of(*frame);
      if (const auto* const open = std::get_if<Open>(&message)) {
        TANDEM_ENV_CHECK(open->rollout == number, "rank 0 samples another rollout than this rank");
        sampler.emplace(request, leading_ ? *leading_ : *engine_, *text_, graders, open->samples_at_once,
                        /*shares=*/true);
        client.emplace(rank0, number, *sampler);
      } else if (const auto* const close = std::get_if<Close>(&message)) {
        is_over = close->rollout == number;
      } else if (auto* const samples = std::get_if<LendSamples>(&message)) {
        client.value().take(*samples);
      } else if (auto* const grading = std::get_if<LendGrading>(&message)) {
        client.value().take(*grading);
      } else if (const auto* const abort = std::get_if<Abort>(&message)) {
        client.value().take(*abort);
      }
    }
    if (is_over || !client) continue;
    if (is_stopped_() && !std::exchange(has_asked_to_stop, true)) rank0.send(to_bytes(StopAsked{.rollout = number}));
    client->work();
  }
  if (sampler) sampler->abort_all();
  if (leading_) leading_->end();
}

std::optional<Rollout> RolloutPhase::hear_from_rank0(const RolloutRequest& request) {
  std::string bytes;
  {
    const memory::BypassArena message;
    const device::WaitsForSamples as_long_as_it_takes(mesh_.host());
    bytes = device::broadcast_text(mesh_.host(), 0, "");
  }
  std::vector<const session::PromptLine*> drawn;  // with dynamic sampling: the lines that were asked for so far
  std::optional<Rollout> rollout = rollout_of(bytes, [&](size_t group) {
    if (!request.dynamic) {
      TANDEM_ENV_CHECK(group < request.prompts.size(), "rank 0 sampled group", group,
                       "of a rollout, which nobody was asked for: start all ranks with the same build and flags");
      return request.prompts[group]->prompt;
    }
    while (drawn.size() <= group) drawn.push_back(request.dynamic->next_prompt());
    return drawn[group]->prompt;
  });
  if (rollout && rollout->filtered) {
    while (std::ssize(drawn) < rollout->filtered->num_groups) drawn.push_back(request.dynamic->next_prompt());
  }
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
