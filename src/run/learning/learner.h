// The half of a training run that learns: it takes graded samples and leaves new weights in the session's store.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "checkpoint/run_state.h"
#include "device/host_memory.h"
#include "model/model.h"
#include "report/report.h"
#include "rl/learning_health.h"
#include "run/learning/custom_advantages.h"
#include "run/learning/reference.h"
#include "run/learning/reward_model.h"
#include "run/learning/teachers.h"
#include "run/patience.h"
#include "run/run_log.h"
#include "run/train_inputs.h"
#include "sampling/rollout.h"
#include "session/run_memory.h"
#include "trainer/trainer.h"

namespace tandem::run {

class Learner {
 public:
  // Builds the trainer over loaded weights and, if the loss compares with it, the reference. The reference is as it was
  // when the checkpoint was made that the run resumes from. Both arguments are borrowed; the memory's ledger records
  // what lasts.
  Learner(TrainInputs& inputs, session::RunMemory& memory);

  // Adds the scores of the reward model to the rewards, with --rm-model; rewards that were read from a file have them.
  void score_rewards(int64_t rollout_id, sampling::Rollout& rollout, RunLog& log);
  // Does the same with samples of an evaluation, which are made of these prompts and rewarded as `options` say. It does
  // nothing where those have no reward model.
  void score_evaluation(const config::RewardOptions& options, const session::PromptSet& prompts,
                        sampling::Rollout& rollout);
  // Computes log-probs of the reference for each sample, if the loss needs them.
  void score_reference(sampling::Rollout& rollout, RunLog& log);
  // Computes log-probs of each sample's teacher, with --use-opd. Returns false if the run was asked to stop while no
  // process of a teacher could score.
  bool score_teachers(sampling::Rollout& rollout, RunLog& log);
  // Takes tokens of older weights out of the loss, with --mask-offpolicy-in-partial-rollout. Call it before anything is
  // computed of the tokens that are trained.
  void mask_older_tokens(sampling::Rollout& rollout) const;
  // Takes truncated samples out of the loss and penalties from the rewards, as flags ask; then computes the advantages
  // within each group, lets the user's function change them if there is one, and logs the numbers of the rollout
  // (counted from 0): rollout/*, fault/*. Warns of rewards from which nothing can be learnt.
  void assign_advantages(int64_t rollout_id, sampling::Rollout& rollout, RunLog& log);
  // Runs the optimizer steps of the rollout, in sample order, --num-epochs-per-rollout times, and logs a record train/*
  // for each. With --old-logprobs proximal it scores samples of older weights before, if it must. Returns the metrics
  // of the last. Returns nullopt if --stop-grace-seconds were over; steps before the one that was given up stay done.
  // Throws UserError once `patience` has seen too many steps that were skipped.
  std::optional<report::Metrics> optimizer_steps(int64_t rollout_id, sampling::Rollout& rollout, Patience& patience,
                                                 RunLog& log);

  // Call it after `num_finished` rollouts: the reference becomes the policy when --ref-update-interval says so.
  void update_reference(int64_t num_finished, RunLog& log);
  // Adds what a checkpoint of this moment has to hold besides the optimizer: the reference, when rewards differed, and
  // the state of the user's function of advantages.
  void save(checkpoint::RunState& state, std::vector<checkpoint::SavedTensor>& tensors) const;

  trainer::Trainer& trainer() { return *trainer_; }

 private:
  // Returns the version of the weights that are trained: those before the first step on the rollout. Of a rollout that
  // was read from a file they count as the newest that sampled it.
  uint64_t trained_version(const sampling::Rollout& rollout) const;
  // Gives every sample its proximal log-probs, if the loss compares with them after they have gone, or before a
  // forward. `version` is that of the weights.
  bool has_exact_logprobs(const sampling::Rollout& rollout) const;
  void score_proximal(sampling::Rollout& rollout, int64_t num_steps, uint64_t version, RunLog& log);
  // `version` is that of the weights before the first step on the rollout; `is_on_policy` tells that they are the
  // present ones and that they, or those of before, sampled the batch.
  report::Metrics optimizer_step(int64_t step, const std::vector<const rl::Sample*>& batch, bool is_on_policy,
                                 uint64_t version, RunLog& log);
  const TrainInputs& inputs_;
  const trainer::Ranks ranks_;
  rl::LearningHealth health_;
  std::unique_ptr<model::Model> model_;
  std::optional<Reference> reference_;
  std::optional<CustomAdvantages> custom_advantages_;  // --custom-advantage-path
  std::optional<Teachers> teachers_;
  std::optional<RewardModel> reward_model_;
  std::unique_ptr<device::HostMemory> optimizer_memory_;  // memory of --offload-optimizer
  std::unique_ptr<trainer::Trainer> trainer_;
};

}  // namespace tandem::run
