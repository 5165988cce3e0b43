// Writes a run's checkpoints while the next rollout runs: RUN/checkpoints/step_000100 to resume from,
// RUN/hf/step_000100 for transformers. It writes one at a time, on a thread of its own, from the live weights and
// moments, which nothing changes before wait(): the next optimizer step begins with it.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "checkpoint/checkpoints.h"
#include "checkpoint/run_directory.h"
#include "checkpoint/run_state.h"
#include "checkpoint/saving_ranks.h"
#include "config/output_options.h"

namespace tandem::checkpoint {

class CheckpointWriter {
 public:
  // Writes the live weights into a directory that may hold an earlier export. Every rank calls it: the ranks of one
  // tensor-parallel group write them together, with rank 0 writing the files; the others return at once.
  using Export = std::function<void(const std::string& directory)>;

  // The directory is borrowed. `keep_latest` of checkpoints/ stay. Several ranks write one checkpoint together: each
  // has a writer and starts it with its own tensors.
  CheckpointWriter(Export export_weights, const RunDirectory& directory, int64_t keep_latest, SavingRanks ranks = {})
      : export_weights_(std::move(export_weights)),
        directory_(directory),
        keep_latest_(keep_latest),
        ranks_(std::move(ranks)) {}
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  // Begins to write. Throws BugError while another checkpoint is being written.
  void start(const RunState& state, std::vector<SavedTensor> tensors,
             config::SavedParts parts = config::SavedParts::kBoth);

  // wait() waits for the checkpoint that is being written, if any. Then the pointer to it is durable: it counts as
  // saved.
  struct Saved {
    int64_t step = 0;
    config::SavedParts parts = config::SavedParts::kBoth;
    double seconds = 0.0;         // total time of writing
    double waited_seconds = 0.0;  // part of `seconds` spent in wait()
  };
  std::optional<Saved> wait();  // throws the thread's error, on all ranks

 private:
  void write(const RunState& state, std::vector<SavedTensor> tensors, config::SavedParts parts);

  const Export export_weights_;
  const RunDirectory& directory_;
  const int64_t keep_latest_;
  const SavingRanks ranks_;
  std::thread thread_;
  Saved saved_;                 // written by the thread; read after join()
  std::exception_ptr failure_;  // written by the thread; read after join()
};

}  // namespace tandem::checkpoint
