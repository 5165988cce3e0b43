#include "run/checkpoint_writer.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "memory/tensor_memory.h"

namespace tandem::run {

namespace {

using base::Clock;
using base::seconds_since;

constexpr int64_t kOptimizerBytesPerParameter = 12;
// Headers of the weights, state.json, the manifest.
constexpr int64_t kHeaderBytes = int64_t{256} << 10;

}  // namespace

int64_t hf_checkpoint_bytes(const Session& session) {
  return session.weight_bytes() + weights::copied_bytes(session.directory()) + kHeaderBytes;
}

int64_t optimizer_checkpoint_bytes(const Session& session) {
  return session.config().num_parameters() * kOptimizerBytesPerParameter + kHeaderBytes;
}

RunSpace checkpoint_space(const Session& session, int64_t num_exports, int64_t num_checkpoints, int64_t keep_latest) {
  RunSpace space;
  space.exports = num_exports * hf_checkpoint_bytes(session);
  space.checkpoints = std::min(num_checkpoints, keep_latest + 1) * optimizer_checkpoint_bytes(session);
  return space;
}

CheckpointWriter::~CheckpointWriter() {
  if (thread_.joinable()) thread_.join();
}

void CheckpointWriter::start(const RunState& state, std::vector<weights::TensorBytes> tensors, SavedParts parts) {
  TANDEM_CHECK(!thread_.joinable(), "a checkpoint is being written already");
  failure_ = nullptr;
  thread_ = std::thread([this, state, parts, tensors = std::move(tensors)]() mutable {
    const Clock::time_point begin = Clock::now();
    const memory::OutsidePhases beside;  // what it allocates outlives a change of phase
    try {
      write(state, std::move(tensors), parts);
    } catch (...) {
      failure_ = std::current_exception();
    }
    saved_ = {.step = state.step, .parts = parts, .seconds = seconds_since(begin)};
  });
}

// The pointer of checkpoints/ comes last: what it names has its export, where it gets one.
void CheckpointWriter::write(const RunState& state, std::vector<weights::TensorBytes> tensors, SavedParts parts) {
  if (parts != SavedParts::kCheckpoint) {
    session_.export_checkpoint(directory_.checkpoint(state.step), /*overwrite=*/true);
    directory_.set_latest(state.step);
  }
  if (parts == SavedParts::kExport) return;
  const Checkpoints checkpoints(directory_.path());
  checkpoints.save(state.step, state.to_json(), std::move(tensors));
  checkpoints.keep_latest(keep_latest_);
}

std::optional<CheckpointWriter::Saved> CheckpointWriter::wait() {
  if (!thread_.joinable()) return std::nullopt;
  const Clock::time_point begin = Clock::now();
  thread_.join();
  saved_.waited_seconds = seconds_since(begin);
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
  return saved_;
}

}  // namespace tandem::run
