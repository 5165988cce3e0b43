#include "run/colocate.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "base/files.h"
#include "base/log.h"
#include "base/message_text.h"
#include "device/registry.h"
#include "rl/advantages.h"
#include "rl/losses.h"
#include "rl/metrics.h"
#include "rl/prompt_order.h"
#include "rl/prompts.h"
#include "run/checkpoints.h"
#include "run/evaluation.h"
#include "run/patience.h"
#include "run/plan_report.h"
#include "run/reference.h"
#include "run/resume.h"
#include "run/rollout_file.h"
#include "run/rollout_phase.h"
#include "run/run_directory.h"
#include "run/run_memory.h"
#include "run/run_saver.h"
#include "run/samples.h"
#include "run/session.h"
#include "run/signal_settings.h"
#include "run/start_checks.h"
#include "run/step_line.h"
#include "run/stop_signal.h"
#include "run/train_warnings.h"
#include "run/trainer_setup.h"
#include "weights/not_finite.h"

namespace tandem::run {

namespace {

using base::Clock;
using base::seconds_since;

class ColocatedRun {
 public:
  // Checks all that can be checked without reading weights or writing a byte.
  ColocatedRun(const TrainConfig& config, const RunMode& mode);

  void say_plan() const;
  int run();

 private:
  void start();
  void loop();
  void evaluate(int64_t step);
  std::optional<RunState> state() const;
  int64_t go_on();
  std::optional<Rollout> generate();
  void score_reference(Rollout& rollout, Metrics& metrics);
  void assign_advantages(Rollout& rollout, Metrics& metrics);
  Metrics train(const Rollout& rollout, Metrics& metrics);
  void dump(const Rollout& rollout, const std::string& path, SampleDetail detail);

  TrainConfig config_;
  RunMode mode_;
  Session session_;
  PromptSet prompts_;
  Evaluation evaluation_;
  rl::PromptOrder order_;
  int64_t num_rollouts_;
  TrainPlan plan_;
  trainer::TrainerConfig trainer_config_;
  std::optional<Checkpoint> checkpoint_;        // to go on from
  std::map<std::string, std::string> numbers_;  // what results depend on
  rl::SignalWatch signal_watch_;
  RunSpace space_;  // on disk
  RunDirectory directory_;
  Patience patience_;

