#include "run/sft.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <vector>

#include "base/check.h"
#include "base/files.h"
#include "base/log.h"
#include "rl/prompt_order.h"
#include "rl/prompts.h"
#include "run/checkpoint_writer.h"
#include "run/prompt_set.h"
#include "run/report.h"
#include "run/run_directory.h"
#include "run/session.h"
#include "run/signal_settings.h"
#include "run/stop_signal.h"
#include "run/trainer_setup.h"

namespace tandem::run {

namespace {

rl::SftData read_data(const DataOptions& data) {
  rl::SftOptions options;
  options.path = data.prompt_data;
  options.prompt_key = data.input_key;
  options.response_key = data.label_key;
  options.tool_key = data.tool_key;
  options.skip_bad_lines = data.skip_bad_lines;
  rl::SftData records = rl::read_sft(options);
  if (records.bad_lines.count > 0) {
    base::log_warning("{}: {} malformed lines left out (--skip-bad-lines), the first: {}", data.prompt_data,
                      records.bad_lines.count, records.bad_lines.messages.front());
  }
  return records;
}

// Records as samples: the prompt's tokens, then the response's with the loss on them.
std::vector<rl::Sample> load_samples(const SftConfig& config, Session& session) {
  const rl::SftData data = read_data(config.data);
  const std::string file = rl::parse_data_path(config.data.prompt_data).file;
  std::vector<Conversation> conversations;
  std::vector<std::string> responses;
  for (const rl::SftRecord& record : data.records) {
    conversations.push_back({record.prompt, record.tools, fmt::format("{}:{}", file, record.line)});
    responses.push_back(record.response);
  }
  const auto prompts = encode_texts(session.text(), render_prompts(config.data, session.text(), conversations));
  const auto completions = encode_texts(session.text(), responses);
  const model::ModelConfig& model = session.config();
  TANDEM_USER_CHECK(!config.append_eos || !model.eos_token_ids.empty(),
                    fmt::format("{}: no EOS token in config.json or generation_config.json to end responses with; add "
                                "eos_token_id, or give --no-append-eos",
                                session.directory()));
  std::vector<rl::Sample> samples;
  for (size_t i = 0; i < prompts.size(); ++i) {
    rl::Sample sample;
    sample.group_id = sample.sample_id = i;
    sample.prompt = prompts[i];
    sample.completion = completions[i];
    if (config.append_eos) sample.completion.push_back(model.eos_token_ids.front());
    const auto length = static_cast<int64_t>(sample.prompt.size() + sample.completion.size());
    TANDEM_USER_CHECK(!sample.prompt.empty() && !sample.completion.empty(),
                      fmt::format("{}: prompt or response has no tokens; remove the line", conversations[i].place));
    TANDEM_USER_CHECK(
        length <= model.max_positions,
        fmt::format("{}: prompt and response have {} tokens, the model's context is {}; shorten or remove "
                    "the line",
                    conversations[i].place, length, model.max_positions));
    sample.loss_mask.assign(sample.completion.size(), 1);
    samples.push_back(std::move(sample));
  }
  return samples;
}

int64_t number_of_steps(const SftConfig& config, int64_t num_samples) {
  if (config.num_rollout) return *config.num_rollout;
  const int64_t steps = *config.num_epoch * num_samples / config.global_batch_size;
  TANDEM_USER_CHECK(steps > 0,
                    fmt::format("--num-epoch {}: {} samples are fewer than one step of --global-batch-size {}; "
                                "lower it, or give --num-rollout",
                                *config.num_epoch, num_samples, config.global_batch_size));
  return steps;
}

class SupervisedRun {
 public:
  explicit SupervisedRun(const SftConfig& config)
      : config_(config),
        session_(config.model),
        samples_(load_samples(config, session_)),
        order_(static_cast<int64_t>(samples_.size()), config.rollout_shuffle,
               static_cast<uint64_t>(config.rollout_seed)),
        num_steps_(number_of_steps(config, static_cast<int64_t>(samples_.size()))),
        signal_watch_(signal_settings(config.optimizer, num_steps_)),
        directory_(config.output.save, config.output.overwrite ? RunFolder::kOverwrite : RunFolder::kNew,
                   config.output.num_exports(num_steps_) * hf_checkpoint_bytes(session_)) {
    rl::LossConfig loss;
    loss.loss_type = "sft_loss";
    loss.calculate_per_token_loss = config.calculate_per_token_loss;
    trainer_config_ = trainer_config(config.optimizer, loss, session_.config().num_layers, num_steps_);
  }

