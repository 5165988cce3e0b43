#include "config/train_config.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "base/size.h"
#include "rl/losses.h"

namespace tandem::config {

namespace {

// This keeps the optimizer steps of a run within 64 bits.
constexpr int64_t kMaxEpochsPerRollout = 1000;

// Returns the divisors of `number` next to `value`, as "2 or 4"; `value` is no divisor.
std::string nearest_divisors(int64_t number, int64_t value) {
  int64_t below = 1, above = number;
  for (int64_t small = 1; small <= number / small; ++small) {
    if (number % small != 0) continue;
    for (const int64_t divisor : {small, number / small}) {
      if (divisor < value) below = std::max(below, divisor);
      if (divisor > value) above = std::min(above, divisor);
    }
  }
  return value > number ? std::to_string(number) : fmt::format("{} or {}", below, above);
}

}  // namespace

// The default estimator compares the completions of a prompt.
TrainConfig::TrainConfig() { rollout.n_samples_per_prompt = 8; }

void TrainConfig::visit(options::Options& options) {
  model.visit(options);
  data.visit_prompt_data(options,
                         "JSONL or Parquet files, one prompt a line or row; FILE@[a:b] takes rows a to b of it");
  data.visit_prompt_data_weights(options);
  data.visit(options);
  const char* const loop = "loop";
  options
      .option(colocate, "colocate", loop,
              "let trainer and engine take turns on each device; without it --rollout-num-gpus others sample")
      .does_not_affect_results();
  options.option(allow_inexact, "allow-inexact", "device",
                 "train on a device whose rows `tandem device --check` does not find exact: the trainer scores old "
                 "log-probs, --use-tis is on, and every record says so; without it such a device is refused");
  options.option(rollout_batch_size, "rollout-batch-size", loop, "prompts of one rollout")
      .required()
      .at_least(1)
      .at_most(base::kMaxCount);
  options.option(num_rollout, "num-rollout", loop, "rollouts of the run; this or --num-epoch")
      .at_least(0)
      .at_most(base::kMaxCount)
      .does_not_affect_results();
  options.option(num_epoch, "num-epoch", loop, "passes over the data; this or --num-rollout")
      .at_least(1)
      .at_most(base::kMaxCount)
      .does_not_affect_results();
  options
      .option(global_batch_size, "global-batch-size", loop,
              "samples of one optimizer step; unset: all samples of a rollout")
      .at_least(1)
      .at_most(base::kMaxCount);
  options
      .option(num_steps_per_rollout, "num-steps-per-rollout", loop,
              "optimizer steps of one pass over a rollout, another way to say --global-batch-size")
      .at_least(1)
      .at_most(base::kMaxCount);
  options
      .option(num_epochs_per_rollout, "num-epochs-per-rollout", loop,
              "passes of the optimizer over the samples of a rollout, in the same order (TRL's num_iterations)")
      .at_least(1)
      .at_most(kMaxEpochsPerRollout);
  options.option(rollout_shuffle, "rollout-shuffle", loop, "shuffle the prompts in each epoch, from --rollout-seed");
  dynamic_sampling.visit(options);
  options
      .option(over_sampling_batch_size, "over-sampling-batch-size", loop,
              "groups that are kept or still sampled at once while a filter looks for --rollout-batch-size of them, or "
              "with --partial-rollout: that have begun and are not trained on yet; more wait less for the last ones, "
              "and waste more or train on older samples; unset: --rollout-batch-size, twice that with "
              "--partial-rollout")
      .at_least(1)
      .at_most(base::kMaxCount)
      .does_not_affect_results();  // but with --partial-rollout: checkpoint/result_inputs.h
  async.visit(options);
  options
      .option(load_debug_rollout_data, "load-debug-rollout-data", loop,
              "train on rollouts that --save-debug-rollout-data (or a stop, into RUN/fault) wrote, instead of sampling")
      .path();
  rollout.visit(options);
  custom_generate.visit(options);
  reward.visit(options);
  loss.visit(options);
  optimizer.visit(options);
  lora.visit(options);
  memory.visit(options);
  mesh.visit(options);
  eval.visit(options);
  const char* const evaluation = "evaluation";
  options
      .option(eval_interval, "eval-interval", evaluation,
              "rollouts between evaluations; there is one before the first rollout and one at the end too")
      .at_least(1)
      .at_most(base::kMaxCount)
      .does_not_affect_results();
  options.option(skip_eval_before_train, "skip-eval-before-train", evaluation, "no evaluation before the first rollout")
      .does_not_affect_results()
      .used_if([this] { return eval.given(); }, "--eval-prompt-data or --eval-config");
  output.visit(options);
  checkpoints.visit(options);
}

void TrainConfig::check() const {
  mesh.check_rollout(colocate);
  TANDEM_USER_CHECK(colocate || load_debug_rollout_data.empty(),
                    "--load-debug-rollout-data: nothing is sampled; give --colocate instead of --rollout-num-gpus");
  TANDEM_USER_CHECK(num_rollout.has_value() != num_epoch.has_value(),
                    "--num-rollout or --num-epoch: give one of them, it is the length of the run");
  data.check();
  reward.check();
  TANDEM_USER_CHECK(!reward.rm_model.empty() || !memory.offload_rm_model,
                    "--offload-rm-model: there is no reward model without --rm-model; leave it out");
  custom_generate.check();
  TANDEM_USER_CHECK(!mesh.rollout_expert_parallel || !custom_generate.is_on(),
                    "--rollout-expert-parallel with --custom-generate-function-path: the devices decode in step, and "
                    "would wait for each other's turns; leave one of the two out");
  check_groups_in_flight();
  check_dynamic_sampling();
  loss.check();
  check_async();
  lora.check();
  TANDEM_USER_CHECK(
      !lora.rank || loss.ref_load.empty() || !loss.ref_update_interval,
      "--ref-update-interval with --ref-load and --lora-rank: the reference would have to change from other "
      "weights to an adapter; leave one of the three out");
  TANDEM_USER_CHECK(loss.loss.reward_aggregation == "sum_then_normalize" || reward.failure_reward == "lowest" ||
                        reward.failure_reward == "drop",
                    fmt::format("--multi-objective-aggregation normalize_then_sum and --rm-failure-reward {}: is the "
                                "sum of rewards that are not summed; give lowest or drop",
                                reward.failure_reward));
  check_distillation();
  check_given_answers();
  TANDEM_USER_CHECK(loss.loss.overlong_buffer_tokens <= rollout.response_len(),
                    fmt::format("--overlong-buffer-len {}: is longer than --rollout-max-response-len {}; lower it",
                                loss.loss.overlong_buffer_tokens, rollout.response_len()));
  optimizer.check();
  mesh.check(model.device);
  checkpoints.check();
  const int64_t n = rollout.n_samples_per_prompt;
  TANDEM_USER_CHECK(
      n > 1 || !rl::find_estimator(loss.loss).needs_group || loss.loss.disable_rewards_normalization ||
          !loss.custom_advantage_path.empty() || (loss.loss.opd.is_on && !loss.loss.opd.use_task_rewards),
      fmt::format("--n-samples-per-prompt 1: --advantage-estimator {} compares the completions of a prompt; "
                  "give 2 or more, or --disable-rewards-normalization{}",
                  loss.loss.advantage_estimator,
                  loss.loss.opd.is_on ? ", or --no-opd-use-task-rewards to learn from the teacher alone" : ""));
  TANDEM_USER_CHECK(rollout.temperature > 0.0,
                    "--rollout-temperature 0: greedy completions of a group are all the same; give more than 0");
  check_samples(num_rollout.value_or(1));
  check_steps();
  TANDEM_USER_CHECK(!eval_interval || eval.given(), "--eval-interval: needs --eval-prompt-data NAME FILE.jsonl");
  TANDEM_USER_CHECK(!eval.given() || eval_interval,
                    fmt::format("{}: needs --eval-interval, or nothing would be evaluated",
                                eval.eval_config.empty() ? "--eval-prompt-data" : "--eval-config"));
  TANDEM_USER_CHECK(output.save_best.empty() || eval.given(),
                    "--save-best: needs evaluations; give --eval-prompt-data NAME FILE.jsonl and --eval-interval");
  eval.data_sets();
  reward.check_key("--eval-reward-key", eval.reward_key.value_or(""));
}

void TrainConfig::check_shape() const {
  mesh.check_rollout(colocate || !mesh.rollout_num_gpus);
  mesh.check(model.device);
  if (rollout_batch_size == 0) return;  // not given
  check_samples(1);
  check_steps();
}

void TrainConfig::check_steps() const {
  const int64_t samples = samples_per_rollout();
  TANDEM_USER_CHECK(
      !global_batch_size || !num_steps_per_rollout || *global_batch_size * *num_steps_per_rollout == samples,
      fmt::format("--global-batch-size {} and --num-steps-per-rollout {}: a rollout has {} samples; "
                  "give one of the two",
                  global_batch_size.value_or(0), num_steps_per_rollout.value_or(0), samples));
  const auto check_divides = [&](const char* flag, std::optional<int64_t> value) {
    if (!value || samples % *value == 0) return;
    throw UserError(fmt::format(
        "--{} {}: does not divide the {} samples of a rollout (--rollout-batch-size {} x --n-samples-per-prompt {}); "
        "give {}",
        flag, *value, samples, rollout_batch_size, rollout.n_samples_per_prompt, nearest_divisors(samples, *value)));
  };
  check_divides("global-batch-size", global_batch_size);
  check_divides("num-steps-per-rollout", num_steps_per_rollout);
}

void TrainConfig::check_groups_in_flight() const {
  const int64_t at_once = groups_at_once();
  TANDEM_USER_CHECK(at_once >= rollout_batch_size,
                    fmt::format("--over-sampling-batch-size {}: a rollout needs --rollout-batch-size {} groups; give "
                                "as many or more",
                                at_once, rollout_batch_size));
  TANDEM_USER_CHECK(dynamic_sampling.is_on() || keeps_groups() || at_once == rollout_batch_size,
                    fmt::format("--over-sampling-batch-size {}: needs --dynamic-sampling-filter-path or "
                                "--partial-rollout; groups are taken in the order of the data, so without them the "
                                "others would be thrown away",
                                at_once));
}

void TrainConfig::check_distillation() const {
  TANDEM_USER_CHECK(!loss.loss.opd.has_loss() || mesh.tensor_model_parallel_size == 1,
                    fmt::format("--opd-loss-coef and --tensor-model-parallel-size {}: a distribution over the whole "
                                "vocabulary is not spread over devices in this version; leave one out (--opd-kl-coef "
                                "goes with both)",
                                mesh.tensor_model_parallel_size));
  TANDEM_USER_CHECK(loss.loss.opd.is_on || !memory.offload_teacher,
                    "--offload-teacher: there is no teacher without --use-opd; leave it out");
  TANDEM_USER_CHECK(loss.opd_teacher_key.empty() || load_debug_rollout_data.empty(),
                    "--opd-teacher-key and --load-debug-rollout-data: the files do not say which teacher a sample has; "
                    "leave one out");
}

void TrainConfig::check_given_answers() const {
  if (!loss.loss.opd.has_given_answers()) return;
  const auto refuse = [&](bool is_given, const std::string& flag, const std::string& why) {
    TANDEM_USER_CHECK(!is_given, fmt::format("--opd-on-policy-share {:g} and {}: {}; leave one out",
                                             loss.loss.opd.on_policy_share, flag, why));
  };
  refuse(rollout.n_samples_per_prompt > 1, fmt::format("--n-samples-per-prompt {}", rollout.n_samples_per_prompt),
         "a line gives one answer");
  refuse(dynamic_sampling.is_on(), "--dynamic-sampling-filter-path", "a given answer has no reward that is judged");
  refuse(keeps_groups(), "--partial-rollout or --max-weight-staleness",
         "given answers are of no weights, and no group of them is in flight");
  refuse(custom_generate.is_on(), "--custom-generate-function-path", "a line gives the text of one answer, not turns");
  refuse(!load_debug_rollout_data.empty(), "--load-debug-rollout-data", "rollouts of files are trained on as they are");
}

void TrainConfig::check_async() const {
  async.check(colocate, rollout_batch_size, groups_at_once(), loss.loss);
  TANDEM_USER_CHECK(keeps_groups() || !loss.loss.mask_off_policy || !load_debug_rollout_data.empty(),
                    "--mask-offpolicy-in-partial-rollout: needs --partial-rollout; without it all tokens are of the "
                    "newest weights");
  TANDEM_USER_CHECK(!async.partial_rollout || !custom_generate.is_on(),
                    "--partial-rollout and --custom-generate-function-path: what a function is about cannot be kept "
                    "until the next rollout; leave one out. With --max-weight-staleness and --rollout-num-gpus alone "
                    "functions run while the run trains, and new weights wait for those in flight");
  TANDEM_USER_CHECK(async.replay_schedule.empty() || !custom_generate.is_on(),
                    "--replay-schedule and --custom-generate-function-path: a schedule does not say what a function "
                    "did; leave one out");
  TANDEM_USER_CHECK(!async.partial_rollout || load_debug_rollout_data.empty(),
                    "--partial-rollout and --load-debug-rollout-data: rollouts of files are trained on as they are; "
                    "leave one out");
}

void TrainConfig::check_dynamic_sampling() const {
  dynamic_sampling.check(rollout_batch_size);
  if (!dynamic_sampling.is_on()) return;
  const std::string flag = "--dynamic-sampling-filter-path " + dynamic_sampling.filter_path;
  TANDEM_USER_CHECK(
      reward.rm_model.empty(),
      fmt::format("--rm-model and {}: a filter judges groups while others are sampled, and a reward model "
                  "scores a rollout once it is whole; leave one out",
                  flag));
  TANDEM_USER_CHECK(!num_epoch, fmt::format("--num-epoch and {}: how many rollouts a pass over the data fills depends "
                                            "on what the filter keeps; give --num-rollout",
                                            flag));
  TANDEM_USER_CHECK(load_debug_rollout_data.empty(),
                    fmt::format("{} and --load-debug-rollout-data: rollouts of files are trained on as they are; leave "
                                "one out",
                                flag));
  TANDEM_USER_CHECK(
      rollout.n_samples_per_prompt > 1 || !dynamic_sampling.is_built_in(),
      fmt::format("{}: rewards of a group with --n-samples-per-prompt 1 cannot differ; give 2 or more", flag));
}

void TrainConfig::check_samples(int64_t num_rollouts) const {
  const int64_t samples = samples_per_rollout();
  TANDEM_USER_CHECK(
      num_rollouts <= kMaxSamples / samples,
      fmt::format("--rollout-batch-size {} x --n-samples-per-prompt {} in {} rollouts{}: a run has at most "
                  "{} samples; lower one of them",
                  rollout_batch_size, rollout.n_samples_per_prompt, num_rollouts,
                  num_epoch ? fmt::format(" (--num-epoch {})", *num_epoch) : "", kMaxSamples));
}

rl::LossConfig TrainConfig::loss_config() const {
  rl::LossConfig config = loss.loss;
  config.max_response_tokens = rollout.response_len();
  if (config.loss_norm_tokens == 0.0) config.loss_norm_tokens = static_cast<double>(config.max_response_tokens);
  return config;
}

int64_t TrainConfig::samples_at_once() const { return base::Size(groups_at_once()) * rollout.n_samples_per_prompt; }

int64_t TrainConfig::samples_per_step() const {
  if (global_batch_size) return *global_batch_size;
  return samples_per_rollout() / num_steps_per_rollout.value_or(1);
}

int64_t TrainConfig::rollouts(int64_t num_prompts, const RunProgress& done) const {
  if (num_rollout) return *num_rollout;
  const int64_t count = done.rollouts_for(*num_epoch * num_prompts, rollout_batch_size);
  TANDEM_USER_CHECK(count > 0 || done.rollouts > 0,
                    fmt::format("--num-epoch {}: {} prompts are fewer than one rollout of "
                                "--rollout-batch-size {}; lower it, or give --num-rollout",
                                *num_epoch, num_prompts, rollout_batch_size));
  check_samples(count);
  return count;
}

std::string TrainConfig::left_out_by_epochs(int64_t num_prompts, const RunProgress& done) const {
  const int64_t left = num_epoch ? done.records_left(*num_epoch * num_prompts) % rollout_batch_size : 0;
  if (left <= 0) return "";
  return fmt::format(
      "--num-epoch {}: {} prompts fill {} rollouts of --rollout-batch-size {}; the last {} of the last "
      "epoch {} left out",
      *num_epoch, num_prompts, rollouts(num_prompts, done), rollout_batch_size, left, left == 1 ? "is" : "are");
}

}  // namespace tandem::config
