// Lifts the timeout of waits for ranks that sample, which may take any time.
#pragma once

#include "device/communicator.h"

namespace tandem::device {

// A communicator whose waits for another rank have a timeout, at first. Without it they last as long as the other
// rank's process runs: it can tell a process that is frozen from one that takes long.
class LimitedWaits {
 public:
  virtual ~LimitedWaits() = default;
  // The thread that waits calls this.
  virtual void limit_waits(bool are_limited) = 0;
};

// While this object lives, waits of a communicator have no timeout. Kinds without LimitedWaits stay as they are.
class WaitsForSamples {
 public:
  explicit WaitsForSamples(Communicator& ranks) : waits_(dynamic_cast<LimitedWaits*>(&ranks)) {
    if (waits_ != nullptr) waits_->limit_waits(false);
  }
  ~WaitsForSamples() {
    if (waits_ != nullptr) waits_->limit_waits(true);
  }
  WaitsForSamples(const WaitsForSamples&) = delete;
  WaitsForSamples& operator=(const WaitsForSamples&) = delete;

 private:
  LimitedWaits* const waits_;
};

}  // namespace tandem::device
