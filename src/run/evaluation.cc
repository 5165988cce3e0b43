#include "run/evaluation.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "rl/metrics.h"
#include "run/rollout_metrics.h"

namespace tandem::run {

namespace {

// Training counts its samples from 0 and never gets here: evaluation has random streams of its own. Ids stay below
// 2^53, so that a reader of samples/ who has doubles for numbers tells them apart.
constexpr uint64_t kFirstEvalSample = uint64_t{1} << 52;
// Room for one data set's samples.
constexpr uint64_t kSamplesPerSet = uint64_t{1} << 40;
constexpr size_t kMaxSets = kFirstEvalSample / kSamplesPerSet;

report::Metrics eval_metrics(const std::string& name, const Rollout& rollout) {
  const std::string prefix = "eval/" + name;
  report::Metrics metrics = failure_metrics(rollout, prefix);
  std::vector<const rl::Sample*> samples = rollout.views();
  std::erase_if(samples, [](const rl::Sample* sample) { return !sample->has_reward; });
  if (samples.empty()) return metrics;
  std::map<std::string, double> raw = rl::rollout_metrics(samples, /*per_token=*/false);
  metrics[prefix] = raw["raw_reward"];
  metrics[prefix + "-truncated_ratio"] = raw["truncated_ratio"];
  for (const char* key : {"response_len/mean", "response_len/median", "response_len/max", "response_len/min"}) {
    metrics[prefix + "/" + key] = raw[key];
  }
  for (const auto& [key, value] : rl::pass_rates(samples)) metrics[prefix + "-" + key] = value;
  for (const auto& [key, value] : logged_metrics(rollout)) metrics[prefix + "/reward_metric/" + key] = value;
  return metrics;
}

// "160 samples", "153 of 160 samples, 10 failed in grading, 7 of them left out".
std::string samples_text(const Rollout& rollout) {
  const auto num_samples = static_cast<int64_t>(rollout.samples.size());
  if (rollout.num_failed == 0) return fmt::format("{} samples", num_samples);
  if (rollout.num_dropped == 0) return fmt::format("{} samples, {} failed in grading", num_samples, rollout.num_failed);
  return fmt::format("{} of {} samples, {} failed in grading, {} of them left out", num_samples - rollout.num_dropped,
                     num_samples, rollout.num_failed, rollout.num_dropped);
}

}  // namespace

Evaluation::Evaluation(const config::EvalOptions& eval, const config::RolloutOptions& rollout,
                       const config::DataOptions& data, const config::RewardOptions& reward, text::TextWorker& text)
    : rollout_(eval.rollout(rollout)), reward_(reward), label_key_(eval.label_key.value_or(data.lines.label_key)) {
  const std::vector<std::pair<std::string, std::string>> data_sets = eval.data_sets();
  TANDEM_USER_CHECK(data_sets.size() <= kMaxSets,
                    fmt::format("--eval-prompt-data: {} data sets; give at most {}", data_sets.size(), kMaxSets));
  reward_.reward_key = eval.reward_key.value_or(reward.reward_key);
  has_own_keys_ = label_key_ != data.lines.label_key || reward_.reward_key != reward.reward_key;
  for (const auto& [name, path] : data_sets) {
    sets_.push_back({name, load_prompts(eval.data(reward_.data(data), path), text)});
  }
}

text::GraderConfig Evaluation::graders(RewardContext context) const {
  context.label_key = label_key_;
  return grader_config(reward_, context);
}

int64_t Evaluation::longest_prompt() const {
  int64_t longest = 0;
  for (const DataSet& set : sets_) longest = std::max(longest, set.prompts.longest_tokens);
  return longest;
}

int64_t Evaluation::max_sequences() const {
  size_t prompts = 0;
  for (const DataSet& set : sets_) prompts = std::max(prompts, set.prompts.prompts.size());
  return static_cast<int64_t>(prompts) * rollout_.n_samples_per_prompt;
}

std::optional<std::vector<Evaluation::Result>> Evaluation::run(RolloutPhase& phase, text::Graders& graders,
                                                               report::Report& report) const {
  std::vector<Result> results;
  for (size_t s = 0; s < sets_.size(); ++s) {
    RolloutRequest request;
    for (const PromptLine& line : sets_[s].prompts.prompts) request.prompts.push_back(&line);
    request.n_samples_per_prompt = rollout_.n_samples_per_prompt;
    request.sampling = rollout_.sampling();
    const uint64_t begin = kFirstEvalSample + s * kSamplesPerSet;
    const auto n = static_cast<uint64_t>(rollout_.n_samples_per_prompt);
    request.first_sample_id = (begin + n - 1) / n * n;
    request.skip_special_tokens = rollout_.skip_special_tokens;
    request.failure_reward = reward_.failure();
    request.title = "eval " + sets_[s].name;
    std::optional<Rollout> rollout = phase.run(request, &graders, report);
    if (!rollout) return std::nullopt;
    if (!rollout->all_failed()) warn_of_failures(*rollout, request.title);
    report::Metrics metrics = eval_metrics(sets_[s].name, *rollout);
    results.push_back({sets_[s].name, std::move(*rollout), std::move(metrics)});
  }
  return results;
}

std::string eval_line(const Evaluation::Result& result) {
  const std::string prefix = "eval/" + result.name;
  std::vector<std::pair<std::string, std::string>> shown = {{"reward", prefix}};
  for (size_t k = 1; k <= result.rollout.samples.size(); k *= 2) {
    const std::string name = fmt::format("pass@{}", k);
    shown.emplace_back(name, prefix + "-" + name);
  }
  shown.emplace_back("length", prefix + "/response_len/mean");
  shown.emplace_back("truncated", prefix + "-truncated_ratio");
  return fmt::format("eval {}: {}  ({})", result.name, report::summary(result.metrics, shown),
                     samples_text(result.rollout));
}

std::string unscored_line(const Evaluation::Result& result) {
  return fmt::format("eval {}: grading failed for all {} samples, so there is no number; the first: {}", result.name,
                     result.rollout.samples.size(), result.rollout.first_failure);
}

}  // namespace tandem::run
