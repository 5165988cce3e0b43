#include "rollout_worker/worker_weights.h"

#include <span>
#include <utility>
#include <vector>

#include "base/check.h"
#include "memory/arena_allocator.h"
#include "session/together.h"

namespace tandem::rollout_worker {

namespace {

// Returns the word of the rank's part; "" if the run shows none.
std::string word_of(const std::vector<std::string>& words, int rank) {
  return std::cmp_less(rank, words.size()) ? words[static_cast<size_t>(rank)] : "";
}

// Returns the checksums of one of `num_parts` parts, which all have as many tensors.
std::vector<device::Checksum> checksums_of(const std::vector<uint64_t>& sums, int part, int num_parts) {
  const size_t numbers = sums.size() / static_cast<size_t>(num_parts);  // numbers of a part, two for each tensor
  const auto mine = std::span(sums).subspan(static_cast<size_t>(part) * numbers, numbers);
  std::vector<device::Checksum> result;
  for (size_t i = 0; i + 1 < mine.size(); i += 2) result.push_back({.first = mine[i], .second = mine[i + 1]});
  return result;
}

}  // namespace

WorkerWeights::WorkerWeights(const session::ModelSession& session, EngineRanks& ranks, const sampling::Welcome& welcome)
    : session_(session),
      ranks_(ranks),
      trained_(weights::ShownWeights::map(session.trained(), session.device(),
                                          word_of(welcome.shown_trained, ranks.rank()))) {
  if (has_adapter()) {
    base_ = weights::ShownWeights::map(session.base(), session.device(), word_of(welcome.shown_base, ranks.rank()));
  }
  all_map_ = !ranks_.any_of(!trained_ || (has_adapter() && !base_));
}

weights::ShownWeights& WorkerWeights::shown(bool is_base) {
  std::optional<weights::ShownWeights>& shown = is_base ? base_ : trained_;
  TANDEM_ENV_CHECK(shown, "the run's memory is not mapped here");
  return *shown;
}

// Finishes the update on all ranks. Every rank checks its own part and tells the others, so that none samples if a rank
// has another version, or none.
bool WorkerWeights::have_come(bool is_base, uint64_t version, const std::function<void()>& finish) {
  session::together(ranks_.hosts(), [&] {
    finish();
    const weights::WeightStore& store = this->store(is_base);
    TANDEM_ENV_CHECK(store.is_whole() && store.version() == version, "new weights have not all come");
    return std::string();
  });
  return !is_base;
}

bool WorkerWeights::take(const sampling::Weights& piece, std::span<const std::byte> bytes) {
  TANDEM_ENV_CHECK(piece.part >= 0 && piece.part < ranks_.size(), "new weights are of a part that there is not");
  if (piece.part == EngineRanks::kFirst) {
    if (ranks_.is_first()) take_own(piece, bytes);
  } else {
    const std::vector<std::byte> passed = ranks_.pass_bytes(static_cast<int>(piece.part), bytes, piece.num_bytes);
    if (piece.part == ranks_.rank()) take_own(piece, passed);
  }
  if (!piece.is_last || piece.part + 1 < ranks_.size()) return false;
  return have_come(piece.is_base, piece.version, [] {});
}

void WorkerWeights::take_own(const sampling::Weights& piece, std::span<const std::byte> bytes) {
  const bool begins_again = piece.tensor == 0 && piece.first_byte == 0;  // those that came before were cut off
  if (!receiver_ || begins_again) receiver_.emplace(store(piece.is_base));
  receiver_->take({.tensor = piece.tensor,
                   .first_byte = piece.first_byte,
                   .num_bytes = piece.num_bytes,
                   .checksum = piece.checksum},
                  bytes);
  if (!piece.is_last) return;
  receiver_->finish(piece.version);
  receiver_.reset();
}

bool WorkerWeights::take(const sampling::CopyWeights& message) {
  shown(message.is_base).copy();
  return false;
}

int64_t WorkerWeights::allocate_second_copy() {
  TANDEM_CHECK(maps() && ranks_.size() == 1, "the other ranks of an engine get no messages while it samples");
  trained_->allocate_second();
  return session_.trained().bytes();
}

void WorkerWeights::copy_ahead(const sampling::CopyWeights& message) {
  TANDEM_ENV_CHECK(copies_ahead() && !message.is_base, "the run shows weights for a second copy that is not here");
  copy_.start(message.version, [&trained = *trained_] {
    const memory::BypassArena outside;  // the copy takes no part in the phases of the thread that samples
    trained.copy_ahead();
  });
}

bool WorkerWeights::take(const sampling::WeightChecksums& message) {
  copy_.wait();  // a run that was not sampling says them at once
  return have_come(message.is_base, message.version, [&] {
    shown(message.is_base).finish(message.version, checksums_of(message.sums, ranks_.rank(), ranks_.size()));
  });
}

}  // namespace tandem::rollout_worker
