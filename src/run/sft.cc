#include "run/sft.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "base/files.h"
#include "base/log.h"
#include "base/message_text.h"
#include "rl/prompt_order.h"
#include "run/checkpoint_writer.h"
#include "run/held_out.h"
#include "run/patience.h"
#include "run/report.h"
#include "run/resume.h"
#include "run/run_directory.h"
#include "run/run_saver.h"
#include "run/run_space.h"
#include "run/session.h"
#include "run/sft_samples.h"
#include "run/signal_settings.h"
#include "run/stop_signal.h"
#include "run/trainer_setup.h"
#include "weights/not_finite.h"

namespace tandem::run {

namespace {

using base::Clock;
using base::seconds_since;

rl::LossConfig loss_config(const SftConfig& config) {
  rl::LossConfig loss;
  loss.loss_type = "sft_loss";
  loss.loss_aggregation = config.calculate_per_token_loss ? "token-mean" : "seq-mean-token-mean";
  return loss;
}

// The room that a run takes which has `begin` of its steps behind it.
RunSpace run_space(const Session& session, const SftConfig& config, int64_t num_steps, int64_t begin) {
  RunSpace space = checkpoint_space(session, config.output.num_exports(num_steps, begin),
                                    config.output.num_checkpoints(num_steps, begin), config.checkpoints.keep_latest);
  space.logs = std::max<int64_t>(num_steps - begin, 0) * kLogBytesPerStep;
  return space;
}

class SupervisedRun {
 public:
  // Checks all that can be checked without reading weights or writing a byte.
  SupervisedRun(const SftConfig& config, const RunMode& mode);

  void say_plan() const;
  int run();

 private:
  int64_t num_samples() const { return static_cast<int64_t>(data_.samples.size()); }
  std::string data_text() const;
  void start();
  int64_t go_on();
  std::optional<RunState> state() const;
  void loop();
  void evaluate();
  Metrics train_step();
  void see_skipped(const Metrics& metrics, const std::vector<int64_t>& indices);

  SftConfig config_;
  RunMode mode_;
  Session session_;
  SftSamples data_;
  HeldOut held_out_;
  rl::PromptOrder order_;
  int64_t num_steps_;
  trainer::TrainerConfig trainer_config_;
  std::optional<Checkpoint> checkpoint_;        // to go on from
  std::map<std::string, std::string> numbers_;  // what results depend on
  rl::SignalWatch signal_watch_;
  RunSpace space_;  // on disk
  RunDirectory directory_;

