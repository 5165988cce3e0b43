#include "run/sft_inputs.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/message_text.h"
#include "base/size.h"
#include "checkpoint/load_checkpoint.h"
#include "checkpoint/result_inputs.h"
#include "checkpoint/resume.h"
#include "checkpoint/run_state.h"
#include "model/lora.h"
#include "run/frozen_weights.h"
#include "run/learning/reference.h"
#include "run/read_paths.h"
#include "run/run_space.h"
#include "run/trackers.h"
#include "run/train_warnings.h"
#include "session/ranks.h"
#include "session/trainer_setup.h"
#include "weights/store.h"

namespace tandem::run {

namespace {

config::SftConfig checked(config::SftConfig config) {
  config.check();
  return config;
}

rl::LossConfig loss_config(const config::SftConfig& config) {
  rl::LossConfig loss;
  if (config.preference.is_on()) {
    // The mean over samples of advantage times the sum of log-probs: the advantages are those of
    // run/learning/preferences.h.
    loss.advantage_estimator = loss.pg_loss_type = "reinforce";
    loss.loss_aggregation = "seq-mean-token-sum";
    return loss;
  }
  loss.loss_type = "sft_loss";
  loss.loss_aggregation = config.calculate_per_token_loss ? "token-mean" : "seq-mean-token-mean";
  return loss;
}

config::RunProgress progress_of(const std::optional<checkpoint::Checkpoint>& checkpoint, int64_t num_samples) {
  if (!checkpoint) return {};
  const checkpoint::RunState state = checkpoint::read_state(*checkpoint);
  return {.rollouts = state.step,
          .steps = state.optimizer.steps,
          .records = base::Size(state.cursor.epoch) * num_samples + state.cursor.offset};
}

// Throws UserError if the checkpoint is beyond the length of the run.
int64_t steps_of_run(const config::SftConfig& config, int64_t num_samples, const config::RunProgress& done) {
  const int64_t steps = config.steps(num_samples, done);
  checkpoint::check_length(config.checkpoints, done.rollouts, steps);
  return steps;
}

// Returns the directory of a run that has finished `begin` of its steps, with the space that it needs.
checkpoint::RunDirectory run_directory(const session::ModelSession& session, const config::SftConfig& config,
                                       int64_t num_steps, int64_t begin) {
  RunSpace space = checkpoint_space(
      session.config(), weights::copied_bytes(session.directory()), config.output.num_exports(num_steps, begin),
      config.output.num_checkpoints(num_steps, begin), config.checkpoints.keep_latest,
      /*reference_element_bytes=*/0, num_checkpoints_there(config.checkpoints, config.output.save, begin));
  space.logs = std::max<int64_t>(num_steps - begin, 0) * kLogBytesPerStep;
  const std::string& save = config.output.save;
  return {save, checkpoint::run_folder(config.checkpoints, save, config.output.overwrite), space.bytes(),
          space.what_for(), begin};
}

// Earlier versions ended plain answers with the first EOS of the model's files, whatever the tokenizer's is.
std::map<std::string, std::string> new_definitions(const session::SftSamples& data, const model::ModelConfig& model) {
  if (!data.appended_eos || (!model.eos_token_ids.empty() && *data.appended_eos == model.eos_token_ids.front()))
    return {};
  return {{"the token that ends plain answers", std::to_string(*data.appended_eos)}};
}

std::string data_text(const SftInputs& inputs) {
  const int64_t left_out = inputs.config.left_out_by_epochs(inputs.num_samples(), inputs.done);
  const rl::PreferenceConfig& preference = inputs.config.preference;
  const char* const what = preference.takes_pairs() ? "pair" : preference.is_on() ? "labelled answer" : "sample";
  return fmt::format("{} of {}, {}; {} of {}{}", base::counted(inputs.num_samples(), what),
                     base::counted(inputs.data.num_records / preference.answers_of_item(), "line"),
                     base::counted(inputs.data.num_trained_tokens, "trained token"),
                     base::counted(inputs.num_steps, "optimizer step"),
                     base::counted(inputs.config.global_batch_size, what),
                     left_out > 0 ? fmt::format(", the last {} of the last epoch left out", left_out) : "");
}

}  // namespace

SftInputs::SftInputs(const config::SftConfig& given, const config::RunMode& mode, std::unique_ptr<mesh::Mesh> ranks)
    : mesh(std::move(ranks)),
      config(checked(given)),
      session(config.model, config.lora, config.optimizer, mesh->tensor()),
      data(session::load_all_sft_samples(config.data, config.answers(), config.append_eos, session.text(),
                                         session.config())),
      held_out(config, session.text(), session.config(), *mesh),
      checkpoint(checkpoint::open_checkpoint(config.checkpoints, mode.result_options)),
      done(progress_of(checkpoint, num_samples())),
      num_steps(steps_of_run(config, num_samples(), done)),
      trainer(session::trainer_config(config.optimizer, loss_config(config), session.config().num_layers, num_steps,
                                      static_cast<uint64_t>(config.model.seed))),
      directory(run_directory(session, config, num_steps, done.rollouts)) {
  check_keeps(directory, read_paths(config));
  check_trackers(config.output.trackers);
  session::check_spread(session.config(), config.mesh);
  check_reference(session, config.ref_load, /*follows_policy=*/false);
  result_inputs = checkpoint::result_inputs({.flags = mode.result_options,
                                             .kernels = session.ops().name(),
                                             .schedule = trainer.schedule,
                                             .model_directory = session.directory(),
                                             .frozen = frozen_weights(config, session),
                                             .adapter = session::adapter_inputs(session.config()),
                                             .prompt_data = config.data.prompt_data,
                                             .text_prefix = data.text_prefix,
                                             .custom_rm_paths = {},
                                             .definitions = new_definitions(data, session.config())});
  if (checkpoint) {
    checkpoint::check_can_resume(*checkpoint, result_inputs, mode.values_where_absent, mode.texts,
                                 config.checkpoints.allow_changed_config, num_samples());
    checkpoint::check_trained_tensors(*checkpoint, model::trained_layout(session.config()));
  }
  const double full_lr = config::SftConfig().optimizer.schedule.max_lr;
  if (const auto text = adapter_lr_warning(config.lora, config.optimizer.schedule.max_lr, full_lr))
    base::log_warning("{}", *text);
  if (const auto text = warm_up_warning(trainer.schedule, num_steps)) base::log_warning("{}", *text);
  for (const std::string& idle : mode.idle_flags) base::log_warning("{}", idle);
}

int print_dry_run(const SftInputs& inputs) {
  const model::ModelConfig& model = inputs.session.config();
  inputs.session.check_weights();
  inputs.directory.check_not_written();
  report::Report report;
  report.print(fmt::format("{} parameters in {}; {}", model.num_parameters(), model.dtype_name(), data_text(inputs)));
  if (model.lora) report.print(session::lora_text(model));
  if (inputs.checkpoint) report.print(fmt::format("resumes from {}", inputs.checkpoint->directory()));
  report.print_result("everything is in order; nothing was written (--dry-run)");
  return 0;
}

void print_start(const SftInputs& inputs, int64_t step, report::Report& report) {
  const model::ModelConfig& model = inputs.session.config();
  report.print(fmt::format("{} parameters in {} on {}  {}  -> {}", base::with_commas(model.num_parameters()),
                           model.dtype_name(), inputs.session.ops().name(), data_text(inputs),
                           inputs.directory.path()));
  if (model.lora) report.print(session::lora_text(model));
  if (inputs.checkpoint) {
    report.print(
        fmt::format("resumes after step {} of {}{}", step, inputs.checkpoint->directory(),
                    step == inputs.num_steps ? "; nothing is left to do: raise --num-rollout or --num-epoch" : ""));
  }
}

}  // namespace tandem::run
