#include "config/eval_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "base/check.h"
#include "base/message_text.h"
#include "base/size.h"

namespace tandem::config {

void EvalOptions::visit_data_sets(options::Options& options) {
  options
      .option(eval_prompt_data, "eval-prompt-data", "evaluation",
              "data sets to evaluate on, JSONL or Parquet: NAME FILE.jsonl NAME FILE.parquet ...")
      .path()
      .does_not_affect_results();
}

void EvalOptions::visit(options::Options& options) {
  const char* const group = "evaluation";
  visit_data_sets(options);
  options
      .option(eval_config, "eval-config", group,
              "TOML file of data sets with options of their own, [eval.defaults] and [[eval.datasets]] with slime's "
              "keys; this or --eval-prompt-data")
      .path()
      .does_not_affect_results();
  options
      .option(n_samples_per_eval_prompt, "n-samples-per-eval-prompt", group,
              "completions of each prompt in evaluations; pass@k is the chance that one of k of them passes "
              "(--pass-threshold)")
      .at_least(1)
      .at_most(base::kMaxCount)
      .does_not_affect_results()
      .used_if([this] { return given(); }, "--eval-prompt-data or --eval-config");
  options
      .option(temperature, "eval-temperature", group,
              "sampling temperature of evaluations; unset: --rollout-temperature")
      .at_least(rl::kMinTemperature)
      .or_zero()
      .at_most(100.0)
      .does_not_affect_results()
      .used_if([this] { return given(); }, "--eval-prompt-data or --eval-config");
  options.option(top_p, "eval-top-p", group, "top-p of evaluations; unset: --rollout-top-p")
      .greater_than(0.0)
      .at_most(1.0)
      .does_not_affect_results()
      .used_if([this] { return given(); }, "--eval-prompt-data or --eval-config");
  options.option(top_k, "eval-top-k", group, "top-k of evaluations; unset: --rollout-top-k")
      .at_least(-1)
      .does_not_affect_results()
      .used_if([this] { return given(); }, "--eval-prompt-data or --eval-config");
  options
      .option(max_response_len, "eval-max-response-len", group,
              "tokens of a completion at most, in evaluations; unset: --rollout-max-response-len")
      .at_least(1)
      .at_most(base::kMaxCount)
      .does_not_affect_results()
      .used_if([this] { return given(); }, "--eval-prompt-data or --eval-config");
  options
      .option(max_prompt_len, "eval-max-prompt-len", group,
              "tokens of a prompt at most, in evaluations; unset: --rollout-max-prompt-len")
      .at_least(0)
      .at_most(base::kMaxCount)
      .does_not_affect_results()
      .used_if([this] { return given(); }, "--eval-prompt-data or --eval-config");
  options
      .option(max_context_len, "eval-max-context-len", group,
              "tokens of prompt and completion at most, in evaluations; unset: --rollout-max-context-len")
      .at_least(0)
      .at_most(base::kMaxCount)
      .does_not_affect_results()
      .used_if([this] { return given(); }, "--eval-prompt-data or --eval-config");
  options.option(input_key, "eval-input-key", group, "key of the prompt in evaluation data; unset: --input-key")
      .does_not_affect_results()
      .used_if([this] { return given(); }, "--eval-prompt-data or --eval-config");
  options.option(label_key, "eval-label-key", group, "key of the label in evaluation data; unset: --label-key")
      .does_not_affect_results()
      .used_if([this] { return given(); }, "--eval-prompt-data or --eval-config");
  options
      .option(reward_key, "eval-reward-key", group,
              "number that evaluations take when a reward is a dict; unset: --reward-key")
      .does_not_affect_results();
}

bool is_set_name(const std::string& name) {
  return !name.empty() && std::ranges::all_of(name, [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '-' || c == '.';
  });
}

bool EvalOptions::given() const {
  TANDEM_USER_CHECK(eval_prompt_data.empty() || eval_config.empty(),
                    "--eval-prompt-data and --eval-config are both given; name all data sets in the file");
  return !eval_prompt_data.empty() || !eval_config.empty();
}

std::vector<std::pair<std::string, std::string>> EvalOptions::data_sets() const {
  TANDEM_USER_CHECK(eval_prompt_data.size() % 2 == 0,
                    fmt::format("--eval-prompt-data {}: {}; give pairs: NAME FILE.jsonl", eval_prompt_data.front(),
                                base::counted(std::ssize(eval_prompt_data), "word")));
  std::vector<std::pair<std::string, std::string>> sets;
  for (size_t i = 0; i < eval_prompt_data.size(); i += 2) {
    const std::string& name = eval_prompt_data[i];
    TANDEM_USER_CHECK(is_set_name(name), fmt::format("--eval-prompt-data: '{}' is no name (letters, digits, _ - .); "
                                                     "give pairs: NAME FILE.jsonl",
                                                     name));
    TANDEM_USER_CHECK(std::ranges::none_of(sets, [&](const auto& set) { return set.first == name; }),
                      fmt::format("--eval-prompt-data: the name {} is given twice; names are part of metrics", name));
    sets.emplace_back(name, eval_prompt_data[i + 1]);
  }
  return sets;
}

RolloutOptions EvalOptions::rollout(RolloutOptions base) const {
  base.n_samples_per_prompt = n_samples_per_eval_prompt;
  base.temperature = temperature.value_or(base.temperature);
  base.top_p = top_p.value_or(base.top_p);
  base.top_k = top_k.value_or(base.top_k);
  base.max_response_len = max_response_len ? max_response_len : base.max_response_len;
  base.max_context_len = max_context_len.value_or(base.max_context_len);
  if (max_response_len) base.flags.response = "--eval-max-response-len";
  if (max_context_len) base.flags.context = "--eval-max-context-len";
  base.flags.prompt = "--eval-max-prompt-len";
  return base;
}

DataOptions EvalOptions::data(DataOptions base, const std::string& path) const {
  base.lines.path = path;
  base.prompt_data.clear();
  data::PromptOptions& lines = base.lines;
  lines.input_key = input_key.value_or(lines.input_key);
  lines.label_key = label_key.value_or(lines.label_key);
  lines.label_flag = label_key ? "--eval-label-key" : lines.label_flag + " or --eval-label-key";
  base.max_prompt_len = max_prompt_len.value_or(base.max_prompt_len);
  if (max_prompt_len) base.max_prompt_flag = "--eval-max-prompt-len";
  return base;
}

}  // namespace tandem::config
