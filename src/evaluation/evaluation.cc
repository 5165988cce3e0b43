#include "evaluation/evaluation.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "base/message_text.h"
#include "evaluation/eval_sets.h"
#include "evaluation/rollout_metrics.h"
#include "plan/kv_size.h"
#include "reward/reward_rules.h"
#include "rl/metrics.h"

namespace tandem::evaluation {

namespace {

// Training counts its samples from 0 and never gets here: evaluation has random streams of its own. Ids stay below
// 2^53, so that a reader of samples/ who has doubles for numbers tells them apart.
constexpr uint64_t kFirstEvalSample = uint64_t{1} << 52;
// Each data set has room for that many samples.
constexpr uint64_t kSamplesPerSet = uint64_t{1} << 40;
constexpr size_t kMaxSets = kFirstEvalSample / kSamplesPerSet;

report::Metrics eval_metrics(const std::string& name, const sampling::Rollout& rollout, const config::PassRule& pass) {
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
  for (const auto& [key, value] : pass_metrics(rollout, pass)) metrics[prefix + "-" + key] = value;
  for (const auto& [key, value] : logged_metrics(rollout)) metrics[prefix + "/reward_metric/" + key] = value;
  for (const auto& [key, value] : part_metrics(rollout)) metrics[prefix + "/rewards/" + key] = value;
  return metrics;
}

// Renumbers samples and groups from 0: the ids that name the random streams would mean nothing to people.
void number_from_zero(sampling::Rollout& rollout, uint64_t first_sample_id, uint64_t samples_per_group) {
  for (rl::Sample& sample : rollout.samples) {
    sample.sample_id -= first_sample_id;
    sample.group_id -= first_sample_id / samples_per_group;
  }
  for (reward::Grade& grade : rollout.grades) grade.sample_id -= first_sample_id;
  rollout.count_failures();
}

std::string pass_doubt(const sampling::Rollout& rollout, const config::RewardOptions& reward) {
  if (!reward.is_pass_unknown()) return "";
  const config::PassRule rule = reward.pass_rule();
  const std::optional<double> highest = highest_without_pass(rollout, rule);
  if (!highest) return "";
  return fmt::format("no sample has passed by {}, and the highest value of {} is {:g}", rule.text(), rule.reward,
                     *highest);
}

// Returns "160 samples", or "141 of 160 samples, 10 failed in grading, 7 of them left out, 12 without a reward".
std::string samples_text(const sampling::Rollout& rollout) {
  const auto num_samples = static_cast<int64_t>(rollout.samples.size());
  const int64_t num_exempt = num_not_applied_to(rollout);
  const int64_t num_failed = rollout.num_failed - num_exempt, num_left_out = rollout.num_dropped - num_exempt;
  std::string text = base::counted(num_samples, "sample");
  if (rollout.num_dropped > 0) text = fmt::format("{} of {}", num_samples - rollout.num_dropped, text);
  if (num_failed > 0) text += fmt::format(", {} failed in grading", num_failed);
  if (num_left_out > 0) text += fmt::format(", {} of them left out", num_left_out);
  if (num_exempt > 0) text += fmt::format(", {} without a reward", num_exempt);
  return text;
}

}  // namespace

Evaluation::Evaluation(const config::EvalOptions& eval, const config::DataOptions& data,
                       const config::RewardOptions& reward, const std::set<std::string>& line_types)
    : line_types_(line_types) {
  for (const config::EvalSet& set : read_eval_sets(eval)) {
    const config::RewardOptions own = set.reward(reward);
    sets_.push_back(
        {.name = set.name,
         .rollout = {},
         .grading = {.reward = own, .label_key = set.options.data(own.data(data), set.path).lines.label_key},
         .prompts = {},
         .path = set.path});
    sets_.back().grading.reward.line_types = line_types_;
  }
}

Evaluation::Evaluation(const config::EvalOptions& eval, const config::RolloutOptions& rollout,
                       const config::DataOptions& data, const config::RewardOptions& reward, text::TextWorker& text) {
  const std::vector<config::EvalSet> sets = read_eval_sets(eval);
  TANDEM_USER_CHECK(
      sets.size() <= kMaxSets,
      fmt::format("{}: {} data sets; give at most {}",
                  eval.eval_config.empty() ? "--eval-prompt-data" : eval.eval_config, sets.size(), kMaxSets));
  for (const config::EvalSet& set : sets) {
    const config::RewardOptions own = set.reward(reward);
    const config::DataOptions lines = set.options.data(own.data(data), set.path);
    sets_.push_back({.name = set.name,
                     .rollout = set.options.rollout(rollout),
                     .grading = {.reward = own, .label_key = lines.lines.label_key},
                     .prompts = session::load_prompts(lines, text, session::line_check(own, lines)),
                     .path = set.path});
    sets_.back().rollout.sampling();
    line_types_.merge(session::rm_types_of(sets_.back().prompts));
  }
  // A process can compute every reward that any line asks for, whichever data sets it serves: one more rule costs
  // microseconds. If it is the only rule that needs math-verify, its pool starts half a second later.
  for (size_t i = 0; i < sets_.size(); ++i) {
    sets_[i].grading.reward.line_types = line_types_;
    try {
      sets_[i].grading.reward.check_some_pass();
    } catch (const UserError& error) {
      if (sets[i].place.empty()) throw;
      throw UserError(fmt::format("{}: {}", sets[i].place, error.what()));
    }
  }
}

bool Evaluation::Grading::operator==(const Grading& other) const {
  const auto facts = [](const Grading& grading) {
    const config::RewardOptions& reward = grading.reward;
    return std::tie(reward.rm_type, reward.custom_rm_path, reward.rm_model, reward.reward_weights, reward.reward_key,
                    reward.group_rm, grading.label_key);
  };
  return facts(*this) == facts(other);
}

reward::ScorerConfig Evaluation::Grading::scorer(session::RewardContext context) const {
  context.label_key = label_key;
  return session::scorer_config(reward, context);
}

config::RewardOptions Evaluation::reward_of_run(config::RewardOptions training) const {
  training.line_types.insert(line_types_.begin(), line_types_.end());
  return training;
}

void Evaluation::check_url_is_asked(const config::RewardOptions& training) const {
  const auto asks = [](const DataSet& set) {
    return std::ranges::count(set.grading.reward.rm_type, reward::kRemoteRule) > 0;
  };
  if (std::ranges::none_of(sets_, asks)) reward_of_run(training).check_url_is_asked();
}

std::vector<Evaluation::Grading> Evaluation::gradings() const {
  std::vector<Grading> result;
  for (const DataSet& set : sets_) result.push_back(set.grading);
  return result;
}

std::vector<const session::PromptSet*> Evaluation::prompts_graded(const Grading& grading) const {
  std::vector<const session::PromptSet*> result;
  for (const DataSet& set : sets_) {
    if (set.grading == grading) result.push_back(&set.prompts);
  }
  return result;
}

void Evaluation::try_out(const std::optional<Grading>& training, const session::RewardContext& context) const {
  std::vector<Grading> tried;
  if (training) tried.push_back(*training);
  for (const DataSet& set : sets_) {
    if (std::ranges::find(tried, set.grading) != tried.end()) continue;
    tried.push_back(set.grading);
    session::RewardContext own = context;
    own.label_key = set.grading.label_key;
    session::try_out_reward(set.grading.reward, own, prompts_graded(set.grading));
  }
}

bool Evaluation::is_rendered() const {
  return std::ranges::any_of(sets_, [](const DataSet& set) { return set.prompts.is_rendered; });
}

int64_t Evaluation::context_tokens(const model::ModelConfig& model) const {
  int64_t longest = 0;
  for (const DataSet& set : sets_)
    longest = std::max(longest, plan::choose_context_tokens(set.rollout, model, set.prompts.longest_tokens,
                                                            set.prompts.longest_place));
  return longest;
}

int64_t Evaluation::max_sequences() const {
  int64_t most = 0;
  for (const DataSet& set : sets_)
    most = std::max(most, std::ssize(set.prompts.prompts) * set.rollout.n_samples_per_prompt);
  return most;
}

std::vector<Evaluation::RewardMetric> Evaluation::reward_metrics() const {
  std::vector<RewardMetric> metrics;
  for (const DataSet& set : sets_) {
    const rl::SamplingParams sampling = set.rollout.sampling();
    const std::string asked = fmt::format(
        "{} ({} prompts), {} samples each, temperature {:g}, top-p {:g}, top-k {}, min-p {:g}, {} tokens at most, by "
        "{}",
        std::filesystem::path(set.path).filename().string(), set.prompts.prompts.size(),
        set.rollout.n_samples_per_prompt, sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p,
        sampling.max_new_tokens, set.grading.reward.name());
    metrics.push_back({.name = "eval/" + set.name, .judged_by = "", .asked = asked});
    for (int64_t k = 1; k <= set.rollout.n_samples_per_prompt; k *= 2) {
      metrics.push_back({.name = fmt::format("eval/{}-pass@{}", set.name, k),
                         .judged_by = set.grading.reward.pass_text(),
                         .asked = asked});
    }
  }
  return metrics;
}

std::optional<std::vector<Evaluation::Result>> Evaluation::run(
    sampling::RolloutPhase& phase, const std::vector<reward::Scorer*>& graders,
    const std::optional<sampling::CustomGeneration>& generation, const Judge& judge, report::Report& report) const {
  TANDEM_CHECK_EQ(graders.size(), sets_.size());
  std::vector<sampling::Rollout> rollouts;
  std::vector<uint64_t> first_sample_ids;
  for (size_t s = 0; s < sets_.size(); ++s) {
    const DataSet& set = sets_[s];
    sampling::RolloutRequest request;
    for (const session::PromptLine& line : set.prompts.prompts) request.prompts.push_back(&line);
    request.n_samples_per_prompt = set.rollout.n_samples_per_prompt;
    request.sampling = set.rollout.sampling();
    const uint64_t begin = kFirstEvalSample + s * kSamplesPerSet;
    const auto n = static_cast<uint64_t>(set.rollout.n_samples_per_prompt);
    request.first_sample_id = (begin + n - 1) / n * n;
    request.skip_special_tokens = set.rollout.skip_special_tokens;
    request.failure_reward = set.grading.reward.failure();
    if (generation) request.generation.emplace(*generation);
    request.eval_set = static_cast<int64_t>(s);
    request.title = title(s);
    std::optional<sampling::Rollout> rollout = phase.run(request, graders[s], report);
    if (!rollout) return std::nullopt;
    rollouts.push_back(std::move(*rollout));
    first_sample_ids.push_back(request.first_sample_id);
  }
  // A judge may need the engine's memory, so all sets are sampled before the first one is judged.
  std::vector<Result> results;
  for (size_t s = 0; s < sets_.size(); ++s) {
    const DataSet& set = sets_[s];
    sampling::Rollout& rollout = rollouts[s];
    if (!set.grading.reward.rm_model.empty()) judge(set.grading.reward, set.prompts, rollout);
    number_from_zero(rollout, first_sample_ids[s], static_cast<uint64_t>(set.rollout.n_samples_per_prompt));
    if (phase.speaks() && !rollout.all_failed()) warn_of_failures(rollout, title(s));
    report::Metrics metrics = eval_metrics(set.name, rollout, set.grading.reward.pass_rule());
    std::string doubt = pass_doubt(rollout, set.grading.reward);
    results.push_back({set.name, std::move(rollout), std::move(metrics), std::move(doubt)});
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
  const auto num_samples = static_cast<int64_t>(result.rollout.samples.size());
  const int64_t num_exempt = num_not_applied_to(result.rollout);
  if (num_exempt == num_samples) {
    return fmt::format(
        "eval {}: the reward applies to none of {} (it gave None), so there is no number: check for which "
        "samples it does",
        result.name, base::counted(num_samples, "sample"));
  }
  const std::string failed = num_exempt > 0
                                 ? fmt::format("{} of {}, and the reward does not apply to the others",
                                               num_samples - num_exempt, base::counted(num_samples, "sample"))
                             : num_samples == 1 ? "its only sample"
                                                : fmt::format("all {} samples", num_samples);
  return fmt::format("eval {}: grading failed for {}, so there is no number; the first: {}", result.name, failed,
                     first_failed(result.rollout));
}

}  // namespace tandem::evaluation
