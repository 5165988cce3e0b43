#include "run/learning/preferences.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "base/check.h"
#include "trainer/score.h"

namespace tandem::run {
namespace {

std::vector<const rl::Sample*> views_of(const std::vector<rl::Sample>& samples) {
  std::vector<const rl::Sample*> views;
  for (const rl::Sample& sample : samples) views.push_back(&sample);
  return views;
}

double trained_sum(const rl::Sample& sample, std::span<const float> logprobs) {
  double sum = 0.0;
  for (size_t t = 0; t < logprobs.size(); ++t) sum += sample.loss_mask[t] != 0 ? static_cast<double>(logprobs[t]) : 0.0;
  return sum;
}

// Returns a mean over the answers for which `is_wanted` holds; nullopt where there are none.
template <typename Wanted, typename Value>
std::optional<double> mean_of(std::span<const rl::JudgedAnswer> answers, const Wanted& is_wanted, const Value& value) {
  double sum = 0.0, count = 0.0;
  for (const rl::JudgedAnswer& answer : answers) {
    if (!is_wanted(answer)) continue;
    sum += value(answer);
    ++count;
  }
  return count > 0.0 ? std::optional(sum / count) : std::nullopt;
}

}  // namespace

std::vector<Preferences::Text> Preferences::texts_of(std::span<const int64_t> items, Part part) const {
  const int64_t each = config_.answers_of_item(), num_answers = std::ssize(items) * each;
  const auto answer = [&](int64_t i) { return items[static_cast<size_t>(i / each)] * each + i % each; };
  std::vector<Text> texts;
  for (int64_t i = part.begin * each; i < part.end * each; ++i) texts.emplace_back(answer(i), answer(i));
  if (config_.takes_pairs()) return texts;
  for (int64_t i = part.begin * each; i < part.end * each; ++i) {
    const int64_t other = answer((i + num_answers - 1) % num_answers);
    if (other != answer(i)) texts.emplace_back(answer(i), other);
  }
  return texts;
}

std::vector<rl::Sample> Preferences::samples_of(std::span<const Text> texts) const {
  std::vector<rl::Sample> samples;
  for (const auto& [prompt, completion] : texts) {
    const rl::Sample& asked = data_.samples[static_cast<size_t>(prompt)];
    samples.push_back(data_.samples[static_cast<size_t>(completion)]);
    const size_t room = static_cast<size_t>(data_.context) - asked.prompt->tokens.size();
    if (samples.back().completion.size() > room) {
      samples.back().completion.resize(room);
      samples.back().loss_mask.resize(room);
    }
    samples.back().prompt = asked.prompt;
    samples.back().group_id = asked.group_id;
    samples.back().sample_id = samples.size() - 1;
  }
  return samples;
}

bool Preferences::score_reference(const model::Model& model, std::span<const int64_t> items, Part part) {
  std::vector<Text> unknown = texts_of(items, part);
  std::erase_if(unknown, [this](const Text& text) { return reference_.contains(text); });
  if (unknown.empty()) return true;
  const std::vector<rl::Sample> samples = samples_of(unknown);
  const trainer::Scores scores = trainer::score(model, views_of(samples), batch_, /*temperature=*/1.0, ranks_);
  bool are_finite = true;
  for (size_t i = 0; i < samples.size(); ++i) {
    const double logp = reference_[unknown[i]] = trained_sum(samples[i], scores.logprobs[i]);
    are_finite = are_finite && std::isfinite(logp);
  }
  return are_finite;
}

void Preferences::Judged::add(const Judged& more) {
  answers.insert(answers.end(), more.answers.begin(), more.answers.end());
  mismatched += more.mismatched;
  num_mismatched += more.num_mismatched;
}

Preferences::JudgedPart Preferences::judge(const model::Model& model, std::span<const int64_t> items, Part part) const {
  const std::vector<Text> texts = texts_of(items, part);
  JudgedPart result{.judged = {}, .samples = samples_of(texts)};
  trainer::Scores scores = trainer::score(model, views_of(result.samples), batch_, /*temperature=*/1.0, ranks_);
  const auto num_answers = static_cast<size_t>((part.end - part.begin) * config_.answers_of_item());
  for (size_t i = 0; i < texts.size(); ++i) {
    rl::Sample& sample = result.samples[i];
    const auto known = reference_.find(texts[i]);
    TANDEM_CHECK(known != reference_.end(), "the reference of sample", texts[i].first, "was not scored");
    const rl::JudgedAnswer answer = {
        .logp = trained_sum(sample, scores.logprobs[i]),
        .ref_logp = known->second,
        .num_tokens = std::accumulate(sample.loss_mask.begin(), sample.loss_mask.end(), int64_t{0}),
        .is_desirable = data_.desirable[static_cast<size_t>(texts[i].second)] != 0};
    if (i < num_answers) {
      result.judged.answers.push_back(answer);
      sample.rollout_logprobs = std::move(scores.logprobs[i]);
    } else {
      result.judged.mismatched += answer.log_ratio();
      ++result.judged.num_mismatched;
    }
  }
  result.samples.resize(num_answers);
  return result;
}

Preferences::Outcome Preferences::outcome(const Judged& judged) const {
  const auto count = static_cast<double>(std::max<int64_t>(judged.num_mismatched, 1));
  const double kl = std::max(judged.mismatched / count, 0.0);
  return {rl::preference_terms(config_, judged.answers, kl), metrics(judged.answers, kl)};
}

Preferences::Step Preferences::step(const model::Model& model, std::span<const int64_t> items) const {
  JudgedPart all = judge(model, items, {0, std::ssize(items)});
  Outcome outcome = this->outcome(all.judged);
  Step step{.samples = std::move(all.samples), .loss = outcome.terms.loss, .metrics = std::move(outcome.metrics)};
  // The trainer's loss is minus the mean over samples of advantage times the sum of log-probs.
  const auto num_answers = static_cast<double>(step.samples.size());
  for (size_t i = 0; i < step.samples.size(); ++i)
    step.samples[i].advantages = {-outcome.terms.gradients[i] * num_answers};
  return step;
}

report::Metrics Preferences::metrics(std::span<const rl::JudgedAnswer> answers, double kl) const {
  const auto is_chosen = [](const rl::JudgedAnswer& a) { return a.is_desirable; };
  const auto is_rejected = [](const rl::JudgedAnswer& a) { return !a.is_desirable; };
  const auto reward = [this](const rl::JudgedAnswer& a) { return config_.beta * a.log_ratio(); };
  const auto logp = [](const rl::JudgedAnswer& a) { return a.logp; };
  report::Metrics metrics;
  const auto add = [&](const char* name, const std::optional<double>& mean) {
    if (mean) metrics[name] = *mean;
  };
  const std::optional<double> chosen = mean_of(answers, is_chosen, reward);
  const std::optional<double> rejected = mean_of(answers, is_rejected, reward);
  add("preference/chosen_reward", chosen);
  add("preference/rejected_reward", rejected);
  if (chosen && rejected) metrics["preference/margin"] = *chosen - *rejected;
  add("preference/chosen_logps", mean_of(answers, is_chosen, logp));
  add("preference/rejected_logps", mean_of(answers, is_rejected, logp));
  if (!config_.takes_pairs()) {
    metrics["preference/kl"] = kl;
    return metrics;
  }
  double right = 0.0;
  for (size_t i = 0; i < answers.size(); i += 2) right += reward(answers[i]) > reward(answers[i + 1]) ? 1.0 : 0.0;
  metrics["preference/accuracy"] = 2.0 * right / static_cast<double>(answers.size());
  return metrics;
}

}  // namespace tandem::run
