// New weights on their way to rollout workers, as rank 0 gives them: shown, so that a worker copies them from the
// trainers' memory, or in pieces. The torch-free face of rollout_worker/replica_weights.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "sampling/processes/messages.h"

namespace tandem::sampling {

// Feeds rollout workers with weights. `is_base` selects the frozen model under an adapter; otherwise the trained
// weights are meant.
class WeightFeed {
 public:
  virtual ~WeightFeed() = default;

  // Called when the weights of the trainers are new, by all ranks of rank 0's tensor-parallel group together. It calls
  // `begin` when all parts are whole and send() gives the new weights, and `finish` when checksums() does too; it
  // returns on every rank when `finish` has.
  virtual void update(const std::function<void()>& begin, const std::function<void()>& finish) = 0;

  virtual bool has_adapter() const = 0;
  virtual std::string hash() const = 0;  // WeightSpec::hash, the same for every part
  virtual uint64_t version(bool is_base) const = 0;
  // Returns the words that Welcome carries, by tensor rank.
  virtual std::vector<std::string> words(bool is_base) const = 0;
  // Returns the checksums of all parts, in the order of WeightChecksums. Those of one part may be asked for from
  // `begin` on.
  virtual const std::vector<uint64_t>& checksums(bool is_base) = 0;
  // Calls `send` with every piece of every part, in order; the bytes are valid during the call.
  using SendPiece = std::function<void(const Weights& piece, std::span<const std::byte> bytes)>;
  virtual void send(bool is_base, const SendPiece& send) const = 0;
};

}  // namespace tandem::sampling