  std::unique_ptr<model::Model> model_;
  std::unique_ptr<trainer::Trainer> trainer_;
  std::unique_ptr<Report> report_;
  std::unique_ptr<RunSaver> saver_;
  int64_t step_ = 0;             // optimizer steps that are finished
  rl::PromptCursor cursor_;      // behind them
  bool between_steps_ = true;    // weights and cursor are those of step_
  bool evaluation_due_ = false;  // a signal ended it
  int64_t skipped_in_a_row_ = 0;
};

SupervisedRun::SupervisedRun(const SftConfig& config, const RunMode& mode)
    : config_(config),
      mode_(mode),
      session_(config.model),
      data_(load_sft_samples(config.data, config.append_eos, session_.text(), session_.config())),
      held_out_(config.eval, config.data, config.append_eos, session_.text(), session_.config()),
      order_(num_samples(), config.rollout_shuffle, static_cast<uint64_t>(config.rollout_seed)),
      num_steps_(config.steps(num_samples())),
      trainer_config_(trainer_config(config.optimizer, loss_config(config), session_.config().num_layers, num_steps_)),
      checkpoint_(config.checkpoints.open()),
      numbers_(run_numbers(mode, session_, trainer_config_, config.data.prompt_data, /*custom_rm_path=*/"")),
      signal_watch_(signal_settings(config.optimizer, num_steps_)),
      space_(run_space(session_, config_, num_steps_, checkpoint_ ? checkpoint_->step() : 0)),
      directory_(config.output.save, config.checkpoints.run_folder(config.output.save, config.output.overwrite),
                 space_.bytes(), space_.what_for()) {
  if (checkpoint_) check_goes_on(*checkpoint_, numbers_, config.checkpoints.allow_changed_config, num_samples());
}

std::string SupervisedRun::data_text() const {
  return fmt::format("{} samples of {} lines, {} trained tokens; {} optimizer steps of {} samples", num_samples(),
                     data_.num_records, data_.num_trained_tokens, num_steps_, config_.global_batch_size);
}

void SupervisedRun::say_plan() const {
  session_.check_weights();
  Report report(nullptr, {});
  report.line(fmt::format("{} parameters in {}; {}", session_.config().num_parameters(),
                          model::to_string(session_.config().dtype), data_text()));
  if (checkpoint_) report.line(fmt::format("goes on from {}", checkpoint_->directory()));
  report.line("everything is in order; nothing was written (--dry-run)");
}

// Reads weights; from here on the run directory exists.
void SupervisedRun::start() {
  session_.load_weights();
  model_ = session_.make_model();
  trainer_config_.abandon = [grace = config_.checkpoints.stop_grace_seconds] { return seconds_since_stop() > grace; };
  trainer_ = trainer::make_trainer(trainer_config_, session_.store(), *model_);
  defer_stops(fmt::format(
      "stopping: what is finished is saved; a second signal ends the run at once\n    --load {} goes on from there",
      directory_.path()));
  directory_.create();
  const int64_t saved_step = checkpoint_ ? go_on() : 0;
  base::write_file_durably(directory_.config_file(), mode_.config_text);
  report_ = std::make_unique<Report>(&directory_,
                                     Report::Options{.use_tensorboard = config_.output.use_tensorboard,
                                                     .memory_timeline = false,
                                                     .go_on = checkpoint_.has_value(),
                                                     .keep_unwritten = config_.checkpoints.goes_on_after_save_error()});
  saver_ = std::make_unique<RunSaver>(session_, directory_, *trainer_, *report_, config_.checkpoints, saved_step,
                                      [this] { return state(); });
  report_->line(
      fmt::format("{} parameters in {} on {}  {}  -> {}", base::with_commas(session_.config().num_parameters()),
                  model::to_string(session_.config().dtype), session_.ops().name(), data_text(), directory_.path()));
  if (checkpoint_) report_->line(fmt::format("goes on after step {} of {}", step_, checkpoint_->directory()));
  checkpoint_.reset();
}

// Everything as it was when the checkpoint was made; what the run wrote since is taken back. Returns the last step that
// the run directory has a checkpoint of.
int64_t SupervisedRun::go_on() {
  const RunState saved = read_state(*checkpoint_);
  restore(*checkpoint_, saved, *trainer_, session_.store());
  order_.set_cursor(saved.cursor);
  cursor_ = saved.cursor;
  step_ = saved.step;
  skipped_in_a_row_ = saved.skipped_in_a_row;
  evaluation_due_ = saved.evaluation_due;
  if (!config_.checkpoints.goes_on_in(config_.output.save)) return 0;
  directory_.cut_back(saved.step, saved.file_bytes);
  return saved.step;
}

std::optional<RunState> SupervisedRun::state() const {
  if (!between_steps_) return std::nullopt;
  return RunState{.step = step_,
                  .optimizer = trainer_->progress(),
                  .skipped_in_a_row = skipped_in_a_row_,
                  .evaluation_due = evaluation_due_,
                  .weight_version = session_.store().version(),
                  .cursor = cursor_,
                  .file_bytes = {},
                  .numbers = numbers_};
}

int SupervisedRun::run() {
  start();
  saver_->run([this] { loop(); });
  const bool interrupted = stop_requested();
  report_->line(fmt::format("{} after {} of {}, {}; {}", interrupted ? "stopped" : "done", step_,
                            base::counted(num_steps_, "step"), base::counted(base::num_warnings(), "warning"),
                            interrupted ? fmt::format("--load {} goes on", directory_.path()) : directory_.path()));
  report_->sync();
  return interrupted ? stop_exit_code() : 0;
}

void SupervisedRun::loop() {
  if (evaluation_due_ || (!config_.skip_eval_before_train && step_ == 0)) evaluate();
  while (step_ < num_steps_ && !stop_requested()) {
    saver_->finish();  // the step changes what a checkpoint is being written from
    between_steps_ = false;
    Metrics metrics;
    try {
      metrics = train_step();
    } catch (const trainer::StepAbandoned&) {
      report_->line(
          fmt::format("step {} was abandoned {:.0f} s after the signal (--stop-grace-seconds); the last step saved "
                      "is {}",
                      step_ + 1, seconds_since_stop(), saver_->saved_step()));
      break;
    }
    ++step_;
    cursor_ = order_.cursor();
    between_steps_ = true;
    report_->line(fmt::format("step {}/{}  {}", step_, num_steps_,
                              summary(metrics, {{"loss", "train/loss"},
                                                {"grad", "train/grad_norm"},
                                                {"lr", "train/lr-pg_0"},
                                                {"tokens/s", "perf/actor_train_tok_per_s"}})));
    const bool eval_due = config_.eval_interval && step_ % *config_.eval_interval == 0;
    if (eval_due || step_ == num_steps_) evaluate();
    if (const auto parts = config_.output.parts_due(step_, num_steps_)) saver_->start(*parts);
  }
}

void SupervisedRun::evaluate() {
  if (held_out_.empty()) return;
  const std::optional<HeldOut::Result> result = held_out_.evaluate(*trainer_, *model_, *report_);
  evaluation_due_ = !result;
  if (!result) return;  // asked to stop: the loop looks itself
  report_->log("eval", step_, result->metrics);
  for (const std::string& line : result->lines) report_->line(line);
}

Metrics SupervisedRun::train_step() {
  const Clock::time_point begin = Clock::now();
  std::vector<int64_t> indices;
  std::vector<const rl::Sample*> batch;
  double tokens = 0.0;
  for (int64_t i = 0; i < config_.global_batch_size; ++i) {
    indices.push_back(order_.next());
    const rl::Sample& sample = data_.samples[static_cast<size_t>(indices.back())];
    batch.push_back(&sample);
    tokens += static_cast<double>(sample.prompt.size() + sample.completion.size());
  }
  const trainer::Metrics raw = trainer_->step(batch);
  Metrics metrics = signal_watch_.see_step(step_, batch, raw.at("lr"));
  metrics.merge(saver_->take_metrics());
  for (const auto& [name, value] : raw) metrics["train/" + (name == "lr" ? "lr-pg_0" : name)] = value;
  const double seconds = std::max(seconds_since(begin), 1e-9);
  metrics["train/global_batch_size"] = static_cast<double>(config_.global_batch_size);
  metrics["fault/skipped_steps"] = metrics["train/step_skipped"];
  metrics["perf/actor_train_time"] = seconds;
  metrics["perf/actor_train_tok_per_s"] = tokens / seconds;
  report_->log("train", step_, metrics);
  see_skipped(metrics, indices);
  return metrics;
}

// A step that taught nothing is said; too many in a row end the run.
void SupervisedRun::see_skipped(const Metrics& metrics, const std::vector<int64_t>& indices) {
  skipped_in_a_row_ = count_skipped(skipped_in_a_row_, metrics);
  if (metrics.at("train/step_skipped") == 0.0) return;
  const std::string what = skipped_text(metrics, [&] { return weights::describe_not_finite(session_.store()); });
  base::log_warning("step {}: was skipped: {}; nothing was changed", step_ + 1, what);
  if (skipped_in_a_row_ < config_.checkpoints.max_skipped_steps) return;
  std::set<int64_t> lines;
  for (const int64_t index : indices) lines.insert(data_.lines[static_cast<size_t>(index)]);
  throw UserError(fmt::format(
      "{} optimizer steps in a row were skipped (--max-skipped-steps): lower --lr, or look at what the last one was "
      "made of, lines {} of {}; it had {}",
      skipped_in_a_row_, fmt::join(lines, ", "), config_.data.prompt_data, what));
}

}  // namespace

int train_supervised(const SftConfig& config, const RunMode& mode) {
  config.check();
  SupervisedRun run(config, mode);
  if (mode.dry_run) {
    run.say_plan();
    return 0;
  }
  return run.run();
}

}  // namespace tandem::run
