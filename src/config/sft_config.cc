#include "config/sft_config.h"

#include <fmt/format.h>

#include "base/check.h"
#include "base/size.h"
#include "data/sft.h"

namespace tandem::config {

SftConfig::SftConfig() {
  data.lines.label_key = data::SftOptions().response_key;
  optimizer.schedule.max_lr = 1e-5;
  optimizer.adamw.weight_decay = 0.0;
  output.default_save_interval = 100;  // a step is shorter than a rollout, which has sampling and several steps
}

void SftConfig::visit(options::Options& options) {
  model.visit(options);
  data.visit_prompt_data(options,
                         "JSONL or Parquet files, a line {\"messages\": [...]}, {\"prompt\": ..., \"response\": ...}, "
                         "{\"text\": ...}, ShareGPT's, Alpaca's or Dolly's, or with --preference-loss a line with chosen and "
                         "rejected; FILE@[a:b] takes rows a to b of it");
  data.visit_prompt_data_weights(options);
  options.option(data.lines.input_key, "input-key", "data", "key of the prompt, a text or a list of messages");
  options
      .option(data.lines.label_key, "label-key", "data",
              "key of the answer, a text or a list of messages; where response is absent, completion is read")
      .used_if([this] { return !preference.takes_pairs(); }, "--preference-loss none or kto");
  data.visit_rendering(options);
  options
      .option(data.allow_unrendered_reasoning, "allow-unrendered-reasoning", "data",
              "train on answers without the reasoning that the chat template does not render, and count them")
      .does_not_affect_results();
  options.option(append_eos, "append-eos", "data",
                 "the tokenizer's EOS token ends each answer that neither the data nor the chat template ends");
  const char* const loop = "loop";
  options
      .option(global_batch_size, "global-batch-size", loop,
              "samples of one optimizer step; pairs with --preference-loss, and "
              "labelled answers with its kto")
      .required()
      .at_least(1)
      .at_most(base::kMaxCount);
  options.option(num_rollout, "num-rollout", loop, "optimizer steps of the run; this or --num-epoch")
      .at_least(1)
      .at_most(base::kMaxCount)
      .does_not_affect_results();
  options.option(num_epoch, "num-epoch", loop, "passes over the data; this or --num-rollout")
      .at_least(1)
      .at_most(base::kMaxCount)
      .does_not_affect_results();
  options.option(rollout_shuffle, "rollout-shuffle", loop, "shuffle the samples in each epoch, from --rollout-seed");
  options.option(rollout_seed, "rollout-seed", loop, "seed of the shuffled order").at_least(0);
  options
      .option(calculate_per_token_loss, "calculate-per-token-loss", loop,
              "the loss of a step is the mean over its trained tokens; off: the mean over its samples of their means")
      .used_if([this] { return !preference.is_on(); }, "--preference-loss none");
  visit_preferences(options);
  optimizer.visit(options);
  lora.visit(options);
  mesh.visit_trainers(options);
  const char* const evaluation = "evaluation";
  eval.visit_data_sets(options);
  options
      .option(eval_interval, "eval-interval", evaluation,
              "optimizer steps between evaluations of the held-out loss; there is one before the first and one at the "
              "end too")
      .at_least(1)
      .at_most(base::kMaxCount)
      .does_not_affect_results();
  options.option(skip_eval_before_train, "skip-eval-before-train", evaluation, "no evaluation before the first step")
      .does_not_affect_results()
      .used_if([this] { return eval.given(); }, "--eval-prompt-data");
  output.visit_run(options);
  checkpoints.visit(options);
}

void SftConfig::visit_preferences(options::Options& options) {
  const char* const group = "preferences";
  options
      .option(preference.loss, "preference-loss", group,
              "learn which of two answers is better, from lines with chosen and rejected: sigmoid is DPO; kto takes "
              "lines with one answer and a label, true or false; none: imitate the answers")
      .one_of(rl::kPreferenceLosses)
      .unsupported({"dpo"}, "is the loss of Direct Preference Optimization; give sigmoid, as TRL names it")
      .unsupported({"simpo", "cpo", "alphapo", "orpo"},
                   "has no reference, and every loss here compares with one; give sigmoid (DPO) or another of this "
                   "flag's");
  options
      .option(preference.beta, "preference-beta", group,
              "how far the model may move from the reference: less for a larger number")
      .greater_than(0.0)
      .at_most(1e6);
  options
      .option(
          ref_load, "ref-load", group,
          "Hugging Face directory of the reference, a model of the shape of --hf-checkpoint; unset: --hf-checkpoint")
      .path();
  options
      .option(preference.label_smoothing, "preference-label-smoothing", group,
              "share of pairs that may be the wrong way round; for robust")
      .at_least(0.0)
      .less_than(0.5);
  options
      .option(preference.desirable_weight, "desirable-weight", group,
              "factor of the loss of desirable answers; for kto")
      .at_least(0.0)
      .at_most(1e6);
  options
      .option(preference.undesirable_weight, "undesirable-weight", group,
              "factor of the loss of undesirable answers; for kto")
      .at_least(0.0)
      .at_most(1e6);
}

void SftConfig::check() const {
  const rl::PreferenceConfig none;
  TANDEM_USER_CHECK(preference.is_on() || preference.beta == none.beta,
                    "--preference-beta: needs --preference-loss, without which answers are imitated");
  TANDEM_USER_CHECK(preference.is_on() || ref_load.empty(),
                    "--ref-load: needs --preference-loss, without which there is no reference");
  TANDEM_USER_CHECK(preference.loss == "robust" || preference.label_smoothing == 0.0,
                    "--preference-label-smoothing: needs --preference-loss robust");
  TANDEM_USER_CHECK(preference.loss == "kto" || (preference.desirable_weight == none.desirable_weight &&
                                                 preference.undesirable_weight == none.undesirable_weight),
                    "--desirable-weight and --undesirable-weight: need --preference-loss kto");
  TANDEM_USER_CHECK(preference.loss != "kto" || global_batch_size > 1,
                    "--preference-loss kto: needs a --global-batch-size of at least 2, whose answers it compares");
  TANDEM_USER_CHECK(num_rollout.has_value() != num_epoch.has_value(),
                    "--num-rollout or --num-epoch: give one of them, it is the length of the run");
  TANDEM_USER_CHECK(eval_interval.has_value() == !eval.eval_prompt_data.empty(),
                    eval_interval ? "--eval-interval: needs --eval-prompt-data NAME FILE.jsonl"
                                  : "--eval-prompt-data: needs --eval-interval, or nothing would be evaluated");
  eval.data_sets();
  data.check();
  optimizer.check();
  lora.check();
  mesh.check(model.device);
  checkpoints.check();
}

data::Answers SftConfig::answers() const {
  if (!preference.is_on()) return data::Answers::kToImitate;
  return preference.takes_pairs() ? data::Answers::kPairs : data::Answers::kLabelled;
}

int64_t SftConfig::steps(int64_t num_samples, const RunProgress& done) const {
  if (num_rollout) return *num_rollout;
  const int64_t steps = done.rollouts_for(*num_epoch * num_samples, global_batch_size);
  TANDEM_USER_CHECK(steps > 0 || done.rollouts > 0,
                    fmt::format("--num-epoch {}: {} samples are fewer than one step of --global-batch-size {}; "
                                "lower it, or give --num-rollout",
                                *num_epoch, num_samples, global_batch_size));
  return steps;
}

int64_t SftConfig::left_out_by_epochs(int64_t num_samples, const RunProgress& done) const {
  return num_epoch ? done.records_left(*num_epoch * num_samples) % global_batch_size : 0;
}

}  // namespace tandem::config
