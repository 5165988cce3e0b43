#include "sampling/coordinator.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/bell.h"
#include "base/check.h"
#include "base/log.h"
#include "sampling/sampler.h"

namespace tandem::sampling {

namespace {

constexpr double kPollInterval = 0.1;    // seconds between two looks at the stop signal
constexpr double kSaysAloneAfter = 2.0;  // seconds: a signal that ends the run reaches workers first

}  // namespace

Coordinator::Coordinator(const RolloutRequest& request, uint64_t number, groups::GroupPool& pool, Sampler* own,
                         std::optional<Others> others, int64_t num_samples)
    : request_(request), number_(number), pool_(pool), own_(own), others_(others), num_samples_(num_samples) {
  if (own_ != nullptr) {
    const auto now = base::Clock::now();
    known_[kOwn] = {.joined = now, .last_done = now};
    pool_.join(kOwn);
  }
  if (!others_) return;
  for (const groups::SamplerId id : others_->connections.ready()) joined(id);
}

Coordinator::~Coordinator() {
  for (const auto& [id, known] : known_) pool_.lost(id);
  if (!others_) return;
  for (const groups::SamplerId id : others_->connections.ready()) others_->connections.send(id, Close{number_});
}

void Coordinator::joined(groups::SamplerId id) {
  const auto now = base::Clock::now();
  known_[id] = {.joined = now, .last_done = now};
  pool_.join(id);
  const int64_t num_samplers = std::ssize(others_->connections.ready()) + (own_ == nullptr ? 0 : 1);
  others_->connections.send(
      id, Open{.rollout = number_,
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
               .samples_at_once = (num_samples_ + num_samplers - 1) / std::max<int64_t>(num_samplers, 1),
               .state = request_.state});
}

void Coordinator::pause() {
  pool_.end_phase();
  if (own_ != nullptr) own_->pause();
  if (!others_) return;
  for (const groups::SamplerId id : others_->connections.ready()) others_->connections.send(id, Pause{number_});
}

void Coordinator::serve(std::span<const int> news) {
  lend();
  const bool has_come = own_ != nullptr && work_on_own();
  lend();
  // The loans that have just come back may be the last of the rollout, so nothing may be waited for then.
  const bool waits = !has_come && (own_ == nullptr || !own_->is_busy());
  std::vector<int> own_news = own_ != nullptr ? own_->descriptors() : std::vector<int>();
  own_news.insert(own_news.end(), news.begin(), news.end());
  if (others_) {
    others_->connections.poll(waits ? kPollInterval : 0.0, *this, own_news);
  } else if (waits) {
    base::wait_readable(own_news, kPollInterval);
  }
  lend();
  check_that_somebody_samples();
}

bool Coordinator::work_on_own() {
  own_->advance();
  std::vector<groups::SampledLoan> sampled = own_->take_sampled();
  std::vector<groups::GradedLoan> graded = own_->take_graded();
  for (groups::SampledLoan& loan : sampled) take_back(kOwn, std::move(loan));
  for (groups::GradedLoan& loan : graded) take_back(kOwn, std::move(loan));
  return !sampled.empty() || !graded.empty();
}

template <typename Loan>
void Coordinator::take_back(groups::SamplerId id, Loan loan) {
  known_.at(id).last_done = base::Clock::now();
  pool_.take_back(id, std::move(loan));
}

void Coordinator::lend() {
  for (auto& [id, loan] : pool_.lend_grading()) {
    if (id == kOwn) {
      own_->add(std::move(loan));
    } else {
      others_->connections.send(id, LendGrading{.rollout = number_,
                                                .key = loan.key,
                                                .group = loan.group,
                                                .line = *loan.line,
                                                .members = std::move(loan.members)});
    }
  }
  if (own_ != nullptr) lend_to_own();
  if (others_) lend_to_others();
}

void Coordinator::lend_to_own() {
  int64_t& num_wanted = known_.at(kOwn).num_wanted;
  num_wanted += own_->num_to_ask_for();
  while (const std::optional<groups::SampleLoan> loan = pool_.lend(kOwn, num_wanted)) {
    num_wanted -= static_cast<int64_t>(loan->count);
    own_->add(*loan);
  }
}

void Coordinator::lend_to_others() {
  for (const groups::SamplerId id : others_->connections.ready()) {
    const auto found = known_.find(id);
    if (found == known_.end()) continue;
    int64_t& num_wanted = found->second.num_wanted;
    while (const std::optional<groups::SampleLoan> loan = pool_.lend(id, num_wanted)) {
      num_wanted -= static_cast<int64_t>(loan->count);
      others_->connections.send(id, LendSamples{.rollout = number_,
                                                .key = loan->key,
                                                .group = loan->group,
                                                .first = loan->first,
                                                .count = loan->count,
                                                .line = *loan->line,
                                                .begun = loan->begun,
                                                .budgets = loan->budgets});
    }
  }
}

void Coordinator::said(groups::SamplerId id, Message& message) {
  if (const auto* const pull = std::get_if<Pull>(&message)) {
    if (pull->rollout != number_) return;
    TANDEM_ENV_CHECK(pull->count > 0, "it asks for no sample");
    known_.at(id).num_wanted += pull->count;
  } else if (auto* const sampled = std::get_if<Sampled>(&message)) {
    if (sampled->rollout != number_) return;
    known_.at(id).numbers = sampled->numbers;
    take_back(id, groups::SampledLoan{.key = sampled->key, .members = std::move(sampled->members)});
  } else if (auto* const graded = std::get_if<Graded>(&message)) {
    if (graded->rollout != number_) return;
    known_.at(id).numbers = graded->numbers;
    take_back(id, groups::GradedLoan{
                      .key = graded->key, .graded = std::move(graded->graded), .texts = std::move(graded->texts)});
  } else if (const auto* const stop = std::get_if<StopAsked>(&message)) {
    is_stop_asked_ |= stop->rollout == number_;
  } else {
    TANDEM_ENV_CHECK(false, "it says what only rank 0 does");
  }
}

int64_t Coordinator::lost(groups::SamplerId id, bool has_left) {
  if (const auto found = known_.find(id); found != known_.end()) found->second.is_here = false;
  if (!has_left) ++num_lost_;
  return pool_.lost(id);
}

void Coordinator::abort(size_t group) {
  for (const auto& [id, key] : pool_.abort(group)) {
    if (id == kOwn) {
      own_->abort(key);
    } else {
      others_->connections.send(id, Abort{.rollout = number_, .key = key});
    }
  }
}

void Coordinator::check_that_somebody_samples() {
  if (own_ != nullptr || !others_->connections.ready().empty()) {
    alone_since_.reset();
    has_said_alone_ = false;
    return;
  }
  if (!alone_since_) alone_since_ = base::Clock::now();
  const double seconds = base::seconds_since(*alone_since_);
  if (seconds < kSaysAloneAfter) return;
  if (const std::optional<Failed> failure = others_->connections.why_nobody_comes()) {
    if (failure->is_users) throw UserError(failure->why);
    throw EnvironmentError(failure->why);
  }
  TANDEM_ENV_CHECK(seconds < others_->timeout_s,
                   fmt::format("no process that samples is there, for {:g} s (--distributed-timeout-minutes); look why "
                               "they ended, or start one with {}",
                               others_->timeout_s, others_->connections.how_to_join()));
  if (!std::exchange(has_said_alone_, true))
    base::log_warning("no process that samples is there; the run waits until one joins (the same flags and {})",
                      others_->connections.how_to_join());
}

Coordinator::Numbers Coordinator::numbers() const {
  Numbers numbers = {.counted = {}, .samplers = samplers()};
  for (const auto& [id, known] : known_)
    numbers.counted += id == kOwn ? SamplerNumbers{.stats = own_->stats(), .losses = own_->losses()} : known.numbers;
  return numbers;
}

Coordinator::Samplers Coordinator::samplers() const {
  Samplers result = {.num_lost = num_lost_};
  double idle_s = 0.0, all_s = 0.0;
  base::Clock::time_point end = {};
  for (const auto& [id, known] : known_) end = std::max(end, known.last_done);
  for (const auto& [id, known] : known_) {
    if (!known.is_here) continue;
    ++result.count;
    idle_s += std::chrono::duration<double>(end - known.last_done).count();
    all_s += std::max(std::chrono::duration<double>(end - known.joined).count(), 0.0);
  }
  if (all_s > 0.0) result.idle_share = std::min(idle_s / all_s, 1.0);
  return result;
}

}  // namespace tandem::sampling
