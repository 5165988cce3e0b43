#include "run/checkpointer.h"

#include <fmt/format.h>

#include <utility>

#include "base/check.h"
#include "base/files.h"
#include "base/log.h"
#include "checkpoint/checkpoints.h"
#include "checkpoint/load_checkpoint.h"
#include "checkpoint/resume.h"
#include "device/communicator.h"

namespace tandem::run {

checkpoint::SavingRanks saving_ranks(const mesh::Mesh& mesh) {
  return {.rank = mesh.rank(), .size = mesh.size(), .all_gather = [&mesh](const std::string& mine) {
            return device::all_gather_text(mesh.savers(), mine);
          }};
}

Checkpointer::Checkpointer(const session::ModelSession& session, const checkpoint::RunDirectory& directory,
                           const trainer::Trainer& trainer, RunLog& log, const config::CheckpointOptions& options,
                           const checkpoint::RunState& start, AddState add_state, const mesh::Mesh& mesh)
    : session_(session),
      directory_(directory),
      trainer_(trainer),
      ranks_(saving_ranks(mesh)),
      log_(log),
      add_state_(std::move(add_state)),
      step_(start.step),
      position_{.cursor = start.cursor},
      writer_(
          [&session, &mesh](const std::string& path) {
            if (mesh.data().rank() == 0) session.export_trained(path, mesh.tensor_savers());
          },
          directory, options.keep_latest, ranks_),
      // A run that resumes in another directory has no checkpoint there yet.
      saved_step_(ranks_.of_conductor([&] { return checkpoint::resumes_in_place(options, directory.path()); })
                      ? start.step
                      : 0),
      exported_step_(ranks_.of_conductor([&] { return base::directory_exists(directory.checkpoint(saved_step_)); })
                         ? saved_step_
                         : 0) {}

void Checkpointer::begin_update() {
  wait();
  is_updating_ = true;
  steps_have_begun_ = false;
  before_ = {};
  std::vector<checkpoint::SavedTensor> tensors;
  add_state_(before_, tensors);
  before_.optimizer = trainer_.progress();
}

void Checkpointer::end_update(int64_t step, checkpoint::DataPosition position) {
  step_ = step;
  position_ = std::move(position);
  is_updating_ = false;
}

bool Checkpointer::abandon_update() {
  is_abandoned_ = trainer_.progress() == before_.optimizer;
  if (is_abandoned_) is_updating_ = false;
  return is_abandoned_;
}

void Checkpointer::save_or_count(const std::string& what, const std::function<void()>& save) {
  std::exception_ptr lost;
  log_.write_or_count(what, "fault/save_errors", [&] {
    try {
      save();
    } catch (const device::PeerLost&) {
      lost = std::current_exception();
    }
  });
  if (lost) std::rethrow_exception(lost);
}

void Checkpointer::start(config::SavedParts parts) {
  if (is_updating_ || step_ == 0) return;
  const bool is_saved = step_ == saved_step_;
  if (is_saved && (parts == config::SavedParts::kCheckpoint || step_ == exported_step_)) return;
  if (is_saved) parts = config::SavedParts::kExport;
  save_or_count(fmt::format("step {}", step_), [&] {
    // Rank 0 alone has records, which a full disk may refuse. The others must not begin to save without it.
    ranks_.conductor_alone([this] { log_.report().sync(); });
    std::vector<checkpoint::SavedTensor> tensors =
        checkpoint::optimizer_tensors(trainer_, session_.config().shard.rank);
    if (position_.in_flight) tensors.push_back(checkpoint::in_flight_tensor(*position_.in_flight));
    checkpoint::RunState state;
    add_state_(state, tensors);
    if (is_abandoned_) state = before_;
    state.step = step_;
    state.optimizer = trainer_.progress();
    state.weight_version = session_.trained().version();
    state.cursor = position_.cursor;
    ranks_.conductor_alone([&] { state.file_bytes = directory_.growing_files(); });
    writer_.start(state, std::move(tensors), parts);
  });
}

void Checkpointer::wait() {
  save_or_count("a checkpoint", [this] {
    const std::optional<checkpoint::CheckpointWriter::Saved> saved = writer_.wait();
    if (!saved) return;
    if (saved->parts != config::SavedParts::kCheckpoint) exported_step_ = saved->step;
    if (saved->parts != config::SavedParts::kExport) saved_step_ = saved->step;
    log_.add({{"perf/save_model_time", saved->seconds}, {"perf/save_model_wait_time", saved->waited_seconds}});
    log_.report().print(fmt::format("saved {}", saved->parts == config::SavedParts::kExport
                                                    ? directory_.checkpoint(saved->step)
                                                    : checkpoint::Checkpoints(directory_.path()).path(saved->step)));
  });
}

void Checkpointer::note(const std::exception& error) {
  try {
    log_.report().note(fmt::format("error: {}", error.what()));
  } catch (const EnvironmentError&) {  // a full disk; the error itself is what ends the run
  }
}

void Checkpointer::save_at_end(const std::function<void()>& steps) {
  const auto save_last = [this] {
    wait();
    start(config::SavedParts::kBoth);
    wait();
  };
  try {
    steps();
  } catch (const std::exception& error) {
    note(error);
    if (ranks_.size > 1) throw;
    // Where a teacher or a reward model was lost, the weights are still those of the last finished step.
    if (is_updating_ && !steps_have_begun_) abandon_update();
    try {
      save_last();
    } catch (const std::exception& other) {
      base::log_warning("no checkpoint of the last step: {}", other.what());
    }
    throw;
  }
  save_last();
  TANDEM_ENV_CHECK(is_updating_ || step_ == saved_step_, directory_.path() + ": the last step could not be saved");
}

}  // namespace tandem::run
