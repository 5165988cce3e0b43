// The device's memory in a training run: the arena in which rollout and training take turns, the ledger, and the
// comparison of both with the plan.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "config/memory_options.h"
#include "device/memory_driver.h"
#include "device/registry.h"
#include "memory/arena.h"
#include "memory/arena_allocator.h"
#include "memory/extent_pool.h"
#include "memory/ledger.h"
#include "plan/plan.h"
#include "report/report.h"

namespace tandem::session {

// Make it before the weights are read and destroy it after everything that allocates from it.
class RunMemory {
 public:
  // Takes the arena that the plan asks for, on that device, whose operations are made. Throws EnvironmentError if the
  // device has less memory left than when it was planned.
  RunMemory(const config::MemoryOptions& config, const plan::TrainPlan& plan, const device::DeviceSpec& device);
  ~RunMemory();
  RunMemory(const RunMemory&) = delete;
  RunMemory& operator=(const RunMemory&) = delete;

  // Returns the address of the KV cache's plan.num_kv_blocks blocks. It never changes; the memory is theirs in the
  // rollout phase alone.
  std::byte* kv() const { return arena_.data(memory::View::kRollout); }
  // Returns pinned memory of the host, for one user.
  std::unique_ptr<device::HostMemory> make_host() const { return driver_.make_host(); }
  std::function<void()> synchronize() const { return driver_.synchronize; }  // waits for the device

  // Records what was taken outside of the arena for as long as the run lasts.
  void add_persistent(memory::Tag tag, int64_t bytes);

  // Moves the lease to that phase: no call of the driver, one wait for the device. Throws BugError if something of the
  // previous phase is live.
  void enter(memory::Phase phase);

  // Returns perf/memory_*: high-water marks in GiB next to the plan's, and how long the last changes of phase took.
  report::Metrics metrics() const;
  // Returns the lines of memory_timeline.jsonl since the last call: what happened, and after each step the marks of
  // every tag and phase next to the plan's.
  std::vector<std::string> timeline(int64_t step);
  // Returns the last thousands of events that timeline() reported, for chrome://tracing or Perfetto.
  std::string trace() const;

 private:
  void measure();

  const memory::MemoryPlan plan_;
  const int64_t kv_bytes_;
  device::MemoryDriver driver_;
  memory::Ledger ledger_;
  memory::ExtentPool pool_;
  memory::Arena arena_;
  memory::ArenaAllocator tensors_;
  bool has_kv_ = false;                      // true while the blocks are allocated: the phase is the rollout's
  std::vector<memory::LedgerEvent> events_;  // the newest events
  double to_rollout_s_ = 0.0, to_train_s_ = 0.0;
};

}  // namespace tandem::session
