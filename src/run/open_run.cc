#include "run/open_run.h"

#include <fmt/format.h>

#include "checkpoint/load_checkpoint.h"
#include "run/stop_signal.h"

namespace tandem::run {

checkpoint::RunState open_run(checkpoint::RunDirectory& directory,
                              const std::optional<checkpoint::Checkpoint>& checkpoint,
                              const config::CheckpointOptions& options, trainer::Trainer& trainer,
                              weights::WeightStore& store) {
  defer_stops(fmt::format(
      "stopping: what is finished is saved; a second signal ends the run at once\n    --load {} goes on from there",
      directory.path()));
  directory.create();
  if (!checkpoint) return {};
  checkpoint::RunState saved = checkpoint::read_state(*checkpoint);
  restore(*checkpoint, saved, trainer, store);
  if (checkpoint::resumes_in_place(options, directory.path())) directory.cut_back(saved.step, saved.file_bytes);
  return saved;
}

}  // namespace tandem::run
