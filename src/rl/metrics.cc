#include "rl/metrics.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <iterator>
#include <vector>

#include "base/check.h"
#include "rl/rollout_signal.h"

namespace tandem::rl {
namespace {

constexpr size_t kRepetitionCharacters = 10'000;  // vime looks at the last 10,000
constexpr size_t kRepetitionRatio = 10;

using SamplesByGroup = std::map<uint64_t, std::vector<const Sample*>>;

SamplesByGroup by_group(std::span<const Sample* const> samples) {
  SamplesByGroup groups;
  for (const Sample* sample : samples) groups[sample->group_id].push_back(sample);
  return groups;
}

double mean_of(const std::vector<double>& values) {
  double sum = 0.0;
  for (const double v : values) sum += v;
  return values.empty() ? 0.0 : sum / static_cast<double>(values.size());
}

double median_of(std::vector<double> values) {
  if (values.empty()) return 0.0;
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : 0.5 * (values[half - 1] + values[half]);
}

int64_t trained_tokens(const Sample& sample) {
  return std::count_if(sample.loss_mask.begin(), sample.loss_mask.end(), [](uint8_t m) { return m != 0; });
}

void add_lengths(std::span<const Sample* const> samples, std::map<std::string, double>& metrics) {
  std::vector<double> response, total, trained;
  for (const Sample* sample : samples) {
    response.push_back(static_cast<double>(sample->completion.size()));
    total.push_back(static_cast<double>(sample->num_tokens()));
    trained.push_back(static_cast<double>(trained_tokens(*sample)));
  }
  metrics["response_lengths"] = mean_of(response);
  metrics["total_lengths"] = mean_of(total);
  metrics["response_len/mean"] = mean_of(trained);
  metrics["response_len/median"] = median_of(trained);
  metrics["response_len/max"] = *std::max_element(trained.begin(), trained.end());
  metrics["response_len/min"] = *std::min_element(trained.begin(), trained.end());
}

// Returns the mean over the tokens that the loss mask has, of all where it has none.
double mean_advantage(const Sample& sample) {
  std::vector<double> trained;
  for (size_t t = 0; t < sample.advantages.size() && sample.advantages.size() == sample.loss_mask.size(); ++t) {
    if (sample.loss_mask[t] != 0) trained.push_back(sample.advantages[t]);
  }
  return mean_of(trained.empty() ? sample.advantages : trained);
}

void add_rewards(std::span<const Sample* const> samples, std::map<std::string, double>& metrics) {
  std::vector<double> raw, advantages;
  for (const Sample* sample : samples) {
    if (!sample->has_reward) continue;
    raw.push_back(sample->reward);
    if (!sample->advantages.empty()) advantages.push_back(mean_advantage(*sample));
  }
  if (!raw.empty()) metrics["raw_reward"] = mean_of(raw);
  if (!advantages.empty()) metrics["rewards"] = mean_of(advantages);
}

// Rounds 0.25 to 0.2, as Python's round() does, and 1 to 1, so that continuous rewards do not make a name each.
double rounded_to_tenths(double reward) { return std::stod(fmt::format("{:.1f}", reward)) + 0.0; }

// Counts groups whose rewards are all equal. The estimator decides whether they teach something: see add_signal().
void add_zero_std(std::span<const Sample* const> samples, std::map<std::string, double>& metrics) {
  for (const auto& [id, group] : by_group(samples)) {
    std::vector<double> rewards;
    for (const Sample* sample : group) {
      if (sample->has_reward) rewards.push_back(sample->reward);
    }
    if (rewards.empty() || std::adjacent_find(rewards.begin(), rewards.end(), std::not_equal_to<>()) != rewards.end())
      continue;
    metrics[fmt::format("zero_std/count_{}", rounded_to_tenths(rewards.front()))] += 1.0;
  }
}

void add_signal(std::span<const Sample* const> samples, SignalOf signal, std::map<std::string, double>& metrics) {
  const auto has_advantages = [](const Sample* sample) { return !sample->advantages.empty(); };
  if (std::none_of(samples.begin(), samples.end(), has_advantages)) return;  // an evaluation has none
  double& without_signal = metrics["groups_without_signal"];
  double& with_equal_rewards = metrics["groups_with_equal_rewards"];
  for (const GroupSignal& group : group_signals(samples, signal)) {
    without_signal += group.has_signal ? 0.0 : 1.0;
    with_equal_rewards += group.has_equal_rewards ? 1.0 : 0.0;
    if (!group.has_reward) metrics["groups_without_reward"] += 1.0;
  }
}

void add_statuses(std::span<const Sample* const> samples, std::map<std::string, double>& metrics) {
  double num_sampled = 0.0, num_truncated = 0.0, num_repetitive = 0.0;
  for (const Sample* sample : samples) {
    if (!sample->is_given) {  // nothing cuts or repeats what nobody sampled
      num_sampled += 1.0;
      num_truncated += sample->status == SampleStatus::kTruncated ? 1.0 : 0.0;
      num_repetitive += has_repetition(sample->text) ? 1.0 : 0.0;
    }
    if (sample->grading_failed) metrics["failed"] += 1.0;
    if (sample->status == SampleStatus::kAborted) metrics["aborted"] += 1.0;
    if (sample->remove) metrics["removed"] += 1.0;
  }
  const double count = std::max(num_sampled, 1.0);
  metrics["truncated"] = metrics["truncated_ratio"] = num_truncated / count;
  metrics["repetition_frac"] = num_repetitive / count;
}

void add_token_means(std::span<const Sample* const> samples, const Reducer& empty,
                     std::map<std::string, double>& metrics) {
  Reducer rollout = empty, reference = empty, teacher = empty, advantages = empty;
  bool has_rollout = std::ranges::any_of(samples, [](const Sample* sample) { return !sample->is_given; });
  bool has_reference = has_rollout, has_teacher = has_rollout, has_advantages = has_rollout;
  for (const Sample* sample : samples) {
    if (sample->is_given) continue;
    has_rollout = has_rollout && sample->rollout_logprobs.size() == sample->completion.size();
    has_reference =
        has_reference && !sample->completion.empty() && sample->ref_logprobs.size() == sample->completion.size();
    has_teacher =
        has_teacher && !sample->completion.empty() && sample->teacher_logprobs.size() == sample->completion.size();
    has_advantages = has_advantages && !sample->advantages.empty();
    const std::vector<uint8_t> mask = trained_mask(*sample);
    if (has_rollout) rollout.add(mask, sample->rollout_logprobs);
    if (has_reference) reference.add(mask, sample->ref_logprobs);
    if (has_teacher) teacher.add(mask, sample->teacher_logprobs);
    if (has_advantages) advantages.add(mask, sample->advantages);
  }
  if (has_rollout) metrics["rollout_log_probs"] = rollout.value();
  if (has_reference) metrics["ref_log_probs"] = reference.value();
  if (has_teacher) metrics["teacher_log_probs"] = teacher.value();
  if (has_advantages) metrics["advantages"] = advantages.value();
}

// Returns the end of a UTF-8 text, at most `count` characters.
std::string_view last_characters(std::string_view text, size_t count) {
  size_t begin = text.size();
  for (size_t i = text.size(); i-- > 0 && count > 0;) {
    const bool is_continuation = (static_cast<unsigned char>(text[i]) & 0xC0U) == 0x80U;
    if (is_continuation) continue;
    begin = i;
    --count;
  }
  return count > 0 ? text : text.substr(begin);
}

}  // namespace

template <typename Number>
void Reducer::add_sample(std::span<const uint8_t> mask, std::span<const Number> values) {
  TANDEM_CHECK(values.size() == mask.size() || values.size() == 1, values.size(), "values for", mask.size(), "tokens");
  double sum = 0.0;
  int64_t count = 0;
  for (size_t t = 0; t < mask.size(); ++t) {
    if (mask[t] == 0) continue;
    sum += static_cast<double>(values[values.size() == 1 ? 0 : t]);
    count += 1;
  }
  if (count == 0 && !count_removed_) return;
  const int64_t divisor = std::max<int64_t>(count, 1);
  sum_ += per_token_ ? sum : sum / static_cast<double>(divisor);
  num_samples_ += 1;
  num_tokens_ += divisor;
}

template void Reducer::add_sample(std::span<const uint8_t>, std::span<const float>);
template void Reducer::add_sample(std::span<const uint8_t>, std::span<const double>);

double Reducer::value() const {
  if (num_samples_ == 0) return 0.0;
  return sum_ / static_cast<double>(per_token_ ? num_tokens_ : num_samples_);
}

std::map<std::string, double> rollout_metrics(std::span<const Sample* const> samples, bool per_token, SignalOf signal,
                                              bool count_removed) {
  std::map<std::string, double> metrics;
  if (samples.empty()) return metrics;
  add_rewards(samples, metrics);
  add_lengths(samples, metrics);
  add_statuses(samples, metrics);
  add_zero_std(samples, metrics);
  add_signal(samples, signal, metrics);
  add_token_means(samples, Reducer(per_token, count_removed), metrics);
  return metrics;
}

bool is_repetitive(std::string_view text) {
  text = last_characters(text, kRepetitionCharacters);
  uLongf compressed_bytes = compressBound(static_cast<uLong>(text.size()));
  std::vector<Bytef> compressed(compressed_bytes);
  const int status = compress2(compressed.data(), &compressed_bytes, reinterpret_cast<const Bytef*>(text.data()),
                               static_cast<uLong>(text.size()), Z_BEST_COMPRESSION);
  TANDEM_CHECK_EQ(status, Z_OK);
  return text.size() > kRepetitionRatio * compressed_bytes;
}

bool has_repetition(std::string_view text) {
  return last_characters(text, kRepetitionCharacters).size() < text.size() && is_repetitive(text);
}

std::vector<uint8_t> trained_mask(const Sample& sample) {
  std::vector<uint8_t> mask(sample.completion.size());
  for (size_t t = 0; t < mask.size(); ++t) mask[t] = sample.is_trained(t) ? 1 : 0;
  return mask;
}

double pass_at_k(int64_t n, int64_t c, int64_t k) {
  TANDEM_CHECK(0 <= c && c <= n && 1 <= k && k <= n, n, c, k);
  double all_wrong = 1.0;  // C(n - c, k) / C(n, k) as a product, which neither overflows nor cancels
  for (int64_t i = 0; i < k; ++i)
    all_wrong *= std::max(0.0, static_cast<double>(n - c - i)) / static_cast<double>(n - i);
  return 1.0 - all_wrong;
}

std::map<std::string, double> pass_rates(std::span<const PassResult> results) {
  struct Group {
    int64_t size = 0, num_passed = 0;
  };
  std::map<uint64_t, Group> groups;
  for (const PassResult& result : results) {
    Group& group = groups[result.group_id];
    group.size += 1;
    group.num_passed += result.passed ? 1 : 0;
  }
  std::map<std::string, double> rates;
  for (int64_t k = 1;; k *= 2) {
    double sum = 0.0;
    int64_t num_results = 0;
    for (const auto& [id, group] : groups) {
      if (group.size < k) continue;
      sum += static_cast<double>(group.size) * pass_at_k(group.size, group.num_passed, k);
      num_results += group.size;
    }
    if (num_results == 0) return rates;
    rates[fmt::format("pass@{}", k)] = sum / static_cast<double>(num_results);
  }
}

}  // namespace tandem::rl
