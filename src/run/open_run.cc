#include "run/open_run.h"

#include <fmt/format.h>

#include "run/load_checkpoint.h"
#include "run/stop_signal.h"

namespace tandem::run {

RunState open_run(RunDirectory& directory, const std::optional<Checkpoint>& checkpoint,
                  const CheckpointOptions& options, trainer::Trainer& trainer, weights::WeightStore& store) {
  defer_stops(fmt::format(
      "stopping: what is finished is saved; a second signal ends the run at once\n    --load {} goes on from there",
      directory.path()));
  directory.create();
  if (!checkpoint) return {};
  RunState saved = read_state(*checkpoint);
  restore(*checkpoint, saved, trainer, store);
  if (resumes_in_place(options, directory.path())) directory.cut_back(saved.step, saved.file_bytes);
  return saved;
}

}  // namespace tandem::run
