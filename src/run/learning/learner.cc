#include "run/learning/learner.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/message_text.h"
#include "evaluation/rollout_metrics.h"
#include "rl/advantages.h"
#include "rl/losses.h"
#include "rl/reward_shaping.h"
#include "run/health_settings.h"
#include "run/training_traffic.h"
#include "session/ranks.h"
#include "session/read_reward_model.h"
#include "session/stop_signal.h"
#include "session/trainer_setup.h"

namespace tandem::run {

namespace {

using base::Clock;
using base::seconds_since;

rl::HealthSettings health_settings(const TrainInputs& inputs) {
  rl::HealthSettings settings = signal_settings(inputs.config, inputs.session.config(), inputs.prompts,
                                                inputs.num_rollouts, inputs.steps_before(inputs.num_rollouts));
  if (inputs.checkpoint) settings.differed_until = checkpoint::read_state(*inputs.checkpoint).rewards_differed_until;
  return settings;
}

// Returns what each of several rewards gave, for --multi-objective-aggregation; nothing where there is one reward.
// Throws UserError for a rollout that was read from a file and lacks some of them.
rl::RewardParts reward_parts(const config::RewardOptions& options, const sampling::Rollout& rollout) {
  const std::vector<config::RewardOptions::Source> sources = options.sources();
  if (sources.size() < 2) return {};
  rl::RewardParts parts;
  for (const config::RewardOptions::Source& source : sources) parts.weights.push_back(source.weight);
  for (size_t i = 0; i < rollout.samples.size(); ++i) {
    std::vector<std::optional<double>>& values = parts.values.emplace_back();
    for (const config::RewardOptions::Source& source : sources) {
      const std::vector<reward::RewardPart>& known = rollout.grades.at(i).parts;
      const auto part = std::ranges::find(known, source.name, &reward::RewardPart::name);
      TANDEM_USER_CHECK(part != known.end() || rollout.samples[i].grading_failed,
                        fmt::format("--multi-objective-aggregation normalize_then_sum: sample {} of "
                                    "--load-debug-rollout-data has no reward {}; give a rollout with all rewards",
                                    rollout.samples[i].sample_id, source.name));
      values.push_back(part == known.end() ? std::nullopt : part->reward);
    }
  }
  return parts;
}

}  // namespace

Learner::Learner(TrainInputs& inputs, session::RunMemory& memory)
    : inputs_(inputs),
      ranks_(session::training_ranks(*inputs.mesh)),
      health_(health_settings(inputs)),
      model_(inputs.session.make_model(plan::model_in_training(inputs.config, inputs.session.config()),
                                       inputs.session.view())) {
  const session::ModelSession& session = inputs.session;
  const config::MemoryOptions& options = inputs.config.memory;
  if (inputs.config.loss.needs_reference()) {
    const config::LossOptions& loss = inputs.config.loss;
    reference_.emplace(session,
                       Reference::Options{.directory = loss.ref_load,
                                          .follows_policy = loss.ref_update_interval.has_value(),
                                          .mixup_alpha = loss.ref_mixup_alpha,
                                          .is_offloaded = options.offloads_reference(),
                                          .sequence_parallel = inputs.config.mesh.sequence_parallel},
                       inputs.checkpoint, memory);
  }
  if (!inputs.config.loss.custom_advantage_path.empty()) custom_advantages_.emplace(inputs);
  if (inputs.config.loss.loss.opd.is_on) teachers_.emplace(inputs, memory);
  if (const std::optional<model::ModelConfig> judge =
          session::read_reward_model(inputs.config.reward, inputs.session.config())) {
    reward_model_.emplace(
        inputs.config.reward, inputs.config.data, inputs.session,
        RewardModel::Settings{.is_offloaded = options.offloads_rm_model(),
                              .sequence_parallel = inputs.config.mesh.sequence_parallel,
                              .max_tokens = plan::reward_model_tokens(*judge, inputs.plan.context_tokens),
                              .batch = inputs.trainer.batch},
        &memory);
  }
  std::optional<trainer::OptimizerOffload> offload;
  if (options.offloads_optimizer()) {
    optimizer_memory_ = memory.make_host();
    offload.emplace(*optimizer_memory_, memory.synchronize());
  }
  trainer::TrainerConfig config = inputs.trainer;
  config.abandon = [grace = inputs.config.checkpoints.stop_grace_seconds] {
    return session::seconds_since_stop() > grace;
  };
  trainer_ = trainer::make_trainer(config, session.trained(), *model_, offload, ranks_,
                                   teachers_ ? teachers_->teacher_of() : trainer::TeacherOf());
  session::account_optimizer(session, *trainer_, offload.has_value(), ranks_.size(), memory);
}

void Learner::score_rewards(int64_t rollout_id, sampling::Rollout& rollout, RunLog& log) {
  if (!reward_model_ || !rollout.is_sampled) return;
  const Clock::time_point begin = Clock::now();
  const int64_t num_failed = rollout.num_failed;
  reward_model_->score(inputs_.config.reward, inputs_.prompts, rollout, ranks_);
  if (rollout.num_failed > num_failed && inputs_.mesh->is_conductor()) {
    const int64_t num_new = rollout.num_failed - num_failed;
    base::log_warning("rollout {}: {} {} no score of --rm-model; the first failure: {}", rollout_id + 1,
                      base::counted(num_new, "sample"), num_new == 1 ? "has" : "have", rollout.first_failure);
  }
  log.add({{"perf/rm_model_time", seconds_since(begin)}});
}

void Learner::score_evaluation(const config::RewardOptions& options, const session::PromptSet& prompts,
                               sampling::Rollout& rollout) {
  if (!options.rm_model.empty()) reward_model_.value().score(options, prompts, rollout, ranks_);
}

void Learner::score_reference(sampling::Rollout& rollout, RunLog& log) {
  if (!reference_) return;
  const Clock::time_point begin = Clock::now();
  trainer::Scores scores =
      reference_->score(rollout.views(), inputs_.trainer.batch, inputs_.trainer.temperature, ranks_);
  for (size_t i = 0; i < rollout.samples.size(); ++i) {
    rollout.samples[i].ref_logprobs = std::move(scores.logprobs[i]);
  }
  log.add({{"perf/ref_log_probs_time", seconds_since(begin)}});
}

void Learner::mask_older_tokens(sampling::Rollout& rollout) const {
  rl::mask_older_tokens(inputs_.trainer.loss, trained_version(rollout), rollout.samples);
}

bool Learner::score_teachers(sampling::Rollout& rollout, RunLog& log) {
  if (!teachers_) return true;
  const Clock::time_point begin = Clock::now();
  const std::optional<report::Metrics> metrics = teachers_->score(rollout.samples, ranks_);
  if (!metrics) return false;
  log.add(*metrics);
  log.add({{"perf/teacher_log_probs_time", seconds_since(begin)}});
  return true;
}

void Learner::assign_advantages(int64_t rollout_id, sampling::Rollout& rollout, RunLog& log) {
  const Clock::time_point begin = Clock::now();
  const rl::LossConfig& loss = inputs_.trainer.loss;
  rl::remove_truncated(loss, rollout.samples);
  const bool has_parts = loss.reward_aggregation == "normalize_then_sum";
  const rl::AdvantageParts parts = rl::assign_advantages(
      loss, rollout.samples, has_parts ? reward_parts(inputs_.config.reward, rollout) : rl::RewardParts());
  if (custom_advantages_) custom_advantages_->assign(rollout_id, rollout, log);
  evaluation::warn_of_large_rewards(rollout, rollout_id);
  const bool per_token = rl::loss_aggregation(loss) == rl::Aggregation::kTokenMean;
  std::optional<config::PassRule> pass;
  if (inputs_.config.output.log_passrate) pass = inputs_.config.reward.pass_rule();
  // Whole distributions of a teacher train every token, whatever its advantage is.
  const rl::SignalOf signal = loss.opd.has_loss() ? rl::SignalOf::kEveryTrainedToken : rl::SignalOf::kAdvantages;
  log.add(evaluation::rollout_report(rollout, per_token, pass, signal, loss.count_removed_samples));
  for (const auto& [name, value] : rl::shaping_metrics(loss, rollout.views(), per_token)) {
    log.add({{"rollout/" + name, value}});
  }
  if (loss.opd.is_on) log.add({{"rollout/opd_advantage_share", parts.teacher_share()}});
  if (loss.opd.has_given_answers()) {
    const auto num_given = std::ranges::count(rollout.samples, true, &rl::Sample::is_given);
    log.add({{"rollout/opd_off_policy_share",
              static_cast<double>(num_given) / static_cast<double>(rollout.samples.size())}});
  }
  log.add(health_.observe_rollout(
      rollout_id, rollout.views(),
      {.causes = evaluation::failure_causes(rollout), .advantages_failed = !rollout.advantage_failure.empty()}));
  if (rollout.filtered) {
    log.add(health_.observe_filter(rollout_id, {.num_sampled = rollout.filtered->num_groups,
                                                .num_kept = rollout.filtered->num_kept,
                                                .num_wanted = rollout.filtered->num_wanted}));
  }
  log.add({{"perf/data_preprocess_time", seconds_since(begin)}});
}

// Returns whether the engine's log-probs are those of a forward here with the same weights, bit for bit.
bool Learner::has_exact_logprobs(const sampling::Rollout& rollout) const {
  return rollout.is_sampled && !inputs_.config.is_inexact_device;
}

void Learner::score_proximal(sampling::Rollout& rollout, int64_t num_steps, uint64_t version, RunLog& log) {
  const rl::LossConfig& loss = inputs_.trainer.loss;
  // The first step's forward gives these log-probs by itself, unless the step's counts depend on them.
  const bool counts_depend = loss.use_tis && loss.tis_mode == "reject";
  if (loss.old_logprobs != "proximal" || (num_steps == 1 && !counts_depend)) return;
  const Clock::time_point begin = Clock::now();
  std::vector<rl::Sample*> scored;
  for (rl::Sample& sample : rollout.samples) {
    if (has_exact_logprobs(rollout) && sample.first_token_of(version) == 0) {
      sample.proximal_logprobs = sample.rollout_logprobs;  // a forward would give the same bits
    } else if (!sample.is_given) {
      scored.push_back(&sample);
    }
  }
  if (scored.empty()) return;
  trainer::Scores scores = trainer::score(*model_, {scored.begin(), scored.end()}, inputs_.trainer.batch,
                                          inputs_.trainer.temperature, ranks_);
  for (size_t i = 0; i < scored.size(); ++i) scored[i]->proximal_logprobs = std::move(scores.logprobs[i]);
  log.add({{"perf/log_probs_time", seconds_since(begin)}});
}

std::optional<report::Metrics> Learner::optimizer_steps(int64_t rollout_id, sampling::Rollout& rollout,
                                                        Patience& patience, RunLog& log) {
  const Clock::time_point begin = Clock::now();
  const TrainingTraffic traffic(*inputs_.mesh);
  const config::TrainConfig& config = inputs_.config;
  const std::vector<const rl::Sample*> samples = rollout.views();
  report::Metrics last;
  double tokens = 0.0, flops = 0.0;
  const model::ModelConfig whole = model::whole_of(inputs_.session.config());
  try {
    const int64_t num_samples = std::ssize(samples);
    // If a filter kept too few groups, the fewer samples are divided equally among the steps.
    const int64_t per_epoch = std::min(config.steps_per_epoch(), num_samples);
    const int64_t num_steps = per_epoch * config.num_epochs_per_rollout;
    const uint64_t version = trained_version(rollout);
    score_proximal(rollout, num_steps, version, log);
    Teachers::OnDeviceScope teachers_here;
    if (inputs_.trainer.loss.opd.has_loss()) teachers_->bring(teachers_here);
    for (int64_t k = 0; k < num_steps; ++k) {
      log.report().progress(fmt::format("train {}/{}", rollout_id + 1, inputs_.num_rollouts), k, num_steps, "steps");
      const int64_t share = k % per_epoch;
      const std::vector<const rl::Sample*> batch(samples.begin() + share * num_samples / per_epoch,
                                                 samples.begin() + (share + 1) * num_samples / per_epoch);
      const bool is_first = k == 0 && has_exact_logprobs(rollout);
      last = optimizer_step(trainer_->progress().steps, batch, is_first, version, log);
      patience.observe_step(rollout_id, last, rollout, log);
      flops += session::training_flops(whole, batch);
    }
  } catch (const trainer::StepAbandoned&) {
    trainer_->end_phase();
    return std::nullopt;
  }
  for (const rl::Sample* sample : samples) {
    tokens += static_cast<double>(sample->num_tokens() * config.num_epochs_per_rollout);
  }
  const double seconds = std::max(seconds_since(begin), 1e-9);
  log.add({{"perf/actor_train_time", seconds},
           {"perf/actor_train_tok_per_s", tokens / seconds},
           {"perf/actor_train_tflops", flops / seconds * 1e-12 / inputs_.mesh->size()}});
  log.add(traffic.metrics());
  trainer_->end_phase();
  return last;
}

void Learner::update_reference(int64_t num_finished, RunLog& log) {
  const std::optional<int64_t> interval = inputs_.config.loss.ref_update_interval;
  if (!interval || num_finished % *interval != 0) return;
  const Clock::time_point begin = Clock::now();
  reference_->follow_policy(num_finished);
  log.add({{"perf/ref_model_update_time", seconds_since(begin)}});
}

void Learner::save(checkpoint::RunState& state, std::vector<checkpoint::SavedTensor>& tensors) const {
  state.rewards_differed_until = health_.differed_until();
  if (custom_advantages_) custom_advantages_->save(state);
  if (!reference_) return;
  std::vector<checkpoint::SavedTensor> of_reference;
  reference_->save(state, of_reference);
  // Every replica has all of the reference, and one saves it.
  if (inputs_.mesh->data().rank() == 0) std::ranges::move(of_reference, std::back_inserter(tensors));
}

uint64_t Learner::trained_version(const sampling::Rollout& rollout) const {
  if (rollout.is_sampled) return inputs_.session.trained().version();
  uint64_t newest = 0;
  for (const rl::Sample& sample : rollout.samples) {
    if (!sample.versions.empty()) newest = std::max(newest, sample.versions.back().version);
  }
  return newest;
}

report::Metrics Learner::optimizer_step(int64_t step, const std::vector<const rl::Sample*>& batch, bool is_on_policy,
                                        uint64_t version, RunLog& log) {
  const trainer::Metrics raw = trainer_->step(
      batch, is_on_policy ? trainer::RolloutLogprobs::kOfTheseWeights : trainer::RolloutLogprobs::kOfOtherWeights,
      inputs_.config.is_inexact_device ? std::nullopt : std::optional(version));
  report::Metrics metrics = health_.observe_step(step, batch, raw.at("lr"));
  metrics.merge(session::recorded(raw));
  if (inputs_.config.is_inexact_device) metrics["train/inexact_device"] = 1.0;
  metrics["train/global_batch_size"] = static_cast<double>(batch.size());
  metrics["fault/skipped_steps"] = metrics["train/step_skipped"];
  log.report().log("train", step, metrics);
  return metrics;
}

}  // namespace tandem::run
