// Saves a training run behind its finished steps, one checkpoint at a time and beside the work that follows, and when
// it ends, however that comes. A step is what the run counts in: a rollout of `train`, an optimizer step of `sft`.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "checkpoint/checkpoint_writer.h"
#include "checkpoint/resume.h"
#include "checkpoint/run_directory.h"
#include "checkpoint/saving_ranks.h"
#include "config/checkpoint_options.h"
#include "config/output_options.h"
#include "mesh/mesh.h"
#include "rl/prompt_order.h"
#include "run/run_log.h"
#include "session/model_session.h"
#include "trainer/trainer.h"

namespace tandem::run {

// For the thread that writes checkpoints, and before it begins. Borrows the mesh.
checkpoint::SavingRanks saving_ranks(const mesh::Mesh& mesh);

class Checkpointer {
 public:
  // Puts what other parts have to save into the state of the last finished step, and beside the optimizer's tensors.
  using AddState = std::function<void(checkpoint::RunState&, std::vector<checkpoint::SavedTensor>&)>;

  // All but the options are borrowed. `start`: where the run begins, as open_run() has it. Every rank of the mesh has
  // one, and all make the same calls: each saves what it holds, and the first replica exports.
  Checkpointer(const session::ModelSession& session, const checkpoint::RunDirectory& directory,
               const trainer::Trainer& trainer, RunLog& log, const config::CheckpointOptions& options,
               const checkpoint::RunState& start, AddState add_state, const mesh::Mesh& mesh);

  // Waits for the checkpoint that is being written, which reads the weights that are about to change. Between these two
  // calls the weights belong to no step, and nothing is saved.
  void begin_update();
  // The weights are those of `step`, and `cursor` is where the next one takes its data from.
  void end_update(int64_t step, const rl::PromptCursor& cursor);

  // Begins to save these parts of the last finished step, but for what of them is durable already. The weights must
  // stay as they are until wait() or begin_update().
  void start(config::SavedParts parts);
  // The step that was being saved counts as saved, and is said to be, when this returns. perf/save_* are in the log's
  // next record. EnvironmentError: the disk refused; with --on-save-error continue that is counted and said instead.
  void wait();

  // Runs the steps and saves the last, also when they throw: a run that fails keeps what it has learnt, and the first
  // error is the one to report. One of several ranks that fails cannot save alone: then what has been saved stays.
  void save_at_end(const std::function<void()>& steps);

  int64_t saved_step() const { return saved_step_; }

 private:
  const session::ModelSession& session_;
  const checkpoint::RunDirectory& directory_;
  const trainer::Trainer& trainer_;
  const checkpoint::SavingRanks ranks_;
  RunLog& log_;
  const AddState add_state_;
  checkpoint::CheckpointWriter writer_;
  int64_t step_;              // the last finished
  rl::PromptCursor cursor_;   // behind it
  bool is_updating_ = false;  // the weights belong to no step
  int64_t saved_step_;        // durable in checkpoints/
  int64_t exported_step_;     // durable in hf/
};

}  // namespace tandem::run
