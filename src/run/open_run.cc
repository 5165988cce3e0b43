#include "run/open_run.h"

#include "checkpoint/load_checkpoint.h"
#include "checkpoint/resume.h"
#include "session/stop_signal.h"

namespace tandem::run {

checkpoint::RunState open_run(checkpoint::RunDirectory& directory,
                              const std::optional<checkpoint::Checkpoint>& checkpoint,
                              const config::CheckpointOptions& options, trainer::Trainer& trainer,
                              weights::WeightStore& store, const checkpoint::SavingRanks& ranks) {
  // The run's last line says how to resume, once it is known whether anything is saved.
  session::defer_stops("stopping: what is finished is saved; a second signal ends the run at once");
  // This waits for all: a rank that has not looked at the directory yet would find what is made in it now.
  const bool in_place = ranks.of_conductor(
      [&] { return checkpoint.has_value() && checkpoint::resumes_in_place(options, directory.path()); });
  ranks.conductor_alone([&] {
    directory.create();
    if (in_place) checkpoint::check_still_opened(*checkpoint);
  });
  if (!checkpoint) return {};
  checkpoint::RunState saved = checkpoint::read_state(*checkpoint);
  restore(*checkpoint, saved, trainer, store);
  if (!in_place) return saved;
  ranks.wait_for_all();  // a rank that still reads a checkpoint must find it
  ranks.conductor_alone([&] { directory.cut_back(saved.step, saved.file_bytes); });
  return saved;
}

}  // namespace tandem::run
