#include "sampling/rollout_phase.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/message_text.h"
#include "device/waits_for_samples.h"
#include "groups/group_pool.h"
#include "memory/arena_allocator.h"
#include "sampling/coordinator.h"
#include "sampling/drawing.h"
#include "sampling/processes/pool_client.h"
#include "sampling/processes/rollout_message.h"
#include "sampling/sampler.h"

namespace tandem::sampling {

namespace {

using base::Clock;
using base::seconds_since;

constexpr double kPollInterval = 0.05;  // seconds between two looks at the stop signal

int64_t num_at_once(const RolloutRequest& request) {
  if (request.in_flight) return request.in_flight->groups_at_once;
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
  const bool is_budget = dynamic.limits.max_groups != groups::SearchLimits().max_groups;
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
    const bool is_live = request.in_flight && request.in_flight->phase_tokens == 0 && request.in_flight->log == nullptr;
    Gathered gathered = is_live ? gather_live(request, report) : gather(request, number, graders, report);
    if (!mesh_.is_alone()) {
      const memory::BypassArena message;
      device::broadcast_text(mesh_.host(), 0, to_bytes(gathered.rollout, gathered.numbers));
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
  // Groups in flight outlive the rollout, and others do not.
  std::optional<groups::GroupPool> own_pool;
  groups::GroupPool& pool =
      request.in_flight ? request.in_flight->groups->pool : own_pool.emplace(n, request.is_graded);
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
    const std::unique_ptr<Drawing> drawing = make_drawing(request, pool, connections == nullptr ? nullptr : &lengths_);
    bool is_stopped = false;
    while (true) {
      mesh_.host().check();  // a rank whose process is frozen has its samples on loan, and keeps its connection
      drawing->draw();
      is_stopped = is_stopped_() || coordinator.is_stop_asked();
      if (is_stopped || drawing->is_over()) break;
      drawing->show_progress(coordinator, report);
      coordinator.serve();
      drawing->decide(coordinator);
    }
    if (own) own->abort_all();  // drops the samples that nobody wants
    if (!is_stopped) {
      TakenGroups taken = drawing->take();
      gathered.numbers = taken.numbers;
      gathered.rollout = rollout_of_groups(request, std::move(taken), coordinator.numbers());
    }
  }
  if (leading_) leading_->end();
  if (engine_ != nullptr) engine_->leave_shared_steps();
  if (gathered.rollout) gathered.rollout->seconds = seconds_since(begin);
  return gathered;
}

void RolloutPhase::go_on(const RolloutRequest& request) {
  TANDEM_CHECK(workers_ != nullptr, "who trains cannot sample meanwhile");
  if (!live_) live_ = std::make_unique<LiveSampling>(*workers_, timeout_s_, lengths_);
  live_->resume(request, num_begun_++);
}

RolloutPhase::Gathered RolloutPhase::gather_live(const RolloutRequest& request, report::Report& report) {
  if (!live_ || !live_->is_running()) go_on(request);
  std::optional<LiveSampling::Taken> taken = live_->take(is_stopped_, report);
  Gathered gathered;
  if (!taken) return gathered;
  gathered.numbers = taken->groups.numbers;
  gathered.rollout = rollout_of_groups(request, std::move(taken->groups), taken->numbers);
  gathered.rollout->seconds = taken->seconds;
  gathered.rollout->pause_seconds =
      taken->numbers.counted.still_seconds / static_cast<double>(std::max<int64_t>(taken->numbers.samplers.count, 1));
  return gathered;
}

void RolloutPhase::pause() {
  if (live_ && live_->is_running()) live_->pause(is_stopped_);
}

Rollout RolloutPhase::rollout_of_groups(const RolloutRequest& request, TakenGroups taken,
                                        const Coordinator::Numbers& numbers) {
  Rollout rollout;
  rollout.filtered = std::move(taken.filtered);
  rollout.in_flight = std::move(taken.in_flight);
  for (groups::Group& group : taken.groups) {
    for (groups::Member& member : group.members) rollout.samples.push_back(std::move(member.sample));
    std::ranges::move(group.graded.grades, std::back_inserter(rollout.grades));
  }
  rollout.stats = numbers.counted.stats;
  rollout.is_sampled = true;
  rollout.num_ranks = mesh_.size();
  const Coordinator::Samplers& samplers = numbers.samplers;
  if (samplers.count > 1 || engine_ == nullptr) rollout.idle_share = samplers.idle_share;
  if (engine_ == nullptr) {
    rollout.num_workers = samplers.count;
    rollout.num_ranks = samplers.count * mesh_.tensor().size();  // an engine is spread as the trainers are
    rollout.num_lost_workers = samplers.num_lost;
  }
  rollout.num_generate_restarts = numbers.counted.losses.generator_restarts;
  rollout.num_generate_repeated = numbers.counted.losses.repeated_generations;
  if (!request.is_graded) return rollout;
  put_grades(request.failure_reward, rollout);
  rollout.num_repeated = numbers.counted.losses.repeated_grades;
  rollout.num_restarts = numbers.counted.losses.grader_restarts;
  return rollout;
}

void RolloutPhase::sample_for_rank0(const RolloutRequest& request, uint64_t number, reward::Scorer* graders) {
  mesh::Channel& rank0 = *links_.rank0;
  std::optional<Sampler> sampler;
  std::optional<PoolClient> client;
  bool is_over = false, has_asked_to_stop = false;
  while (!is_over) {
    // A lost rank ends the whole run. Rank 0 may wait for something for any length of time, so there is no timeout
    // here: a frozen process is missed by the beats of the ranks.
    mesh_.host().check();
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
  engine_->leave_shared_steps();
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
    if (request.in_flight) return request.in_flight->line_of(group)->prompt;
    if (!request.dynamic) {
      TANDEM_ENV_CHECK(group < request.prompts.size(), "rank 0 sampled group", group,
                       "of a rollout, which nobody was asked for: start all ranks with the same build and flags");
      return request.prompts[group]->prompt;
    }
    while (drawn.size() <= group) drawn.push_back(request.dynamic->next_prompt());
    return drawn[group]->prompt;
  });
  if (rollout && rollout->filtered && !request.in_flight) {
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
