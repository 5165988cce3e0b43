#include "checkpoint/checkpoint_writer.h"

#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "memory/arena_allocator.h"

namespace tandem::checkpoint {

namespace {

using base::Clock;
using base::seconds_since;

}  // namespace

CheckpointWriter::~CheckpointWriter() {
  if (thread_.joinable()) thread_.join();
}

void CheckpointWriter::start(const RunState& state, std::vector<SavedTensor> tensors, config::SavedParts parts) {
  TANDEM_CHECK(!thread_.joinable(), "a checkpoint is being written already");
  failure_ = nullptr;
  thread_ = std::thread([this, state, parts, tensors = std::move(tensors)]() mutable {
    const Clock::time_point begin = Clock::now();
    const memory::BypassArena beside;  // its allocations outlive a change of phase
    try {
      write(state, std::move(tensors), parts);
    } catch (...) {
      failure_ = std::current_exception();
    }
    saved_ = {.step = state.step, .parts = parts, .seconds = seconds_since(begin)};
  });
}

// The pointer of checkpoints/ comes last, so that the step it names has its export, if it gets one.
void CheckpointWriter::write(const RunState& state, std::vector<SavedTensor> tensors, config::SavedParts parts) {
  if (parts != config::SavedParts::kCheckpoint) {
    ranks_.together([&] {
      export_weights_(directory_.checkpoint(state.step));
      return std::string();
    });
    ranks_.conductor_alone([&] { directory_.set_latest(state.step); });
  }
  if (parts == config::SavedParts::kExport) return;
  const Checkpoints checkpoints(directory_.path());
  checkpoints.save(state.step, state.to_json(), std::move(tensors), ranks_);
  ranks_.conductor_alone([&] {
    checkpoints.keep_latest(keep_latest_);
    if (state.best) directory_.remove_bests_before(state.best->step);
  });
}

std::optional<CheckpointWriter::Saved> CheckpointWriter::wait() {
  if (!thread_.joinable()) return std::nullopt;
  const Clock::time_point begin = Clock::now();
  thread_.join();
  saved_.waited_seconds = seconds_since(begin);
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
  return saved_;
}

}  // namespace tandem::checkpoint