  void say_plan() const {
    Report report(nullptr, {});
    report.line(fmt::format("{} parameters in {}; {} samples; {} optimizer steps of {} samples",
                            session_.config().num_parameters(), model::to_string(session_.config().dtype),
                            samples_.size(), num_steps_, config_.global_batch_size));
    report.line("everything is in order; nothing was written (--dry-run)");
  }

  int run(const RunMode& mode);

 private:
  Metrics train_step(int64_t step);
  void save(int64_t step);

  SftConfig config_;
  Session session_;
  std::vector<rl::Sample> samples_;
  rl::PromptOrder order_;
  int64_t num_steps_;
  rl::SignalWatch signal_watch_;
  RunDirectory directory_;
  trainer::TrainerConfig trainer_config_;
  std::unique_ptr<model::Model> model_;
  std::unique_ptr<trainer::Trainer> trainer_;
  std::unique_ptr<Report> report_;
  int64_t saved_step_ = 0;
};

int SupervisedRun::run(const RunMode& mode) {
  session_.load_weights();
  model_ = session_.make_model();
  trainer_ = trainer::make_trainer(trainer_config_, session_.store(), *model_);
  defer_stops("stopping: the weights of the last step are saved (a second signal ends the run at once)");
  directory_.create();
  base::write_file_durably(directory_.config_file(), mode.config_text);
  report_ = std::make_unique<Report>(&directory_, Report::Options{.use_tensorboard = config_.output.use_tensorboard});
  report_->line(fmt::format("{} parameters in {} on {}; {} samples; {} steps of {} -> {}",
                            session_.config().num_parameters(), model::to_string(session_.config().dtype),
                            session_.ops().name(), samples_.size(), num_steps_, config_.global_batch_size,
                            directory_.path()));
  int64_t step = 0;
  while (step < num_steps_ && !stop_requested()) {
    const Metrics metrics = train_step(step);
    report_->log("train", step, metrics);
    ++step;
    report_->line(fmt::format("step {}/{}  {}", step, num_steps_,
                              summary(metrics, {{"loss", "train/loss"},
                                                {"grad", "train/grad_norm"},
                                                {"lr", "train/lr-pg_0"},
                                                {"tokens/s", "perf/actor_train_tok_per_s"}})));
    if (config_.output.parts_due(step, num_steps_) == SavedParts::kBoth) save(step);
  }
  if (step > saved_step_) save(step);
  report_->sync();
  return stop_requested() ? kExitInterrupted : 0;
}

Metrics SupervisedRun::train_step(int64_t step) {
  const double begin = report_->seconds();
  std::vector<const rl::Sample*> batch;
  double tokens = 0.0;
  for (int64_t i = 0; i < config_.global_batch_size; ++i) {
    const rl::Sample& sample = samples_[static_cast<size_t>(order_.next())];
    batch.push_back(&sample);
    tokens += static_cast<double>(sample.prompt.size() + sample.completion.size());
  }
  const trainer::Metrics raw = trainer_->step(batch);
  Metrics metrics = signal_watch_.see_step(step, batch, raw.at("lr"));
  for (const auto& [name, value] : raw) metrics["train/" + (name == "lr" ? "lr-pg_0" : name)] = value;
  const double seconds = std::max(report_->seconds() - begin, 1e-9);
  metrics["train/global_batch_size"] = static_cast<double>(config_.global_batch_size);
  metrics["perf/actor_train_time"] = seconds;
  metrics["perf/actor_train_tok_per_s"] = tokens / seconds;
  return metrics;
}

void SupervisedRun::save(int64_t step) {
  report_->sync();
  session_.export_checkpoint(directory_.checkpoint(step), /*overwrite=*/false);
  directory_.set_latest(step);
  report_->line(fmt::format("saved {}", directory_.checkpoint(step)));
  saved_step_ = step;
}

}  // namespace

int train_supervised(const SftConfig& config, const RunMode& mode) {
  config.check();
  SupervisedRun run(config);
  if (mode.dry_run) {
    run.say_plan();
    return 0;
  }
  return run.run(mode);
}

}  // namespace tandem::run
