// The half of a supervised run that learns: it takes samples in the order of the data set and leaves new weights in the
// session's store.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/run_state.h"
#include "data/prompt_order.h"
#include "model/model.h"
#include "report/report.h"
#include "rl/learning_health.h"
#include "run/learning/held_out.h"
#include "run/learning/preferences.h"
#include "run/run_log.h"
#include "run/sft_inputs.h"
#include "tandem/error.h"
#include "trainer/trainer.h"

namespace tandem::run {

class SftLearner {
 public:
  // Builds the trainer over loaded weights, those that the run begins with. With preferences the reference, these or
  // those of --ref-load, scores here all that the steps and evaluations will ask for. The inputs are borrowed. Every
  // rank of their mesh has a learner and makes the same calls; a step is that of one process, bit for bit.
  explicit SftLearner(SftInputs& inputs);

  // Restores the state after the step that was saved; the trainer has its own state already.
  void restore(const checkpoint::RunState& saved);

  // Runs the optimizer step over the next samples (steps count from 0) and writes its record train/*, with all that was
  // added to the log. Returns its metrics, or nullopt if --stop-grace-seconds were over; the weights are then those of
  // the step before. Throws UserError after --max-skipped-steps.
  std::optional<report::Metrics> step(int64_t step, RunLog& log);

  // Evaluates the held-out data under the present weights. Returns nullopt when the run was asked to stop.
  std::optional<HeldOut::Result> evaluate(report::Report& report) const;

  trainer::Trainer& trainer() { return *trainer_; }
  const data::PromptCursor& cursor() const { return order_.cursor(); }  // position of the next step's data
  int64_t skipped_in_a_row() const { return skipped_in_a_row_; }
  // Call it when the step may be saved. Throws UserError after --max-skipped-steps.
  void check_goes_on() const {
    if (!why_to_stop_.empty()) throw UserError(why_to_stop_);
  }

 private:
  // Returns the indices of the next step's samples, or pairs, or labelled answers.
  std::vector<int64_t> next_items(data::PromptOrder& order) const;
  void score_reference(SftInputs& inputs, const model::Model& reference,
                       const std::function<std::string()>& why_not_finite);
  void see_skipped(int64_t step, const report::Metrics& metrics, const std::vector<int64_t>& items);

  const SftInputs& inputs_;
  const trainer::Ranks ranks_;
  data::PromptOrder order_;
  rl::LearningHealth health_;
  std::unique_ptr<model::Model> model_;
  std::unique_ptr<trainer::Trainer> trainer_;
  std::optional<Preferences> preferences_;
  int64_t skipped_in_a_row_ = 0;
  std::string why_to_stop_;  // after this step
};

}  // namespace tandem::run
