// How ranks move tensors: processes with one device each (docs/ARCHITECTURE.md, "Many devices"). A communicator moves
// bytes. Whoever sums does it in an order that he chose, so that a sum has the same bits however the ranks are wired.
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

// Another rank is gone, did not answer in time, or somebody called abort(). The message names the operation and, where
// it is known, the rank. The communicator is of no more use.
class PeerLost : public EnvironmentError {
 public:
  explicit PeerLost(const std::string& message) : EnvironmentError(message) {}
};

// [rank][i]: for, or of, each rank a list of tensors. Contiguous, on the communicator's device.
using TensorLists = std::vector<std::vector<at::Tensor>>;

// What communication has cost a rank so far: the bytes that it sent, and the time that it waited. Work that was
// recorded (Ops::record) and is replayed is not counted.
struct Traffic {
  int64_t sent_bytes = 0;  // to other ranks
  double wait_s = 0.0;  // from the call of wait() until it was over: of the device, where that works ahead of the host
};

// One rank's end. Every rank makes the same calls in the same order, from one thread at a time.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // An exchange under way. Destroying it waits for it, without an error.
  class Exchange {
   public:
    virtual ~Exchange() = default;
    // What was received is there for the host, or for work of the device that is queued from now on; what was sent may
    // be overwritten in the same sense. PeerLost.
    virtual void wait() = 0;
  };
  // Sends to[q][i] to rank q, which receives it as its from[rank()][i]: lists of the same lengths and sizes in bytes on
  // both sides. Lists for the own rank are not looked at. Work that the device was given before is seen. The tensors
  // are held until wait() and must not be written before it, nor from[] read. Several exchanges may be under way; they
  // are waited for in the order in which they began.
  virtual std::unique_ptr<Exchange> start_exchange(TensorLists to, TensorLists from) = 0;

  // out = ((rank 0's part + rank 1's) + ...) in float32, rounded to out's dtype; then residual + that, rounded again,
  // unless `residual`, of that dtype, is undefined. Part, residual and out have one shape; float32 or bfloat16. For
  // ranks that see each other's memory, and parts that are small. False, on all ranks alike: nothing was done, and the
  // caller exchanges the parts and adds them up himself, which gives the same bits.
  virtual bool sum(const at::Tensor& /*part*/, const at::Tensor& /*residual*/, const at::Tensor& /*out*/) {
    return false;
  }

  // The traffic of this rank up to now, without waits that are still going on. Zeros from kinds that do not count,
  // which are those for tests.
  virtual Traffic traffic() { return {}; }

  // Ends what is under way on this rank with PeerLost. From any thread.
  virtual void abort() noexcept = 0;
};

// Of a run that is one process: exchanges are nothing.
std::unique_ptr<Communicator> solo_communicator();

// parts[r] are rank r's: afterwards every rank has all of them. The own ones are read, the others written. Several
// ranks' parts may lie in one tensor.
void all_gather(Communicator& ranks, const TensorLists& parts);
// Every rank's text, by rank. The tensors that carry it are of the host: for a communicator of the CPU.
std::vector<std::string> all_gather_text(Communicator& ranks, std::string_view mine);
// The text of rank `from` on every rank; the others' `mine` is not looked at. For a communicator of the CPU. That rank
// does not wait until the others have it.
std::string broadcast_text(Communicator& ranks, int from, std::string_view mine);
// Every rank's numbers, by rank; as many on each.
std::vector<std::vector<double>> all_gather_numbers(Communicator& ranks, std::span<const double> mine);
// Whether any rank says so.
bool any_of(Communicator& ranks, bool mine);

}  // namespace tandem::device
