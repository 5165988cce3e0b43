#include "config/verb_configs.h"

#include "base/check.h"
#include "base/size.h"

namespace tandem::config {

void GenerateConfig::visit(base::Options& options) {
  model.visit(options);
  data.visit_prompt_data(options);
  data.visit(options);
  rollout.visit(options);
  options.option(output, "output", "output", "JSONL file, one line a prompt; -: standard output").path();
}

void ScoreConfig::visit(base::Options& options) {
  model.visit(options);
  options
      .option(prompt_data, "prompt-data", "data",
              "JSONL file: {\"tokens\": [ids], \"prompt_length\": n} or {\"prompt\": text, \"response\": text}")
      .required()
      .does_not_affect_results();
  // The engine's limit: the quotient must stay a float32 number.
  options.option(temperature, "rollout-temperature", "data", "logits are divided by this").at_least(1e-4);
  options.option(max_tokens_per_gpu, "max-tokens-per-gpu", "memory", "packed tokens of one forward")
      .at_least(1)
      .at_most(base::kMaxCount);
  options.option(logprob_chunk_rows, "logprob-chunk-rows", "memory", "rows of logits that exist at once")
      .at_least(1)
      .at_most(base::kMaxCount);
  options.option(output, "output", "output", "JSONL file, one line a sequence; -: standard output").path();
}

void EvalConfig::visit(base::Options& options) {
  model.visit(options);
  eval.visit(options);
  data.visit(options);
  rollout.visit(options);
  reward.visit(options);
  options.option(output, "output", "output", "file for the metrics, one JSON record").path();
  options.option(sample_output, "sample-output", "output", "JSONL file for the completions with their rewards").path();
}

void EvalConfig::check() const {
  TANDEM_USER_CHECK(!eval.eval_prompt_data.empty(), "--eval-prompt-data: give NAME FILE.jsonl, once or more");
  eval.data_sets();
  reward.check();
  reward.check_key("--eval-reward-key", eval.reward_key.value_or(""));
}

void ExportConfig::visit(base::Options& options) {
  const char* const group = "export";
  options.option(run, "run", group, "run directory (--save of the run); this or --hf-checkpoint").path();
  options.option(step, "step", group, "which of its checkpoints, in rollouts; -1: the latest").at_least(-1);
  options.option(hf_checkpoint, "hf-checkpoint", group, "any Hugging Face directory, to rewrite").path();
  options.option(output, "output", group, "directory to write").required().path();
  options.option(dtype, "dtype", group, "dtype to write; auto: as it is").one_of({"auto", "float32", "bfloat16"});
  options.option(max_shard_bytes, "max-shard-bytes", group, "largest file of weights").at_least(1 << 20);
  options.option(overwrite, "overwrite", group, "replace a checkpoint that --output holds").does_not_affect_results();
}

void ExportConfig::check() const {
  TANDEM_USER_CHECK(run.empty() != hf_checkpoint.empty(), "--run or --hf-checkpoint: give one of them");
  TANDEM_USER_CHECK(step < 0 || !run.empty(), "--step: needs --run, whose checkpoints it numbers");
}

void PlanConfig::visit(base::Options& options) {
  train.visit(options);
  options.require_only({"hf-checkpoint"});
  options.option(json, "json", "memory plan", "one JSON record instead of the table").does_not_affect_results();
}

}  // namespace tandem::config
