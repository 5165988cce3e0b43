#include "reward/scorer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "base/bell.h"
#include "base/check.h"
#include "base/clock.h"
#include "reward/reward_rules.h"

namespace tandem::reward {
namespace {

// Adds a part's numbers, columns and metrics, under its name.
void add_named(const std::string& source, Grade part, Grade& sum) {
  const auto under = [&](const std::string& name) { return source + "/" + name; };
  for (const auto& [name, value] : part.extras) sum.extras[under(name)] = value;
  for (auto& [name, value] : part.columns) sum.columns[under(name)] = std::move(value);
  for (auto& [name, values] : part.metrics) sum.metrics[under(name)] = std::move(values);
}

// Adds what a part wrote into the sample, over what those before it wrote.
void add_written(const Grade& part, Grade& sum) {
  if (part.remove_sample) sum.remove_sample = sum.remove_sample.value_or(false) || *part.remove_sample;
  if (part.status) sum.status = part.status;
  if (!part.loss_mask) return;
  if (!sum.loss_mask) {
    sum.loss_mask = part.loss_mask;
    return;
  }
  std::ranges::transform(*sum.loss_mask, *part.loss_mask, sum.loss_mask->begin(),
                         [](uint8_t a, uint8_t b) { return a != 0 && b != 0 ? uint8_t{1} : uint8_t{0}; });
}

void fail(Grade& sum, std::string reason_class, std::string reason) {
  sum.failed = true;
  sum.reason_class = std::move(reason_class);
  sum.reason = std::move(reason);
}

}  // namespace

Scorer::Scorer(const ScorerConfig& config) : shows_parts_(config.shows_parts) {
  TANDEM_CHECK(!config.sources.empty(), "nothing gives a reward");
  TANDEM_CHECK(shows_parts_ || (config.sources.size() == 1 && config.sources.front().weight == 1.0),
               "a sum shows its parts");
  for (const RewardSource& source : config.sources) {
    sources_.emplace_back(source);
    if (!sources_.back().is_scored_later()) ++num_asked_;
  }
  TANDEM_CHECK(shows_parts_ || num_asked_ == 1, "what is scored later is a part of a sum");
}

Scorer::Source::Source(const RewardSource& source)
    : name(source.name), weight(source.weight), asks_service_first(source.asks_service_first) {
  if (source.graders) graders.emplace(*source.graders);
  if (source.service) service.emplace(*source.service);
}

bool Scorer::Source::is_served(const GradeRequest& sample) const {
  return sample.rm_type.empty() ? asks_service_first : sample.rm_type == kRemoteRule;
}

template <typename F>
void Scorer::for_each_pool(F f) {
  for (size_t i = 0; i < sources_.size(); ++i) {
    if (sources_[i].graders) f(i, *sources_[i].graders);
    if (sources_[i].service) f(i, *sources_[i].service);
  }
}

template <typename F>
int64_t Scorer::sum_over_pools(F f) const {
  int64_t sum = 0;
  for (const Source& source : sources_) {
    if (source.graders) sum += f(*source.graders);
    if (source.service) sum += f(*source.service);
  }
  return sum;
}

void Scorer::submit(std::vector<GradeRequest> group) {
  if (num_asked_ == 0) {
    for (const GradeRequest& sample : group) {
      finished_.push_back(combined(sample.sample_id, std::vector<std::optional<Grade>>(sources_.size())));
    }
    bell_.ring();
    return;
  }
  for (const GradeRequest& sample : group) {
    UnderWay under_way{.number = num_submitted_++};
    under_way.parts.resize(sources_.size());
    TANDEM_CHECK(under_way_.emplace(sample.sample_id, std::move(under_way)).second, "submitted twice",
                 sample.sample_id);
  }
  for (size_t i = 0; i < sources_.size(); ++i) {
    Source& source = sources_[i];
    if (source.is_scored_later()) continue;
    const bool is_last = i + 1 == sources_.size();
    std::vector<GradeRequest> samples = is_last ? std::move(group) : group;
    std::vector<GradeRequest> served;
    if (source.service) {
      const auto begin = std::stable_partition(samples.begin(), samples.end(),
                                               [&](const GradeRequest& sample) { return !source.is_served(sample); });
      served.assign(std::make_move_iterator(begin), std::make_move_iterator(samples.end()));
      samples.erase(begin, samples.end());
    }
    if (!samples.empty()) source.graders->submit(std::move(samples));
    if (!served.empty()) source.service->submit(std::move(served));
  }
}

std::vector<Grade> Scorer::take_finished(double seconds) {
  if (!finished_.empty()) {
    bell_.silence();
    return std::exchange(finished_, {});
  }
  const auto begin = base::Clock::now();
  std::map<uint64_t, Grade> grades;  // by the order of submission
  while (!under_way_.empty()) {
    for_each_pool([&](size_t source, Graders& pool) {
      for (Grade& grade : pool.take_finished(0.0)) {
        const auto found = under_way_.find(grade.sample_id);
        TANDEM_CHECK(found != under_way_.end() && !found->second.parts[source], "a grade too many", grade.sample_id);
        UnderWay& sample = found->second;
        sample.parts[source] = std::move(grade);
        if (++sample.num_graded < num_asked_) continue;
        grades.emplace(sample.number, combined(found->first, std::move(sample.parts)));
        under_way_.erase(found);
      }
    });
    const double left_s = seconds - base::seconds_since(begin);
    if (!grades.empty() || left_s <= 0.0) break;
    base::wait_readable(descriptors(), left_s);
  }
  std::vector<Grade> result;
  for (auto& [number, grade] : grades) result.push_back(std::move(grade));
  return result;
}

std::vector<int> Scorer::descriptors() const {
  std::vector<int> result = {bell_.descriptor()};
  for (const Source& source : sources_) {
    if (source.graders) result.push_back(source.graders->descriptor());
    if (source.service) result.push_back(source.service->descriptor());
  }
  return result;
}

void Scorer::discard() {
  for_each_pool([](size_t, Graders& pool) { pool.discard(); });
  under_way_.clear();
  finished_.clear();
  bell_.silence();
}

Grade Scorer::combined(uint64_t sample_id, std::vector<std::optional<Grade>> parts) const {
  if (!shows_parts_) return std::move(*parts.front());
  Grade sum;
  sum.sample_id = sample_id;
  const Grade* failed = nullptr;  // the first that did, for another reason than that it does not apply
  bool applies = false;
  for (size_t i = 0; i < parts.size(); ++i) {
    const Source& source = sources_[i];
    if (source.is_scored_later()) {
      sum.parts.push_back({source.name, std::nullopt});
      applies = true;
      continue;
    }
    const Grade& part = *parts[i];
    sum.parts.push_back({source.name, part.failed ? std::nullopt : std::optional(part.reward)});
    applies |= !part.failed;
    if (!part.failed) sum.reward += source.weight * part.reward;
    if (part.failed && part.reason_class != "none" && failed == nullptr) {
      failed = &part;
      fail(sum, part.reason_class, source.name + ": " + part.reason);
    }
  }
  if (failed == nullptr && !applies) fail(sum, "none", "no reward applies to this sample; " + parts.front()->reason);
  if (!sum.failed && !std::isfinite(sum.reward))
    fail(sum, "not_finite", "the weighted sum of the rewards is no number");
  if (sum.failed) sum.reward = 0.0;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (!parts[i]) continue;
    if (!sum.failed) add_written(*parts[i], sum);
    add_named(sources_[i].name, std::move(*parts[i]), sum);
  }
  return sum;
}

int64_t Scorer::restarts() const {
  return sum_over_pools([](const Graders& pool) { return pool.restarts(); });
}

int64_t Scorer::repeated() const {
  return sum_over_pools([](const Graders& pool) { return pool.repeated(); });
}

}  // namespace tandem::reward
