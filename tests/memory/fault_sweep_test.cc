// One life of the memory plan is repeated: each time the next call of the device or of host memory fails, once or from
// then on, as out of memory or as a driver error. Whatever fails, it is reported in one line or by a return value, the
// phase and the lease are the old ones or the new ones, kept bytes are kept, and nothing leaks.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/log.h"
#include "device/cpu/cpu_host_memory.h"
#include "device/cpu/cpu_vmm.h"
#include "memory/arena.h"
#include "memory/host_arena.h"
#include "tests/device/memory/failing_vmm.h"
#include "tests/memory/simulated_vmm.h"

namespace tandem::memory {

namespace {

using device::FailingHostMemory;
using device::FailingVmm;
using device::Outcome;

constexpr int64_t kExtentBytes = 4096, kNumExtents = 5, kKeptBytes = 5000;
constexpr std::byte kStamp{9};

class Life {
 public:
  Life(FailingVmm& vmm, FailingHostMemory& host_memory, device::HostMemory& working_host_memory, bool hide)
      : vmm_(vmm), host_memory_(host_memory), working_host_memory_(working_host_memory), hide_(hide) {}

  // Returns how many of its steps failed.
  int64_t run() {
    Ledger ledger;
    ExtentPool pool(vmm_, ledger, kExtentBytes);
    ledger_ = &ledger;
    std::optional<HostArena> host_arena;
    std::optional<Arena> arena;
    const ArenaOptions arena_options{.num_extents = kNumExtents, .hide_idle_view = hide_};
    attempt([&] { host_arena.emplace(host_memory_, 16384); });
    attempt([&] { arena.emplace(pool, arena_options); });
    if (!host_arena || !arena) return num_failed_;
    arena_ = &*arena;
    std::byte* const kept = host_arena->allocate(kKeptBytes, Tag::kReference, "kept");
    std::byte* const back = host_arena->allocate(kKeptBytes, Tag::kReference, "back");
    std::fill_n(kept, kKeptBytes, kStamp);

    for (int step = 0; step < 3; ++step) {
      std::optional<ExtentLoan> loan;  // somebody beside the arena
      if (attempt([&] { loan = pool.borrow(3); }) && !loan) ++num_failed_;
      enter(Phase::kRollout);
      std::byte* const kv =
          arena->allocate(View::kRollout, arena->view_bytes(View::kRollout).largest_hole + 1, Tag::kKv, "kv");
      EXPECT_EQ(kv, nullptr) << "more than there is";
      if (std::byte* const cache = arena->allocate(View::kRollout, 4 * kExtentBytes, Tag::kKv, "kv")) {
        EXPECT_EQ(arena->allocate(View::kTrain, 1, Tag::kHead, "head"), nullptr) << "the rollout view has the lease";
        arena->free(cache);
      }
      loan.reset();
      enter(Phase::kTrain);
      if (std::byte* const all = arena->allocate(View::kTrain, arena->bytes(), Tag::kHead, "all")) {
        bring(*host_arena, kept, all, back);
        arena->free(all);
      }
    }
    host_arena->free(kept);
    host_arena->free(back);
    return num_failed_;
  }

 private:
  bool attempt(const std::function<void()>& act) {
    bool is_done = true;
    try {
      act();
    } catch (const EnvironmentError& error) {
      const std::string message = error.what();
      EXPECT_FALSE(message.empty() || message.find('\n') != std::string::npos) << message;
      EXPECT_NE(message.find(';'), std::string::npos) << "no remedy: " << message;
      is_done = false;
      ++num_failed_;
    }
    if (arena_ != nullptr) arena_->check();
    return is_done;
  }

  void enter(Phase phase) {
    const Phase phase_before = ledger_->phase();
    const int64_t held_bytes = arena_->view_bytes(view_of(phase_before)).held;
    const bool is_done = attempt([&] { arena_->enter(phase); });
    EXPECT_EQ(ledger_->phase(), is_done ? phase : phase_before);
    if (is_done) {
      EXPECT_EQ(arena_->view_bytes(view_of(phase)).held, arena_->bytes());
    } else {
      EXPECT_LE(arena_->view_bytes(view_of(phase_before)).held, held_bytes);
      if (view_of(phase) != view_of(phase_before)) {
        EXPECT_EQ(arena_->view_bytes(view_of(phase)).held, 0) << "half entered";
      }
    }
  }