  std::unique_ptr<Report> report_;
  std::unique_ptr<text::Graders> graders_;
  std::unique_ptr<RunMemory> memory_;
  std::unique_ptr<model::Model> engine_model_, trainer_model_;
  std::unique_ptr<Reference> reference_;
  std::unique_ptr<device::HostMemory> optimizer_memory_;  // of --offload-optimizer
  std::unique_ptr<rollout::Engine> engine_;
  std::unique_ptr<trainer::Trainer> trainer_;
  std::unique_ptr<RolloutPhase> phase_;
  std::unique_ptr<RunSaver> saver_;
  int64_t rollout_id_ = 0;       // rollouts that are finished
  int64_t first_rollout_ = 0;    // of this process: finished before it began
  rl::PromptCursor cursor_;      // behind them
  bool between_steps_ = true;    // weights and cursor are those of rollout_id_
  bool evaluation_due_ = false;  // a signal ended it
  double waited_s_ = 0.0;        // since the last training: rollout, evaluation, checkpoint
  Metrics carried_;              // perf/* of what followed a rollout's record: in the next one
};

TrainConfig checked(TrainConfig config) {
  config.check();
  return config;
}

PlanFacts plan_facts(const PromptSet& prompts, const Evaluation& evaluation, const model::ModelConfig& model) {
  PlanFacts facts{.longest_prompt = prompts.longest_tokens, .eval_sequences = evaluation.max_sequences()};
  if (!evaluation.empty()) {
    facts.eval_context_tokens = choose_context_tokens(evaluation.rollout(), model, evaluation.longest_prompt());
  }
  return facts;
}

ColocatedRun::ColocatedRun(const TrainConfig& config, const RunMode& mode)
    : config_(checked(config)),
      mode_(mode),
      session_(config.model),
      prompts_(load_prompts(config.reward.data(config.data), session_.text())),
      evaluation_(config.eval, config.rollout, config.data, config.reward, session_.text()),
      order_(static_cast<int64_t>(prompts_.prompts.size()), config.rollout_shuffle,
             static_cast<uint64_t>(config.rollout.rollout_seed)),
      num_rollouts_(config.rollouts(static_cast<int64_t>(prompts_.prompts.size()))),
      plan_(fitting_plan(config_, session_.config(), plan_facts(prompts_, evaluation_, session_.config()),
                         device_memory(config_, device::device_bytes(device::parse_device(config.model.device))))),
      trainer_config_(trainer_config(config_, session_.config().num_layers, num_rollouts_)),
      checkpoint_(config.checkpoints.open()),
      signal_watch_(signal_settings(config_, session_.config(), prompts_, num_rollouts_ * config_.steps_per_rollout())),
      space_(run_space(session_, config_, prompts_, num_rollouts_, checkpoint_ ? checkpoint_->step() : 0)),
      directory_(config.output.save, config.checkpoints.run_folder(config.output.save, config.output.overwrite),
                 space_.bytes(), space_.what_for()),
      patience_(config_.checkpoints, directory_, [this] { return weights::describe_not_finite(session_.store()); }) {
  config.reward.try_out(reward_context(config.data, mode));
  check_start(config_, session_, prompts_);
  // Once: an input that is edited while the run goes on is another one.
  numbers_ = run_numbers(mode, session_, trainer_config_, config.data.prompt_data, config.reward.custom_rm_path);
  if (checkpoint_) {
    check_goes_on(*checkpoint_, numbers_, config.checkpoints.allow_changed_config,
                  static_cast<int64_t>(prompts_.prompts.size()));
  }
  for (const std::string& warning : train_warnings(config)) base::log_warning("{}", warning);
}

void ColocatedRun::say_plan() const {
  session_.check_weights();
  Report report(nullptr, {});
  report.line(fmt::format("model: {} parameters in {}, {} layers, context {}", session_.config().num_parameters(),
                          model::to_string(session_.config().dtype), session_.config().num_layers,
                          session_.config().max_positions));
  report.line(
      fmt::format("data: {} prompts, the longest of {} tokens", prompts_.prompts.size(), prompts_.longest_tokens));
  report.line(fmt::format("run: {} rollouts of {} x {} samples, {} optimizer steps of {} samples each", num_rollouts_,
                          config_.rollout_batch_size, config_.rollout.n_samples_per_prompt, config_.steps_per_rollout(),
                          config_.samples_per_step()));
  report.line(plan_text(plan_, session_.config()));
  report.line(fmt::format("bytes on disk: about {}{}", space_.bytes(), space_.what_for()));
  if (checkpoint_) report.line(fmt::format("goes on from {}", checkpoint_->directory()));
  report.line("everything is in order; nothing was written (--dry-run)");
}

// Reads weights and starts what works on them; from here on the run directory exists.
void ColocatedRun::start() {
  memory_ = std::make_unique<RunMemory>(config_, plan_);
  session_.load_weights();
  memory_->add_lasting(memory::Tag::kWeights, session_.store().bytes());
  engine_model_ = session_.make_model();
  trainer_model_ = session_.make_model();
  if (config_.loss.needs_reference()) {
    reference_ =
        std::make_unique<Reference>(session_, config_.loss.ref_load, config_.memory.offloads_reference(), *memory_);
  }
  rollout::EngineConfig engine_config = session_.engine_config(config_.rollout, plan_.kv_cache_bytes);
  engine_config.kv_memory = memory_->kv();
  engine_ = rollout::make_engine(engine_config, *engine_model_);
  trainer_config_.abandon = [grace = config_.checkpoints.stop_grace_seconds] { return seconds_since_stop() > grace; };
  std::optional<trainer::OptimizerOffload> offload;
  if (config_.memory.offloads_optimizer()) {
    optimizer_memory_ = memory_->make_host();
    offload.emplace(*optimizer_memory_, memory_->synchronize());
  }
  trainer_ = trainer::make_trainer(trainer_config_, session_.store(), *trainer_model_, offload);
  account_optimizer(session_, *trainer_, offload.has_value(), *memory_);
  defer_stops(fmt::format(
      "stopping: what is finished is saved; a second signal ends the run at once\n    --load {} goes on from there",
      directory_.path()));
  directory_.create();
  base::make_directories(directory_.samples_folder());
  const int64_t saved_step = checkpoint_ ? go_on() : 0;
  base::write_file_durably(directory_.config_file(), mode_.config_text);
  report_ = std::make_unique<Report>(&directory_,
                                     Report::Options{.use_tensorboard = config_.output.use_tensorboard,
                                                     .go_on = checkpoint_.has_value(),
                                                     .keep_unwritten = config_.checkpoints.goes_on_after_save_error()});
  saver_ = std::make_unique<RunSaver>(session_, directory_, *trainer_, *report_, config_.checkpoints, saved_step,
                                      [this] { return state(); });
  RewardContext context = reward_context(config_.data, mode_);
  context.output_path = directory_.grader_output_file();
  graders_ = std::make_unique<text::Graders>(config_.reward.graders(context));
  evaluation_.set_graders(graders_.get(), context);
  phase_ = std::make_unique<RolloutPhase>(*engine_, session_.text(), *report_);
  report_->line(fmt::format("{} parameters in {} on {}  {}  {} of {} x {} samples  -> {}",
                            base::with_commas(session_.config().num_parameters()),
                            model::to_string(session_.config().dtype), session_.ops().name(),
                            base::counted(std::ssize(prompts_.prompts), "prompt"),
                            base::counted(num_rollouts_, "rollout"), config_.rollout_batch_size,
                            config_.rollout.n_samples_per_prompt, directory_.path()));
  if (checkpoint_) report_->line(fmt::format("goes on after rollout {} of {}", rollout_id_, checkpoint_->directory()));
  checkpoint_.reset();
}

// Everything as it was when the checkpoint was made; what the run wrote since is taken back. Returns the last step that
// the run directory has a checkpoint of.
int64_t ColocatedRun::go_on() {
  const RunState saved = read_state(*checkpoint_);
  restore(*checkpoint_, saved, *trainer_, session_.store());
  engine_->update_weights(session_.store().view());
  order_.set_cursor(saved.cursor);
  cursor_ = saved.cursor;
  first_rollout_ = rollout_id_ = saved.step;
  patience_.restore(saved.skipped_in_a_row, saved.failed_in_a_row);
  evaluation_due_ = saved.evaluation_due;
  const bool in_place = config_.checkpoints.goes_on_in(config_.output.save);
  if (in_place) directory_.cut_back(saved.step, saved.file_bytes);
  return in_place ? saved.step : 0;  // another directory has no checkpoint yet
}

std::optional<RunState> ColocatedRun::state() const {
  if (!between_steps_) return std::nullopt;
  return RunState{.step = rollout_id_,
                  .optimizer = trainer_->progress(),
                  .skipped_in_a_row = patience_.skipped_steps(),
                  .failed_in_a_row = patience_.failed_rollouts(),
                  .evaluation_due = evaluation_due_,
                  .weight_version = session_.store().version(),
                  .cursor = cursor_,
                  .file_bytes = {},
                  .numbers = numbers_};
}

int ColocatedRun::run() {
  start();
  saver_->run([this] { loop(); });
  saver_->written(directory_.memory_trace_file(), "fault/unwritten_samples",
                  [this] { base::write_file_durably(directory_.memory_trace_file(), memory_->trace()); });
  const bool interrupted = stop_requested();
  report_->line(end_line(interrupted, {.rollout = rollout_id_, .num_rollouts = num_rollouts_}, saver_->saved_step(),
                         base::num_warnings(), directory_.path()));
  report_->sync();
  return interrupted ? stop_exit_code() : 0;
}

void ColocatedRun::loop() {
  memory_->enter(memory::Phase::kRollout);
  if (evaluation_due_ || (!config_.skip_eval_before_train && rollout_id_ == 0)) evaluate(rollout_id_);
  while (rollout_id_ < num_rollouts_ && !stop_requested()) {
    const Clock::time_point begin = Clock::now();
    // The rollout phase: keys and values own the device's memory.
    std::optional<Rollout> rollout = generate();
    if (!rollout) break;
    Metrics metrics = rollout_times(*rollout);
    waited_s_ += seconds_since(begin);

    // The train phase: activations and gradients do. It changes what a checkpoint is being written from.
    saver_->finish();
    metrics.merge(saver_->take_metrics());
    metrics.merge(std::exchange(carried_, {}));
    between_steps_ = false;
    memory_->enter(memory::Phase::kTrain);
    const Clock::time_point train_begin = Clock::now();
    score_reference(*rollout, metrics);
    assign_advantages(*rollout, metrics);
    Metrics last_step;
    try {
      last_step = train(*rollout, metrics);
    } catch (const trainer::StepAbandoned&) {
      report_->line(
          fmt::format("rollout {} was abandoned {:.0f} s after the signal (--stop-grace-seconds); the last one "
                      "saved is {}",
                      rollout_id_ + 1, seconds_since_stop(), saver_->saved_step()));
      break;
    }
    trainer_->end_phase();
    metrics["perf/train_time"] = seconds_since(train_begin);
    memory_->enter(memory::Phase::kRollout);
    metrics.merge(memory_->metrics());
    report_->log_memory(memory_->timeline(rollout_id_));

    // The engine decodes from the bytes that the optimizer wrote; only the version number is new.
    engine_->update_weights(session_.store().view());

    metrics["perf/train_wait_time"] = waited_s_;
    metrics["perf/step_time"] = waited_s_ + metrics["perf/train_time"];
    metrics["perf/wait_time_ratio"] = waited_s_ / metrics["perf/step_time"];
    report_->log("rollout", rollout_id_, metrics);
    const int64_t interval = config_.output.sample_dump_interval;
    if (interval > 0 && rollout_id_ % interval == 0) {
      dump(*rollout, fmt::format("{}/rollout_{:06}.jsonl", directory_.samples_folder(), rollout_id_),
           SampleDetail::kReadable);
    }
    if (const std::string& pattern = config_.output.save_debug_rollout_data; !pattern.empty()) {
      dump(*rollout, rollout_path("--save-debug-rollout-data", pattern, rollout_id_), SampleDetail::kFull);
    }
    ++rollout_id_;
    cursor_ = order_.cursor();
    between_steps_ = true;
    report_->line(step_line({.rollout = rollout_id_,
                             .num_rollouts = num_rollouts_,
                             .first_rollout = first_rollout_,
                             .num_groups = config_.rollout_batch_size,
                             .num_failed = rollout->num_failed,
                             .num_dropped = rollout->num_dropped,
                             .elapsed_s = report_->seconds()},
                            metrics, last_step, report_->line_columns()));
    patience_.see_rollout(rollout_id_ - 1, *rollout);

    const Clock::time_point after = Clock::now();
    const bool eval_due = config_.eval_interval && rollout_id_ % *config_.eval_interval == 0;
    if (eval_due || rollout_id_ == num_rollouts_) evaluate(rollout_id_);
    if (const auto parts = config_.output.parts_due(rollout_id_, num_rollouts_)) saver_->start(*parts);
    waited_s_ = seconds_since(after);
  }
}

void ColocatedRun::evaluate(int64_t step) {
  if (evaluation_.empty()) return;
  const Clock::time_point begin = Clock::now();
  std::optional<std::vector<Evaluation::Result>> results = evaluation_.run(*phase_);
  evaluation_due_ = !results;
  if (!results) return;  // asked to stop: the loop looks itself
  carried_["perf/eval_time"] = seconds_since(begin);
  for (const Evaluation::Result& result : *results) {
    report_->log("eval", step, result.metrics);
    if (result.is_scored()) {
      report_->line(eval_line(result));
    } else {
      base::log_warning("{}", unscored_line(result));
    }
    if (config_.output.sample_dump_interval > 0) {
      dump(result.rollout, fmt::format("{}/eval_{}_{:06}.jsonl", directory_.samples_folder(), result.name, step),
           SampleDetail::kReadable);
    }
  }
}

std::optional<Rollout> ColocatedRun::generate() {
  if (!config_.load_debug_rollout_data.empty()) {
    const std::string flag = "--load-debug-rollout-data";
    Rollout rollout = read_rollout(rollout_path(flag, config_.load_debug_rollout_data, rollout_id_),
                                   {.num_samples = config_.samples_per_rollout(),
                                    .vocab = session_.config().vocab,
                                    .context_tokens = plan_.context_tokens});
    warn_of_failures(rollout, fmt::format("rollout {}/{}", rollout_id_ + 1, num_rollouts_));
    return rollout;
  }
  RolloutRequest request;
  for (int64_t i = 0; i < config_.rollout_batch_size; ++i) {
    request.prompts.push_back(&prompts_.prompts[static_cast<size_t>(order_.next())]);
  }
  request.n_samples_per_prompt = config_.rollout.n_samples_per_prompt;
  request.sampling = config_.rollout.sampling();
  request.first_sample_id = static_cast<uint64_t>(rollout_id_ * config_.samples_per_rollout());
  request.skip_special_tokens = config_.rollout.skip_special_tokens;
  request.failure_reward = config_.reward.failure();
  request.title = fmt::format("rollout {}/{}", rollout_id_ + 1, num_rollouts_);
  std::optional<Rollout> rollout = phase_->run(request, graders_.get());
  if (rollout) warn_of_failures(*rollout, request.title);
  return rollout;
}

void ColocatedRun::score_reference(Rollout& rollout, Metrics& metrics) {
  if (!reference_) return;
  const Clock::time_point begin = Clock::now();
  trainer::Trainer::Scores scores = reference_->score(*trainer_, rollout.views());
  for (size_t i = 0; i < rollout.samples.size(); ++i) {
    rollout.samples[i].ref_logprobs = std::move(scores.logprobs[i]);
  }
  metrics["perf/ref_log_probs_time"] = seconds_since(begin);
}

void ColocatedRun::assign_advantages(Rollout& rollout, Metrics& metrics) {
  const Clock::time_point begin = Clock::now();
  rl::assign_advantages(config_.loss.loss, rollout.pointers());
  warn_of_large_rewards(rollout, rollout_id_);
  const bool per_token = rl::loss_aggregation(config_.loss.loss) == rl::Aggregation::kTokenMean;
  metrics.merge(rollout_report(rollout, per_token, config_.output.log_passrate));
  metrics.merge(signal_watch_.see_rollout(rollout_id_, rollout.views()));
  metrics["perf/data_preprocess_time"] = seconds_since(begin);
}

// The optimizer steps of one rollout, in sample order. Returns the metrics of the last.
Metrics ColocatedRun::train(const Rollout& rollout, Metrics& metrics) {
  const Clock::time_point begin = Clock::now();
  const std::vector<const rl::Sample*> samples = rollout.views();
  const auto size = static_cast<size_t>(config_.samples_per_step());
  Metrics step_metrics;
  double flops = 0.0;
  for (size_t first = 0; first < samples.size(); first += size) {
    const auto k = static_cast<int64_t>(first / size);
    report_->progress(fmt::format("train {}/{}", rollout_id_ + 1, num_rollouts_), k, config_.steps_per_rollout(),
                      "steps");
    const auto from = samples.begin() + static_cast<std::ptrdiff_t>(first);
    const std::vector<const rl::Sample*> batch(from, from + static_cast<std::ptrdiff_t>(size));
    const trainer::Metrics raw = trainer_->step(batch);
    flops += 3.0 * forward_flops(session_.config(), batch);
    const int64_t step = rollout_id_ * config_.steps_per_rollout() + k;
    step_metrics = signal_watch_.see_step(step, batch, raw.at("lr"));
    for (const auto& [name, value] : raw) step_metrics["train/" + (name == "lr" ? "lr-pg_0" : name)] = value;
    step_metrics["train/global_batch_size"] = static_cast<double>(size);
    step_metrics["fault/skipped_steps"] = step_metrics["train/step_skipped"];
    report_->log("train", step, step_metrics);
    patience_.see_step(rollout_id_, step_metrics, rollout);
  }
  const double seconds = std::max(seconds_since(begin), 1e-9);
  double tokens = 0.0;
  for (const rl::Sample* sample : samples) {
    tokens += static_cast<double>(sample->prompt.size() + sample->completion.size());
  }
  metrics["perf/actor_train_time"] = seconds;
  metrics["perf/actor_train_tok_per_s"] = tokens / seconds;
  metrics["perf/actor_train_tflops"] = flops / seconds * 1e-12;
  return step_metrics;
}

void ColocatedRun::dump(const Rollout& rollout, const std::string& path, SampleDetail detail) {
  saver_->written(path, "fault/unwritten_samples", [&] { write_samples(path, rollout, detail); });
}

}  // namespace

int train_colocated(const TrainConfig& config, const RunMode& mode) {
  ColocatedRun run(config, mode);
  if (mode.dry_run) {
    run.say_plan();
    return 0;
  }
  return run.run();
}

}  // namespace tandem::run
