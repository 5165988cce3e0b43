// Communication between ranks, processes with one device each (docs/ARCHITECTURE.md, "Many devices"). A communicator
// moves bytes. The caller sums, in an order of its own choice, so that a sum has the same bits however the ranks are
// wired.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tandem/error.h"

namespace tandem::device {

// Thrown when another rank is gone or did not answer in time, or when somebody called abort(). The message names the
// operation and, where it is known, the rank. The communicator can no longer be used.
class PeerLost : public EnvironmentError {
 public:
  explicit PeerLost(const std::string& message) : EnvironmentError(message) {}
};

class ExpertExchange;
struct SharedExperts;

// lists[rank][i] is tensor i for, or from, that rank. All are contiguous and on the communicator's device.
using TensorLists = std::vector<std::vector<at::Tensor>>;

// Counts what communication has cost a rank so far. Work that was recorded (Ops::record) and is replayed is not
// counted.
struct Traffic {
  int64_t sent_bytes = 0;  // bytes sent to other ranks
  double wait_s = 0.0;     // time spent in wait(); the device's time, where it works ahead of the host
};

// One rank's end of the group. Every rank makes the same calls in the same order, from one thread at a time.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Stands for an exchange in flight. Destroying it waits for it, without an error.
  class Exchange {
   public:
    virtual ~Exchange() = default;
    // Afterwards the received tensors may be read, and the sent ones overwritten, by the host or by device work that is
    // queued from now on. Throws PeerLost.
    virtual void wait() = 0;
  };
  // Sends to[q][i] to rank q, which receives it as its from[rank()][i]: both sides have lists of the same lengths and
  // sizes in bytes. Lists for the own rank are ignored. The exchange sees the results of device work that was queued
  // before. The tensors are held until wait(); before it they must not be written, and from[] must not be read. Several
  // exchanges may be in flight; they are waited for in the order in which they began.
  virtual std::unique_ptr<Exchange> start_exchange(TensorLists to, TensorLists from) = 0;

  // Computes out = ((rank 0's part + rank 1's) + ...) in float32, rounded to out's dtype; then residual + that, rounded
  // again, unless `residual`, of that dtype, is undefined. Part, residual and out have one shape and are float32 or
  // bfloat16. It serves ranks that see each other's memory, and small parts. It returns false, on all ranks alike, if
  // it did nothing: then the caller exchanges the parts and adds them up itself, which gives the same bits.
  virtual bool sum(const at::Tensor& /*part*/, const at::Tensor& /*residual*/, const at::Tensor& /*out*/) {
    return false;
  }

  // Makes what moves the rows of experts that the ranks share (device/expert_exchange.h), in memory of the devices that
  // all of them see. Every rank calls it; `hosts` connects the hosts of the same ranks. Returns null, on all ranks,
  // where this kind of communicator has nothing of its own for it.
  virtual std::unique_ptr<ExpertExchange> share_experts(const SharedExperts& shared, Communicator& hosts);

  // Throws PeerLost if this communicator has learnt that another rank is lost. Someone who waits for that rank on
  // another way calls it, since nobody else would tell them. Kinds that learn of a loss only in an exchange do nothing.
  virtual void check() {}

  // Returns the traffic of this rank up to now, without waits that have not ended. Kinds that do not count, which are
  // those for tests, return zeros.
  virtual Traffic traffic() { return {}; }

  // Ends the exchanges in flight on this rank with PeerLost. Any thread may call it.
  virtual void abort() noexcept = 0;
};

// Returns the communicator of a run that is one process: its exchanges do nothing.
std::unique_ptr<Communicator> solo_communicator();

// Gives every rank all parts; parts[r] are rank r's. The own ones are read, the others written. Several ranks' parts
// may lie in one tensor.
void all_gather(Communicator& ranks, const TensorLists& parts);
// Returns every rank's text, by rank. The tensors that carry it lie on the host, so this needs a CPU communicator.
std::vector<std::string> all_gather_text(Communicator& ranks, std::string_view mine);
// Returns the text of rank `from` on every rank; `mine` is ignored on the others. This needs a CPU communicator. Rank
// `from` does not wait until the others have the text.
std::string broadcast_text(Communicator& ranks, int from, std::string_view mine);
// Returns every rank's numbers, by rank. Each rank gives equally many.
std::vector<std::vector<double>> all_gather_numbers(Communicator& ranks, std::span<const double> mine);
// Returns whether `mine` is true on any rank.
bool any_of(Communicator& ranks, bool mine);

}  // namespace tandem::device
