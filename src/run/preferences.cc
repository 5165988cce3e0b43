#include "run/preferences.h"

#include <algorithm>
#include <numeric>

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

// A mean over the answers for which `is_wanted` holds; 0 where there are none.
template <typename Wanted, typename Value>
double mean_of(std::span<const rl::JudgedAnswer> answers, const Wanted& is_wanted, const Value& value) {
  double sum = 0.0, count = 0.0;
  for (const rl::JudgedAnswer& answer : answers) {
    if (!is_wanted(answer)) continue;
    sum += value(answer);
    ++count;
  }
  return count > 0.0 ? sum / count : 0.0;
}

}  // namespace

std::vector<int64_t> Preferences::answers_of(std::span<const int64_t> items) const {
  std::vector<int64_t> answers;
  const int64_t each = config_.answers_of_item();
  for (const int64_t item : items) {
    for (int64_t i = 0; i < each; ++i) answers.push_back(item * each + i);
  }
  return answers;
}

std::vector<Preferences::Text> Preferences::texts_of(std::span<const int64_t> items) const {
  const std::vector<int64_t> answers = answers_of(items);
  std::vector<Text> texts;
  for (const int64_t answer : answers) texts.emplace_back(answer, answer);
  if (config_.takes_pairs()) return texts;
  for (size_t i = 0; i < answers.size(); ++i)
    texts.emplace_back(answers[i], answers[(i + answers.size() - 1) % answers.size()]);
  return texts;
}

std::vector<rl::Sample> Preferences::samples_of(std::span<const Text> texts) const {
  std::vector<rl::Sample> samples;
  for (const auto& [prompt, completion] : texts) {
    const rl::Sample& asked = data_.samples[static_cast<size_t>(prompt)];
    samples.push_back(data_.samples[static_cast<size_t>(completion)]);
    samples.back().prompt = asked.prompt;
    samples.back().group_id = asked.group_id;
    samples.back().sample_id = samples.size() - 1;
  }
  return samples;
}

void Preferences::score_reference(const model::Model& model, std::span<const int64_t> items) {
  std::vector<Text> unknown = texts_of(items);
  std::erase_if(unknown, [this](const Text& text) { return reference_.contains(text); });
  if (unknown.empty()) return;
  const std::vector<rl::Sample> samples = samples_of(unknown);
  const trainer::Scores scores = trainer::score(model, views_of(samples), batch_, /*temperature=*/1.0, ranks_);
  for (size_t i = 0; i < samples.size(); ++i) reference_[unknown[i]] = trained_sum(samples[i], scores.logprobs[i]);
}

Preferences::Step Preferences::step(const model::Model& model, std::span<const int64_t> items) const {
  const std::vector<Text> texts = texts_of(items);
  Step step{.samples = samples_of(texts), .metrics = {}};
  trainer::Scores scores = trainer::score(model, views_of(step.samples), batch_, /*temperature=*/1.0, ranks_);
  const size_t num_answers = answers_of(items).size();
  std::vector<rl::JudgedAnswer> answers;
  double kl = 0.0;
  for (size_t i = 0; i < texts.size(); ++i) {
    rl::Sample& sample = step.samples[i];
    const auto known = reference_.find(texts[i]);
    TANDEM_CHECK(known != reference_.end(), "the reference of sample", texts[i].first, "was not scored");
    const rl::JudgedAnswer answer = {
        .logp = trained_sum(sample, scores.logprobs[i]),
        .ref_logp = known->second,
        .num_tokens = std::accumulate(sample.loss_mask.begin(), sample.loss_mask.end(), int64_t{0}),
        .is_desirable = data_.desirable[static_cast<size_t>(texts[i].second)] != 0};
    if (i < num_answers) {
      answers.push_back(answer);
      sample.rollout_logprobs = std::move(scores.logprobs[i]);
    } else {
      kl += answer.log_ratio() / static_cast<double>(num_answers);
    }
  }
  kl = std::max(kl, 0.0);
  step.samples.resize(num_answers);
  const rl::PreferenceTerms terms = rl::preference_terms(config_, answers, kl);
  // The trainer's loss is minus the mean over samples of advantage times the sum of log-probs.
  for (size_t i = 0; i < num_answers; ++i) {
    step.samples[i].advantages = {-terms.gradients[i] * static_cast<double>(num_answers)};
  }
  step.loss = terms.loss;
  step.metrics = metrics(answers, kl);
  return step;
}

report::Metrics Preferences::metrics(std::span<const rl::JudgedAnswer> answers, double kl) const {
  const auto is_chosen = [](const rl::JudgedAnswer& a) { return a.is_desirable; };
  const auto is_rejected = [](const rl::JudgedAnswer& a) { return !a.is_desirable; };
  const auto reward = [this](const rl::JudgedAnswer& a) { return config_.beta * a.log_ratio(); };
  const auto logp = [](const rl::JudgedAnswer& a) { return a.logp; };
  report::Metrics metrics = {{"preference/chosen_reward", mean_of(answers, is_chosen, reward)},
                             {"preference/rejected_reward", mean_of(answers, is_rejected, reward)},
                             {"preference/chosen_logps", mean_of(answers, is_chosen, logp)},
                             {"preference/rejected_logps", mean_of(answers, is_rejected, logp)}};
  metrics["preference/margin"] = metrics["preference/chosen_reward"] - metrics["preference/rejected_reward"];
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