  // Copies what is kept on the host to the device, and back to another place. A copy that fails loses nothing.
  void bring(HostArena& host_arena, const std::byte* kept, std::byte* device, std::byte* back) {
    const auto holds_stamp = [](const std::byte* bytes) {
      return std::all_of(bytes, bytes + kKeptBytes, [](std::byte byte) { return byte == kStamp; });
    };
    const bool is_there = attempt([&] {
      host_arena.memory().copy_to_device(device, kept, kKeptBytes);
      host_arena.memory().synchronize();
    });
    EXPECT_TRUE(holds_stamp(kept));
    if (!is_there) return;
    // This bypasses the wrapper: the test looks at the memory without a call that may fail.
    std::vector<std::byte> seen(kKeptBytes);
    working_host_memory_.copy_to_host(seen.data(), device, kKeptBytes);
    EXPECT_TRUE(holds_stamp(seen.data()));
    std::fill_n(back, kKeptBytes, std::byte{0});
    const bool is_back = attempt([&] {
      host_arena.memory().copy_to_host(back, device, kKeptBytes);
      host_arena.memory().synchronize();
    });
    EXPECT_TRUE(!is_back || holds_stamp(back));
  }

  FailingVmm& vmm_;
  FailingHostMemory& host_memory_;
  device::HostMemory& working_host_memory_;
  const bool hide_;
  Ledger* ledger_ = nullptr;
  Arena* arena_ = nullptr;
  int64_t num_failed_ = 0;
};

struct Machine {
  std::string name;
  bool is_cpu, can_alias, hide;
};

class FaultSweep : public testing::TestWithParam<Machine> {
 protected:
  void SetUp() override {
    base::set_log_terminal([](const std::string&) {});
  }
  void TearDown() override {
    base::set_log_terminal({});
    std::printf("%s: %ld lives, %ld of their steps failed\n", GetParam().name.c_str(), static_cast<long>(num_lives_),
                static_cast<long>(num_failed_));
  }

  // Returns false when there were too few calls of the device or the host for the k-th to happen.
  bool live(int64_t device_k, int64_t host_k, bool for_good, Outcome outcome) {
    SCOPED_TRACE(base::join_message("device call", device_k, "host call", host_k, for_good ? "for good" : "once",
                                    outcome == Outcome::kOutOfMemory ? "out of memory" : "driver error"));
    constexpr int64_t kTotalBytes = (kNumExtents + 4) * kExtentBytes;
    std::unique_ptr<device::Vmm> vmm;
    std::unique_ptr<device::HostMemory> host_memory;
    SimulatedHostMemory* simulated_host_memory = nullptr;
    if (GetParam().is_cpu) {
      vmm = std::make_unique<device::CpuVmm>(kTotalBytes, GetParam().can_alias);
      host_memory = std::make_unique<device::CpuHostMemory>();
    } else {
      auto simulated = std::make_unique<SimulatedVmm>(kTotalBytes, GetParam().can_alias);
      auto memory = std::make_unique<SimulatedHostMemory>(*simulated);
      simulated_host_memory = memory.get();
      vmm = std::move(simulated);
      host_memory = std::move(memory);
    }
    FailingVmm failing(*vmm);
    if (device_k >= 0) failing.arm(device_k, for_good, outcome);
    FailingHostMemory failing_host(*host_memory, host_k, for_good);
    const int64_t num_failed = Life(failing, failing_host, *host_memory, GetParam().hide).run();
    failing.settle();
    EXPECT_EQ(vmm->counts().num_extents, 0);
    EXPECT_EQ(vmm->counts().num_mappings, 0);
    EXPECT_EQ(vmm->counts().num_reservations, 0);
    EXPECT_EQ(vmm->device_bytes().free, kTotalBytes);
    if (simulated_host_memory != nullptr) {
      EXPECT_EQ(simulated_host_memory->num_allocations(), 0);
    }
    ++num_lives_;
    num_failed_ += num_failed;
    const bool has_failed = failing.has_failed() || failing_host.has_failed();
    if (!has_failed) {
      EXPECT_EQ(num_failed, 0);
    }
    return has_failed;
  }

  int64_t num_lives_ = 0, num_failed_ = 0;
};

INSTANTIATE_TEST_SUITE_P(Machines, FaultSweep,
                         testing::Values(Machine{"Simulated", false, true, false},
                                         Machine{"SimulatedHiding", false, true, true},
                                         Machine{"SimulatedMappedOnce", false, false, false},
                                         Machine{"Cpu", true, true, false}, Machine{"CpuHiding", true, true, true},
                                         Machine{"CpuMappedOnce", true, false, false}),
                         [](const auto& info) { return info.param.name; });

TEST_P(FaultSweep, EveryDeviceCallMayFail) {
  for (const bool for_good : {false, true})
    for (const Outcome outcome : {Outcome::kOutOfMemory, Outcome::kDriverError}) {
      int64_t k = 0;
      while (live(k, -1, for_good, outcome) && !HasFailure()) ++k;
      EXPECT_GT(k, 30) << "it ends only when the life makes no k-th call";
    }
}

TEST_P(FaultSweep, EveryHostCallMayFail) {
  for (const bool for_good : {false, true}) {
    int64_t k = 0;
    while (live(-1, k, for_good, Outcome::kDriverError) && !HasFailure()) ++k;
    EXPECT_GT(k, 10);
  }
}

}  // namespace
}  // namespace tandem::memory
