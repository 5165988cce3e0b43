// Writes a run's checkpoints while the next rollout runs: RUN/checkpoints/step_000100 to go on from, RUN/hf/step_000100
// for transformers. One at a time, on a thread of its own, from the live weights and moments, which nobody changes
// before wait(): the next optimizer step begins with it.
#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "run/checkpoints.h"
#include "run/output_options.h"
#include "run/resume.h"
#include "run/run_directory.h"
#include "run/run_space.h"
#include "run/session.h"

namespace tandem::run {

// What checkpoints take on disk, about.
int64_t hf_checkpoint_bytes(const Session& session);         // weights, tokenizer and configuration
int64_t optimizer_checkpoint_bytes(const Session& session);  // float32 masters and two moments
// Of a whole run: every export, and one more of the others than are kept, since the oldest goes when the newest is
// there.
RunSpace checkpoint_space(const Session& session, int64_t num_exports, int64_t num_checkpoints, int64_t keep_latest);

class CheckpointWriter {
 public:
  // Borrowed; `keep_latest` of checkpoints/ stay.
  CheckpointWriter(const Session& session, const RunDirectory& directory, int64_t keep_latest)
      : session_(session), directory_(directory), keep_latest_(keep_latest) {}
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  // Begins; BugError while another is being written.
  void start(const RunState& state, std::vector<weights::TensorBytes> tensors, SavedParts parts = SavedParts::kBoth);

  // Waits for the one that is being written, if any. The pointer to it is durable then: it counts as saved.
  struct Saved {
    int64_t step = 0;
    SavedParts parts = SavedParts::kBoth;
    double seconds = 0.0;         // that it took
    double waited_seconds = 0.0;  // of these, here
  };
  std::optional<Saved> wait();  // throws what the thread threw

 private:
  void write(const RunState& state, std::vector<weights::TensorBytes> tensors, SavedParts parts);

  const Session& session_;
  const RunDirectory& directory_;
  const int64_t keep_latest_;
  std::thread thread_;
  Saved saved_;                 // of the thread; read after join()
  std::exception_ptr failure_;  // likewise
};

}  // namespace tandem::run
