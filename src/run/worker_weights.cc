#include "run/worker_weights.h"

#include <span>
#include <vector>

#include "base/check.h"

namespace tandem::run {

namespace {

std::vector<device::Checksum> in_pairs(const std::vector<uint64_t>& sums) {
  std::vector<device::Checksum> result;
  for (size_t i = 0; i + 1 < sums.size(); i += 2) result.push_back({.first = sums[i], .second = sums[i + 1]});
  return result;
}

}  // namespace

WorkerWeights::WorkerWeights(const ModelSession& session, mesh::Channel& run, const Welcome& welcome)
    : session_(session),
      run_(run),
      trained_(weights::ShownWeights::map(session.trained(), session.device(), welcome.shown_trained)) {
  if (has_adapter()) base_ = weights::ShownWeights::map(session.base(), session.device(), welcome.shown_base);
}

weights::ShownWeights& WorkerWeights::shown(bool is_base) {
  std::optional<weights::ShownWeights>& shown = is_base ? base_ : trained_;
  TANDEM_ENV_CHECK(shown, "the run's memory is not mapped here");
  return *shown;
}

bool WorkerWeights::have_come(bool is_base) {
  if (is_base) return false;
  run_.send(to_bytes(TookWeights{session_.trained().version()}));
  return true;
}

bool WorkerWeights::take(const Weights& message) {
  if (!receiver_) receiver_.emplace(message.is_base ? session_.base() : session_.trained());
  receiver_->take({.tensor = message.tensor,
                   .first_byte = message.first_byte,
                   .num_bytes = message.num_bytes,
                   .checksum = message.checksum},
                  [this](std::span<std::byte> into) { run_.receive_bytes(into); });
  if (!message.is_last) return false;
  receiver_->finish(message.version);
  receiver_.reset();
  return have_come(message.is_base);
}

bool WorkerWeights::take(const CopyWeights& message) {
  shown(message.is_base).copy();
  return false;
}

bool WorkerWeights::take(const WeightChecksums& message) {
  shown(message.is_base).finish(message.version, in_pairs(message.sums));
  return have_come(message.is_base);
}

}  // namespace tandem::run
