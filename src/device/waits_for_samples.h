// Waits for ranks that sample, which may take any time.
#pragma once

#include "device/communicator.h"

namespace tandem::device {

// A communicator whose waits for another rank end after some time, as they do at first. Without that limit they last as
// long as the other's process runs: it tells a process that is frozen from one that takes long.
class LimitedWaits {
 public:
  virtual ~LimitedWaits() = default;
  // Called by the thread that waits.
  virtual void limit_waits(bool are_limited) = 0;
};

// While it lives, waits of a communicator have no limit. Kinds without LimitedWaits stay as they are.
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
