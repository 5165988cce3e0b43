// `tandem sft` runs supervised training: the trainer alone, with the likelihood as its loss.
#include "run/verbs.h"

#include <fmt/format.h>

#include <optional>
#include <vector>

#include "base/log.h"
#include "base/message_text.h"
#include "mesh/mesh.h"
#include "report/step_line.h"
#include "run/checkpointer.h"
#include "run/learning/sft_learner.h"
#include "run/open_run.h"
#include "run/run_log.h"
#include "run/same_files.h"
#include "run/sft_inputs.h"
#include "run/trackers.h"
#include "session/ranks.h"
#include "session/stop_signal.h"
#include "session/together.h"

namespace tandem::run {

namespace {

std::string step_text(int64_t step, int64_t num_steps, const report::Metrics& metrics) {
  return fmt::format("step {}/{}  {}", step, num_steps,
                     report::summary(metrics, {{"loss", "train/loss"},
                                               {"grad", "train/grad_norm"},
                                               {"lr", "train/lr-pg_0"},
                                               {"tokens/s", "perf/actor_train_tok_per_s"}}));
}

std::string abandoned_text(int64_t step) {
  return fmt::format("step {} was abandoned {:.0f} s after the signal (--stop-grace-seconds)", step + 1,
                     session::seconds_since_stop());
}

std::string end_text(bool is_interrupted, int64_t step, int64_t saved, int64_t num_steps, const std::string& path) {
  return fmt::format("{} after {} of {}, {}; {}", is_interrupted ? "stopped" : "done", step,
                     base::counted(num_steps, "step"), base::counted(base::num_warnings(), "warning"),
                     report::result_or_resume(is_interrupted, step, saved, path));
}

}  // namespace

int train_supervised(const config::SftConfig& given, const config::RunMode& mode, const mesh::Launch& launch) {
  const config::SftConfig own = session::as_this_rank(given, launch);
  SftInputs inputs(own, mode, session::join_ranks(own.model, own.mesh, mode, launch, /*is_inexact=*/false));
  if (mode.dry_run) return print_dry_run(inputs);
  const config::SftConfig& config = inputs.config;
  mesh::Mesh& mesh = *inputs.mesh;

  check_same_files(mesh, inputs.checkpoint, inputs.result_inputs, inputs.session, config.model, config.eval);
  inputs.session.load_weights();
  SftLearner learner(inputs);
  // From here on the run directory exists. A run that resumes is as it was after the step that was saved.
  const checkpoint::RunState start = open_run(inputs.directory, inputs.checkpoint, config.checkpoints,
                                              learner.trainer(), inputs.session.trained(), saving_ranks(mesh));
  learner.restore(start);
  RunLog log(inputs.directory,
             {.config_text = mode.config_text,
              .use_tensorboard = config.output.use_tensorboard,
              .trackers = mesh.is_conductor() ? trackers(config.output.trackers, inputs.directory, mode.values)
                                              : std::vector<text::SinkTarget>(),
              .has_rollouts = false,
              .resumes = inputs.checkpoint.has_value(),
              .continues_after_save_error = config.checkpoints.continues_after_save_error(),
              .is_conductor = mesh.is_conductor()});
  bool is_evaluation_due = start.evaluation_due;  // true if a signal ended the evaluation after the last step
  Checkpointer checkpointer(
      inputs.session, inputs.directory, learner.trainer(), log, config.checkpoints, start,
      [&](checkpoint::RunState& state, std::vector<checkpoint::SavedTensor>& /*tensors*/) {
        state.result_inputs = inputs.result_inputs;
        state.skipped_in_a_row = learner.skipped_in_a_row();
        state.evaluation_due = is_evaluation_due;
      },
      mesh);
  print_start(inputs, start.step, log.report());
  inputs.checkpoint.reset();  // the run may remove its files

  int64_t step = start.step;  // number of finished optimizer steps
  const auto evaluate = [&] {
    if (inputs.held_out.empty()) return;
    const std::optional<HeldOut::Result> result = learner.evaluate(log.report());
    is_evaluation_due = !result;
    if (!result) return;  // asked to stop: the loop polls the signal itself
    log.report().log("eval", step, result->metrics);
    for (const std::string& line : result->lines) log.report().print(line);
  };
  checkpointer.save_at_end([&] {
    if (is_evaluation_due || (!config.skip_eval_before_train && step == 0)) evaluate();
    while (step < inputs.num_steps && !device::any_of(mesh.host(), session::stop_requested())) {
      checkpointer.begin_update();
      checkpointer.begin_steps();
      const std::optional<report::Metrics> metrics = learner.step(step, log);
      if (!metrics) {
        log.report().print(abandoned_text(step));
        checkpointer.abandon_update();
        break;
      }
      checkpointer.end_update(++step, {.cursor = learner.cursor()});
      log.report().print(step_text(step, inputs.num_steps, *metrics));
      learner.check_goes_on();
      const bool is_due = config.eval_interval && step % *config.eval_interval == 0;
      if (is_due || step == inputs.num_steps) evaluate();
      if (const auto parts = config.output.parts_due(step, inputs.num_steps)) checkpointer.start(*parts);
    }
  });
  // A scheduler may tell one rank alone to stop, which stops all.
  const int signal = session::stop_signal_of_any(mesh.host());
  const int64_t saved = checkpointer.saved_step();
  return log.finish(signal, saved > 0,
                    end_text(/*is_interrupted=*/signal != 0, step, saved, inputs.num_steps, inputs.directory.path()));
}

}  // namespace tandem::run
