// `tandem train` runs GRPO over one copy of the weights, as a loop over parts that each own one thing.
#include "run/verbs.h"

#include <memory>
#include <optional>
#include <utility>

#include "evaluation/rewards.h"
#include "mesh/mesh.h"
#include "rollout_worker/serve_rollouts.h"
#include "run/best_weights.h"
#include "run/checked_device.h"
#include "run/checkpointer.h"
#include "run/evaluator.h"
#include "run/learning/learner.h"
#include "run/open_run.h"
#include "run/patience.h"
#include "run/rollout_log.h"
#include "run/rollouts.h"
#include "run/run_log.h"
#include "run/same_files.h"
#include "run/trackers.h"
#include "run/train_inputs.h"
#include "session/ranks.h"
#include "session/run_memory.h"
#include "session/stop_signal.h"

namespace tandem::run {

using memory::Phase;

int train(const config::TrainConfig& given, const config::RunMode& mode, const mesh::Launch& launch) {
  const config::TrainConfig own = on_checked_device(session::as_this_rank(given, launch));
  if (launch.only_samples()) return rollout_worker::serve_rollouts(own, mode, launch);
  // Everything that can be wrong is found before a weight is read: flags, model, tokenizer, data, memory, --load,
  // --save.
  TrainInputs inputs(own, mode, session::join_ranks(own.model, own.mesh, mode, launch, own.is_inexact_device));
  if (mode.dry_run) return print_dry_run(inputs);
  const config::TrainConfig& config = inputs.config;

  check_same_files(*inputs.mesh, inputs.checkpoint, inputs.result_inputs, inputs.session, config.model, config.eval);

  // Parts stand in the order in which memory is taken. Each borrows those above it and is destroyed before them.
  session::RunMemory memory(config.memory, inputs.plan, inputs.session.device());
  inputs.session.load_weights();
  memory.add_persistent(memory::Tag::kWeights, inputs.session.bytes());
  Learner learner(inputs, memory);
  mesh::Mesh& mesh = *inputs.mesh;
  Rollouts rollouts(inputs, launch, memory, mesh);

  // From here on the run directory exists. A run that resumes is as it was after the rollout that was saved.
  const checkpoint::RunState start = open_run(inputs.directory, inputs.checkpoint, config.checkpoints,
                                              learner.trainer(), inputs.session.trained(), saving_ranks(mesh));
  if (inputs.checkpoint) rollouts.restore(*inputs.checkpoint, start);
  Patience patience(
      config.checkpoints, inputs.directory, [&inputs] { return inputs.session.describe_not_finite(); }, start);
  RunLog log(inputs.directory,
             {.config_text = mode.config_text,
              .use_tensorboard = config.output.use_tensorboard,
              .trackers = mesh.is_conductor() ? trackers(config.output.trackers, inputs.directory, mode.values)
                                              : std::vector<text::SinkTarget>(),
              .has_schedule = config.async.is_live(config.colocate),
              .resumes = inputs.checkpoint.has_value(),
              .continues_after_save_error = config.checkpoints.continues_after_save_error(),
              .is_conductor = mesh.is_conductor()});
  evaluation::Rewards rewards = inputs.start_rewards();
  BestWeights best(inputs.best_metric(), inputs.session, inputs.directory, mesh, log, start);
  const auto judge = [&](const config::RewardOptions& options, const session::PromptSet& prompts,
                         sampling::Rollout& sampled) {
    memory.enter(Phase::kTrain);
    learner.score_evaluation(options, prompts, sampled);
    memory.enter(Phase::kRollout);
    rollouts.forget_kv();
  };
  Evaluator evaluator(inputs, rollouts.phase(), rewards, best, log, start.evaluation_due, judge);
  Checkpointer checkpointer(
      inputs.session, inputs.directory, learner.trainer(), log, config.checkpoints, start,
      [&](checkpoint::RunState& state, std::vector<checkpoint::SavedTensor>& tensors) {
        learner.save(state, tensors);
        state.result_inputs = inputs.result_inputs;
        state.evaluation_due = evaluator.is_due();
        patience.save(state);
        best.save(state);
      },
      mesh);
  print_start(inputs, start.step, log.report());
  inputs.checkpoint.reset();  // the run may remove its files

  // `rollout_id` counts finished rollouts. However the loop ends, the last of them is saved.
  int64_t rollout_id = start.step;
  checkpointer.save_at_end([&] {
    memory.enter(Phase::kRollout);
    if (evaluator.is_due_at_start(rollout_id)) evaluator.run(rollout_id);
    RolloutLog rollout_log(inputs, memory, log, rollout_id);
    while (rollout_id < inputs.num_rollouts && !device::any_of(mesh.host(), session::stop_requested())) {
      // The rollout phase: the KV cache owns the arena. Groups are graded while the longest completions still decode.
      std::optional<sampling::Rollout> rollout = rollouts.next(rollout_id, rewards, log.report());
      if (!rollout) break;  // a stop signal: what was sampled since the last rollout is dropped
      rollout_log.sampled(*rollout);

      // The train phase: activations and gradients own the arena. Until end_update() the weights belong to no rollout.
      checkpointer.begin_update();
      memory.enter(Phase::kTrain);
      rollout_log.training_begins();
      learner.mask_older_tokens(*rollout);
      learner.score_rewards(rollout_id, *rollout, log);
      learner.score_reference(*rollout, log);
      std::optional<report::Metrics> last_step;
      if (learner.score_teachers(*rollout, log)) {
        learner.assign_advantages(rollout_id, *rollout, log);
        checkpointer.begin_steps();
        last_step = learner.optimizer_steps(rollout_id, *rollout, patience, log);
      }
      if (!last_step) {
        rollout_log.print_abandoned(rollout_id, checkpointer.abandon_update());
        memory.enter(Phase::kRollout);
        break;
      }
      learner.update_reference(rollout_id + 1, log);
      rollout_log.training_ended();

      // The engine decodes from the bytes that the optimizer wrote; only the version number is new. Rollout workers
      // copy them, and those that sample while the run trains go on before anything is written.
      memory.enter(Phase::kRollout);
      rollout_log.weights_updated(rollouts.update_weights());
      checkpoint::DataPosition position = rollouts.position();
      if (!evaluator.is_due_after(rollout_id + 1)) rollouts.go_on(rollout_id + 1, rewards);
      rollout_log.write(rollout_id, *rollout);
      checkpointer.end_update(++rollout_id, std::move(position));
      rollout_log.print(rollout_id, *rollout, *last_step);
      patience.observe_rollout(rollout_id - 1, *rollout);

      if (evaluator.is_due_after(rollout_id)) evaluator.run(rollout_id);
      // A thread writes the checkpoint while the next rollout runs.
      if (const auto parts = config.output.parts_due(rollout_id, inputs.num_rollouts)) checkpointer.start(*parts);
    }
    if (rollout_id == inputs.num_rollouts) patience.check_that_some_were_graded(rollout_id);
  });
  return finish_run(inputs, memory, log, rollout_id, checkpointer.saved_step());
}

}  // namespace tandem::run
