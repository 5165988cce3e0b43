// Copies new weights in a thread, while the thread that owns this object samples.
#pragma once

#include <cstdint>
#include <functional>
#include <future>
#include <optional>

#include "base/bell.h"

namespace tandem::rollout_worker {

class WeightCopy {
 public:
  WeightCopy() = default;
  // Waits for the copy: what it uses has to outlive this object.
  ~WeightCopy() = default;
  WeightCopy(const WeightCopy&) = delete;
  WeightCopy& operator=(const WeightCopy&) = delete;

  // Runs `copy`, which makes weights of that version, in a thread. Throws EnvironmentError if an earlier copy is not
  // done, or if the machine refuses a thread.
  void start(uint64_t version, std::function<void()> copy);
  // Returns whether there is a copy that done() has not told of.
  bool is_running() const { return copy_.valid(); }
  // Waits for the copy, if there is one that done() has not told of; then done() will not. Throws what it has thrown.
  void wait();
  // Returns the version of a copy that is done, once; nullopt if there is none. Throws what `copy` has thrown.
  std::optional<uint64_t> done();
  // This descriptor is readable when done() has something, or will have in a moment.
  int descriptor() const { return bell_.descriptor(); }

 private:
  base::Bell bell_;
  uint64_t version_ = 0;
  std::future<void> copy_;  // the last member: it is waited for before the bell goes
};

}  // namespace tandem::rollout_worker
