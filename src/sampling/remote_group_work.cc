#include "sampling/remote_group_work.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/log.h"

namespace tandem::sampling {

namespace {

constexpr double kLookEvery = 0.1;       // seconds between two looks at the stop signal
constexpr double kSaysAloneAfter = 2.0;  // seconds: a signal that ends the run reaches workers first

}  // namespace

RemoteGroupWork::RemoteGroupWork(const RolloutRequest& request, uint64_t number, double patience_s,
                                 RolloutWorkers& workers, Done done)
    : request_(request), number_(number), patience_s_(patience_s), workers_(workers), done_(std::move(done)) {
  for (const WorkerId id : workers_.ready()) joined(id);
}

RemoteGroupWork::~RemoteGroupWork() {
  for (const WorkerId id : workers_.ready()) workers_.send(id, Close{number_});
}

void RemoteGroupWork::begin(size_t index, const session::PromptLine& line) {
  lines_[index] = &line;
  queue_.open(index);
}

void RemoteGroupWork::advance() {
  lend();
  workers_.poll(kLookEvery, *this);
  lend();
  check_that_somebody_samples();
}

void RemoteGroupWork::abort(size_t index) {
  const std::optional<WorkerId> worker = queue_.abort(index);
  if (!worker) return;
  ++num_cut_;
  workers_.send(*worker, Abort{number_, index});
}

void RemoteGroupWork::abort_all() { queue_.abort_all(); }

void RemoteGroupWork::joined(WorkerId id) {
  const auto now = base::Clock::now();
  known_[id] = {.joined = now, .last_done = now};
  const auto num_groups = request_.dynamic ? request_.dynamic->groups_at_once : std::ssize(request_.prompts);
  const auto num_workers = std::max<int64_t>(std::ssize(workers_.ready()), 1);
  workers_.send(id, Open{.rollout = number_,
                         .graded_by = !request_.is_graded      ? GradedBy::kNobody
                                      : request_.eval_set >= 0 ? GradedBy::kEvalSet
                                                               : GradedBy::kTraining,
                         .eval_set = std::max<int64_t>(request_.eval_set, 0),
                         .n_samples_per_prompt = request_.n_samples_per_prompt,
                         .first_sample_id = request_.first_sample_id,
                         .sampling = request_.sampling,
                         .skip_special_tokens = request_.skip_special_tokens,
                         .generates = request_.generation.has_value(),
                         .is_evaluation = request_.generation && request_.generation->is_evaluation,
                         .is_filtered = request_.dynamic.has_value(),
                         .groups_at_once = (num_groups + num_workers - 1) / num_workers});
}

void RemoteGroupWork::said(WorkerId id, WorkerMessage& message) {
  if (const auto* const pull = std::get_if<Pull>(&message)) {
    if (pull->rollout != number_) return;
    TANDEM_ENV_CHECK(pull->count > 0, "it asks for no group");
    known_.at(id).num_wanted += pull->count;
  } else if (const auto* const done = std::get_if<sampling::Done>(&message)) {
    if (done->rollout == number_) take(id, *done);
  } else {
    TANDEM_ENV_CHECK(false, "it says what only the conductor does");
  }
}

void RemoteGroupWork::take(WorkerId id, const sampling::Done& done) {
  RankMessage message = rank_message(done.message, [&](size_t index) {
    const auto line = lines_.find(index);
    TANDEM_ENV_CHECK(line != lines_.end(), "it sampled a group that nobody asked for");
    return line->second->prompt;
  });
  Worker& worker = known_.at(id);
  worker.stats = message.stats;
  worker.losses = message.losses;
  for (auto& [index, group] : message.groups) {
    TANDEM_ENV_CHECK(!group.verdict.is_kept || std::ssize(group.samples) == request_.n_samples_per_prompt,
                     "its group is not whole");
    if (!queue_.push(id, index)) continue;  // it was aborted meanwhile
    ++num_done_;
    worker.last_done = base::Clock::now();
    done_(index, std::move(group));
  }
}

int64_t RemoteGroupWork::lost(WorkerId id, bool has_left) {
  if (const auto found = known_.find(id); found != known_.end()) found->second.is_here = false;
  if (!has_left) ++num_lost_;
  return static_cast<int64_t>(queue_.lost(id));
}

void RemoteGroupWork::lend() {
  for (const WorkerId id : workers_.ready()) {
    Worker& worker = known_.at(id);
    for (; worker.num_wanted > 0; --worker.num_wanted) {
      const std::optional<size_t> index = queue_.pull(id);
      if (!index) return;
      workers_.send(id, Task{.rollout = number_, .index = *index, .line = *lines_.at(*index)});
    }
  }
}

void RemoteGroupWork::check_that_somebody_samples() {
  if (!workers_.ready().empty() || num_under_way() == 0) {
    alone_since_.reset();
    has_said_alone_ = false;
    return;
  }
  if (!alone_since_) alone_since_ = base::Clock::now();
  const double seconds = base::seconds_since(*alone_since_);
  if (seconds < kSaysAloneAfter) return;
  if (const std::optional<Failed> failure = workers_.why_nobody_comes()) {
    if (failure->is_users) throw UserError(failure->why);
    throw EnvironmentError(failure->why);
  }
  TANDEM_ENV_CHECK(seconds < patience_s_,
                   fmt::format("no process that samples is there, for {:g} s (--distributed-timeout-minutes); look why "
                               "they ended, or start one with --rollout-join",
                               patience_s_));
  if (!std::exchange(has_said_alone_, true))
    base::log_warning(
        "no process that samples is there; the run waits until one joins (the same flags and --rollout-join)");
}

rollout::EngineStats RemoteGroupWork::stats() const {
  rollout::EngineStats sum;
  for (const auto& [id, worker] : known_) add(worker.stats, sum);
  return sum;
}

GroupWork::Losses RemoteGroupWork::losses() const {
  Losses sum;
  for (const auto& [id, worker] : known_) add(worker.losses, sum);
  return sum;
}

GroupWork::Workers RemoteGroupWork::workers() const {
  Workers result = {.num_lost = num_lost_};
  double idle_s = 0.0, all_s = 0.0;
  base::Clock::time_point end = {};
  for (const auto& [id, worker] : known_) end = std::max(end, worker.last_done);
  for (const auto& [id, worker] : known_) {
    if (!worker.is_here) continue;
    ++result.count;
    idle_s += std::chrono::duration<double>(end - worker.last_done).count();
    all_s += std::max(std::chrono::duration<double>(end - worker.joined).count(), 0.0);
  }
  if (all_s > 0.0) result.idle_share = std::min(idle_s / all_s, 1.0);
  return result;
}

}  // namespace tandem::sampling
