// The half of a training run that learns: graded samples in, new weights in the session's store out.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "checkpoint/resume.h"
#include "device/host_memory.h"
#include "model/model.h"
#include "report/report.h"
#include "rl/learning_health.h"
#include "run/patience.h"
#include "run/reference.h"
#include "run/run_log.h"
#include "run/train_inputs.h"
#include "sampling/rollout_phase.h"
#include "session/run_memory.h"
#include "trainer/trainer.h"

namespace tandem::run {

class Learner {
 public:
  // The trainer and, where the loss compares with it, the reference, over weights that are loaded; the reference is as
  // it was when the checkpoint was made that the run resumes from. Borrows both; the memory's ledger is told what
  // lasts.
  Learner(const TrainInputs& inputs, session::RunMemory& memory);

  // Log-probs of the reference for each sample, where the loss needs them.
  void score_reference(sampling::Rollout& rollout, RunLog& log);
  // Takes truncated samples out of the loss and penalties from the rewards, as flags ask; then the advantages within
  // each group, and the numbers of the rollout, which counts from 0: rollout/*, fault/*. Warns of rewards from which
  // nothing can be learnt.
  void assign_advantages(int64_t rollout_id, sampling::Rollout& rollout, RunLog& log);
  // The optimizer steps of the rollout, in sample order and that --num-epochs-per-rollout times, each a record train/*.
  // Returns the metrics of the last.
  // nullopt: --stop-grace-seconds were over, and the weights are those of no finished rollout. UserError when patience
  // is.
  std::optional<report::Metrics> optimizer_steps(int64_t rollout_id, const sampling::Rollout& rollout,
                                                 Patience& patience, RunLog& log);

  // Behind `num_finished` rollouts: the reference becomes the policy where --ref-update-interval says so.
  void update_reference(int64_t num_finished, RunLog& log);
  // Adds what a checkpoint of this moment has to hold beside the optimizer: the reference, and when rewards differed.
  void save(checkpoint::RunState& state, std::vector<checkpoint::SavedTensor>& tensors) const;

  trainer::Trainer& trainer() { return *trainer_; }

 private:
  // is_on_policy: the batch was sampled with the present weights.
  report::Metrics optimizer_step(int64_t step, const std::vector<const rl::Sample*>& batch, bool is_on_policy,
                                 RunLog& log);
  // Of this rank's device.
  device::Traffic traffic() const;

  const TrainInputs& inputs_;
  const trainer::Ranks ranks_;
  rl::LearningHealth health_;
  std::unique_ptr<model::Model> model_;
  std::optional<Reference> reference_;
  std::unique_ptr<device::HostMemory> optimizer_memory_;  // of --offload-optimizer
  std::unique_ptr<trainer::Trainer> trainer_;
};

}  // namespace tandem::run
