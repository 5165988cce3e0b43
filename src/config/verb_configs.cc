#include "config/verb_configs.h"

#include <fmt/format.h>

#include "base/check.h"
#include "base/size.h"

namespace tandem::config {

void GenerateConfig::visit(options::Options& options) {
  model.visit(options);
  data.visit_prompt_data(options,
                         "JSONL or Parquet files, one prompt a line or row; FILE@[a:b] takes rows a to b of it");
  data.visit(options);
  rollout.visit(options);
  options.option(output, "output", "output", "JSONL file, one line a prompt; -: standard output").path();
}

void EngineProcessConfig::visit(options::Options& options) {
  model.visit(options);
  data.visit_rendering(options);
  rollout.visit(options);
  options
      .option(max_request_bytes, "max-request-bytes", "rollout",
              "bytes of a request's line; a longer one is answered with an error and not kept")
      .at_least(1024)
      .does_not_affect_results();
  options
      .option(max_request_samples, "max-request-samples", "rollout",
              "completions of one request, those of all its prompts; more are answered with an error")
      .at_least(1)
      .at_most(base::kMaxCount)
      .does_not_affect_results();
}

void ScoreConfig::visit(options::Options& options) {
  model.visit(options);
  options
      .option(prompt_data, "prompt-data", "data",
              "JSONL or Parquet file: {\"tokens\": [ids], \"prompt_length\": n} or {\"prompt\": text or messages, "
              "\"response\": text}; FILE@[a:b] takes rows a to b of it")
      .required()
      .path()
      .does_not_affect_results();
  data.visit_template(options);
  options.option(temperature, "rollout-temperature", "data", "temperature that logits are divided by")
      .at_least(rl::kMinTemperature);
  visit_batch(batch, options, "memory");
  options.option(output, "output", "output", "JSONL file, one line a sequence; -: standard output").path();
}

void ScorerConfig::visit(options::Options& options) {
  model.visit(options);
  const char* const group = "scoring";
  options
      .option(listen, "listen", group,
              "where runs ask: HOST:PORT, an address of this machine, or a name of letters, digits and '-', by which "
              "runs of the same user on this machine find it")
      .required()
      .does_not_affect_results();
  options
      .option(trust_network, "trust-network", group,
              "believe whoever reaches the port of --listen, without TANDEM_SECRET_FILE: nobody else is on the network")
      .does_not_affect_results();
  visit_batch(batch, options, "memory");
}

void EvalConfig::visit(options::Options& options) {
  model.visit(options);
  eval.visit(options);
  data.visit(options);
  rollout.visit(options);
  custom_generate.visit(options);
  reward.visit(options);
  options.option(output, "output", "output", "file for the metrics, one JSON record").path();
  options.option(sample_output, "sample-output", "output", "JSONL file for the completions with their rewards").path();
  options.unsupported("prompt-data", "an evaluation names its files: give --eval-prompt-data NAME FILE");
}

void EvalConfig::check() const {
  TANDEM_USER_CHECK(eval.given(), "--eval-prompt-data: give NAME FILE.jsonl, once or more");
  eval.data_sets();
  custom_generate.check();
  // Each data set of a file may have its own reward.
  if (eval.eval_config.empty() || reward.given()) reward.check();
  reward.check_key("--eval-reward-key", eval.reward_key.value_or(""));
}

void ExportConfig::visit(options::Options& options) {
  const char* const group = "export";
  options.option(run, "run", group, "run directory (--save of the run); this or --hf-checkpoint").path();
  options.option(step, "step", group, "which export of --run, by the number of its rollout; -1: the latest")
      .at_least(-1);
  options.option(hf_checkpoint, "hf-checkpoint", group, "Hugging Face directory to rewrite; this or --run").path();
  options.option(output, "output", group, "directory to write").required().path();
  options.option(dtype, "dtype", group, "dtype of the written weights; auto: that of the source")
      .one_of({"auto", "float32", "bfloat16"})
      .unsupported({"float16", "fp16", "half"}, "is not written; bfloat16 and float32 are");
  options.option(files.max_shard_bytes, "max-shard-bytes", group, "largest file of weights, in bytes")
      .bytes()
      .at_least(1 << 20);
  options.option(files.overwrite, "overwrite", group, "replace a checkpoint that --output holds")
      .does_not_affect_results();
}

void ExportConfig::check() const {
  TANDEM_USER_CHECK(run.empty() != hf_checkpoint.empty(), "--run or --hf-checkpoint: give one of them");
  TANDEM_USER_CHECK(step < 0 || !run.empty(), "--step: needs --run, whose checkpoints it numbers");
}

void ViewConfig::visit(options::Options& options) {
  const char* const group = "view";
  options.option(run, "run", group, "run directory (--save of the run); up to ten of them share the page")
      .positional()
      .path()
      .required();
  options
      .option(output, "output", group,
              "HTML file to write; -: standard output; unset: view.html in the first run directory")
      .path();
}

void PlanConfig::visit(options::Options& options) {
  train.visit(options);
  failures.visit(options);
  options.require_only({"hf-checkpoint"});
  options.option(json, "json", "memory plan", "print one JSON record instead of the table").does_not_affect_results();
}

}  // namespace tandem::config
