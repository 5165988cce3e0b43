// Saves a training run after its finished steps, one checkpoint at a time and while the work continues, and also when
// the run ends, however that happens. A step is the unit that the run counts in: a rollout of `train`, an optimizer
// step of `sft`.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint_writer.h"
#include "checkpoint/data_position.h"
#include "checkpoint/run_directory.h"
#include "checkpoint/run_state.h"
#include "checkpoint/saving_ranks.h"
#include "config/checkpoint_options.h"
#include "config/output_options.h"
#include "mesh/mesh.h"
#include "run/run_log.h"
#include "session/model_session.h"
#include "trainer/trainer.h"

namespace tandem::run {

// Returns what the thread that writes checkpoints needs to know of the ranks. Call it before that thread begins. The
// mesh is borrowed.
checkpoint::SavingRanks saving_ranks(const mesh::Mesh& mesh);

class Checkpointer {
 public:
  // Adds what other parts have to save to the state of the last finished step, and to the optimizer's tensors.
  using AddState = std::function<void(checkpoint::RunState&, std::vector<checkpoint::SavedTensor>&)>;

  // All but the options are borrowed. `start` is where the run begins, as open_run() returns it. Every rank of the mesh
  // has one, and all make the same calls: each saves what it holds, and the first replica exports.
  Checkpointer(const session::ModelSession& session, const checkpoint::RunDirectory& directory,
               const trainer::Trainer& trainer, RunLog& log, const config::CheckpointOptions& options,
               const checkpoint::RunState& start, AddState add_state, const mesh::Mesh& mesh);

  // Waits for the checkpoint that is being written, which reads the weights that are about to change. Between
  // begin_update() and end_update() the weights belong to no step, and nothing is saved.
  void begin_update();
  // Optimizer steps begin. An error before this leaves the weights of the last finished step, which is saved then.
  void begin_steps() { steps_have_begun_ = true; }
  // The weights are now those of `step`, and `position` is where the next one takes its data from.
  void end_update(int64_t step, checkpoint::DataPosition position);
  // The step was given up. Returns whether the last finished one can still be saved: no optimizer step of this one has
  // changed the weights.
  bool abandon_update();

  // Begins to save these parts of the last finished step, except those that are durable already. The weights must stay
  // as they are until wait() or begin_update().
  void start(config::SavedParts parts);
  // Waits until the step that was being saved is saved and reported. perf/save_* are in the log's next record. Throws
  // EnvironmentError if the disk refused; with --on-save-error continue that is counted and reported instead. A rank
  // that is lost ends the run either way: nothing more could be saved with it.
  void wait();

  // Runs the steps and saves the last one, also when they throw: a run that fails keeps what it has learnt, and reports
  // the first error. One of several ranks that fails cannot save alone; then only what was saved before remains.
  void save_at_end(const std::function<void()>& steps);

  int64_t saved_step() const { return saved_step_; }

 private:
  // Treats errors of the disk like RunLog::write_or_count().
  void save_or_count(const std::string& what, const std::function<void()>& save);
  // Writes what ends the run to its log.txt.
  void note(const std::exception& error);

  const session::ModelSession& session_;
  const checkpoint::RunDirectory& directory_;
  const trainer::Trainer& trainer_;
  const checkpoint::SavingRanks ranks_;
  RunLog& log_;
  const AddState add_state_;
  int64_t step_;                       // the last finished step
  checkpoint::DataPosition position_;  // where the data of the next step begin
  // Stands below position_, so that it is destroyed first: its thread reads the groups in flight until it is joined.
  checkpoint::CheckpointWriter writer_;
  bool is_updating_ = false;       // true while the weights belong to no step
  bool steps_have_begun_ = false;  // of the update
  // The state of the other parts when begin_update() was called. A step may change it, and be given up, before its
  // first optimizer step changes the weights.
  checkpoint::RunState before_;
  bool is_abandoned_ = false;  // true if the last finished step is saved as it was then
  int64_t saved_step_;         // step that is durable in checkpoints/
  int64_t exported_step_;      // step that is durable in hf/
};

}  // namespace tandem::run
