// Ten thousand random lives of an arena on a simulated device, healthy and failing, with other borrowers of its pool
// and with tensors that wait on the host. After every step: the lease has one holder, live memory is mapped
// and holds what was written into it, addresses are where they were, and ledger, pool and device count the same. The
// seed is printed; --seed S --sequences N runs others.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <optional>
#include <random>
#include <string>

#include "base/check.h"
#include "base/log.h"
#include "memory/arena.h"
#include "memory/host_arena.h"
#include "tests/device/memory/failing_vmm.h"
#include "tests/memory/simulated_vmm.h"

namespace tandem::memory {

uint64_t first_seed = 1;
int num_sequences = 10'000;

namespace {

using device::FailingVmm;
using device::Outcome;

constexpr int64_t kExtentBytes = 4096, kNumExtents = 6;

struct LiveAllocation {
  View view;
  std::byte* address;
  int64_t bytes;  // bytes asked for
  Tag tag;
  std::byte stamp;
};

// An allocation that waits on the host.
struct Offloaded {
  std::byte* host;
  int64_t bytes;
  std::byte stamp;
};

// Outlives everything on it, so that leaks on it can be counted.
struct SimulatedMachine {
  explicit SimulatedMachine(bool can_alias) : vmm((kNumExtents + 4) * kExtentBytes, can_alias) {}
  SimulatedVmm vmm;
  FailingVmm failing{vmm};
  SimulatedHostMemory host_memory{vmm};
};

class World {
 public:
  World(SimulatedMachine& machine, uint64_t seed)
      : vmm_(machine.vmm),
        failing_(machine.failing),
        random_(seed),
        hide_(draw(2) == 0),
        pool_(failing_, ledger_, kExtentBytes),
        host_arena_(machine.host_memory, 2 * kExtentBytes),
        arena_(pool_, {.num_extents = kNumExtents,
                       .hide_idle_view = hide_,
                       .synchronize = [this] { ++num_waits_; },
                       .patience = std::chrono::milliseconds(0)}),
        addresses_{arena_.data(View::kRollout), arena_.data(View::kTrain)} {}

  void step() {
    if (fault_steps_ > 0 && --fault_steps_ == 0) failing_.disarm();
    switch (draw(14)) {
      case 0:
      case 1:
      case 2: allocate(); break;
      case 3:
      case 4: free_one(); break;
      case 5: retag_one(); break;
      case 6:
      case 7: enter(); break;
      case 8: borrow_or_return(); break;
      case 9: offload_one(); break;
      case 10:
      case 11: bring_one_back(); break;
      case 12: misuse(); break;
      default:
        failing_.arm(draw(8), draw(3) == 0, draw(2) == 0 ? Outcome::kOutOfMemory : Outcome::kDriverError);
        fault_steps_ = 1 + draw(4);
    }
    check();
  }

  void end() {
    while (!live_.empty()) free_one();
    while (!offloaded_.empty()) forget_one();
    TANDEM_CHECK_EQ(host_arena_.free_bytes(), host_arena_.bytes());
  }

 private:
  int64_t draw(int64_t below) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(below)); }
  Tag draw_tag() { return static_cast<Tag>(draw(4) + static_cast<int64_t>(Tag::kBatch)); }
  View draw_view() { return draw(2) == 0 ? View::kRollout : View::kTrain; }

  // Runs an action that a failing device may refuse. Returns true if it was done. A refusal needs an injected failure,
  // and its message is one line.
  bool tolerate(const std::function<void()>& act) {
    try {
      act();
      return true;
    } catch (const EnvironmentError& error) {
      const std::string message = error.what();
      TANDEM_CHECK(failing_.has_failed() && !message.empty() && message.find('\n') == std::string::npos, message);
      return false;
    }
  }

  template <typename Act>
  static void expect_bug(const Act& act) {
    bool is_told = false;
    try {
      act();
    } catch (const BugError&) {
      is_told = true;
    }
    TANDEM_CHECK(is_told, "misuse was not told");
  }

  void write(std::byte* address, int64_t bytes, std::byte stamp) {
    vmm_.at(address) = stamp;
    vmm_.at(address + bytes - 1) = stamp;
  }
  bool holds(std::byte* address, int64_t bytes, std::byte stamp) {
    return vmm_.at(address) == stamp && vmm_.at(address + bytes - 1) == stamp;
  }

  void allocate() {
    const View view = draw_view();
    const int64_t bytes = 1 + draw(draw(3) == 0 ? 3 * kExtentBytes : kExtentBytes / 2);
    const Tag tag = draw_tag();
    const Arena::ViewBytes before = arena_.view_bytes(view);
    std::byte* const address = arena_.allocate(view, bytes, tag, "a" + std::to_string(draw(1000)));
    TANDEM_CHECK_EQ(address == nullptr, bytes > before.largest_hole);
    if (address == nullptr) return;
    live_.push_back({view, address, bytes, tag, static_cast<std::byte>(draw(256))});
    write(address, bytes, live_.back().stamp);
  }

  void retag_one() {
    if (live_.empty()) return;
    LiveAllocation& allocation = live_[static_cast<size_t>(draw(std::ssize(live_)))];
    allocation.tag = draw_tag();
    arena_.retag(allocation.address, allocation.tag);
  }

  void free_one() {
    if (live_.empty()) return;
    std::swap(live_[static_cast<size_t>(draw(std::ssize(live_)))], live_.back());
    arena_.free(live_.back().address);
    live_.pop_back();
  }

  int64_t held_extents(View view) const { return arena_.view_bytes(view).held / kExtentBytes; }

  // The expected result follows from the live allocations.
  void enter() {
    const Phase before = ledger_.phase(), phase = static_cast<Phase>(draw(kNumPhases));
    const View from = view_of(before), to = view_of(phase), other = to == View::kTrain ? View::kRollout : View::kTrain;
    if (draw(2) == 0)
      std::erase_if(live_, [&](const LiveAllocation& allocation) {
        if (allocation.view == other) arena_.free(allocation.address);
        return allocation.view == other;
      });
    const bool is_live =
        std::any_of(live_.begin(), live_.end(), [&](const LiveAllocation& a) { return a.view == other; });
    const int64_t num_held = held_extents(from), num_waits = num_waits_;
    const bool is_moving = from != to || num_held < kNumExtents;
    bool is_done = false;
    if (is_live) {
      expect_bug([&] { arena_.enter(phase); });
    } else {
      is_done = tolerate([&] { arena_.enter(phase); });
      TANDEM_CHECK_EQ(num_waits_ - num_waits, is_moving ? 1 : 0);
    }
    TANDEM_CHECK_EQ(static_cast<int>(ledger_.phase()), static_cast<int>(is_done ? phase : before));
    if (is_done) {
      TANDEM_CHECK_EQ(held_extents(to), kNumExtents);
    } else if (is_live || from == to) {
      TANDEM_CHECK_EQ(held_extents(from), num_held);
    } else {  // some that the driver would map in neither view may be lost
      TANDEM_CHECK(held_extents(from) <= num_held && held_extents(to) == 0, held_extents(from), num_held);
    }
  }

  // The pool lends to others beside the arena: all or none.
  void borrow_or_return() {
    std::optional<ExtentLoan>& loan = loans_[static_cast<size_t>(draw(std::ssize(loans_)))];
    if (loan) return loan.reset();
    const int64_t num_extents = 1 + draw(3);
    const int64_t available = pool_.num_free() + vmm_.device_bytes().free / kExtentBytes;
    const bool is_done = tolerate([&] { loan = pool_.borrow(num_extents); });
    if (is_done && !failing_.has_failed()) TANDEM_CHECK_EQ(loan.has_value(), available >= num_extents);
    if (loan) TANDEM_CHECK_EQ(std::ssize(loan->extents()), num_extents);
  }

  // An allocation goes to the host, as a reference does that waits there, and comes back into the view with room.
  void offload_one() {
    if (live_.empty()) return;
    std::swap(live_[static_cast<size_t>(draw(std::ssize(live_)))], live_.back());
    const LiveAllocation& allocation = live_.back();
    const bool was_empty = offloaded_.empty();
    const int64_t free_bytes = host_arena_.free_bytes(), bytes = (allocation.bytes + 511) / 512 * 512;
    std::byte* const host = host_arena_.allocate(allocation.bytes, allocation.tag, "waits");
    if (host == nullptr) {
      TANDEM_CHECK(!was_empty || bytes > free_bytes, "host memory that is free was refused:", bytes);
      return forget_one();
    }
    TANDEM_CHECK_EQ(free_bytes - host_arena_.free_bytes(), bytes);
    host_arena_.memory().copy_to_host(host, allocation.address, allocation.bytes);
    host_arena_.memory().synchronize();
    offloaded_.push_back({host, allocation.bytes, allocation.stamp});
    arena_.free(allocation.address);
    live_.pop_back();
  }

  void bring_one_back() {
    if (offloaded_.empty()) return;
    std::swap(offloaded_[static_cast<size_t>(draw(std::ssize(offloaded_)))], offloaded_.back());
    const auto [host, bytes, stamp] = offloaded_.back();
    const View view = draw_view();
    const Tag tag = draw_tag();
    std::byte* const address = arena_.allocate(view, bytes, tag, "is back");
    if (address == nullptr) return;
    host_arena_.memory().copy_to_device(address, host, bytes);
    host_arena_.memory().synchronize();
    live_.push_back({view, address, bytes, tag, stamp});
    forget_one();
  }

  void forget_one() {
    if (offloaded_.empty()) return;
    host_arena_.free(offloaded_.back().host);
    offloaded_.pop_back();
  }

  void misuse() {
    expect_bug([&] { arena_.free(arena_.data(View::kTrain) + arena_.bytes()); });
    if (!live_.empty()) expect_bug([&] { arena_.free(live_.back().address + 1); });
    if (!offloaded_.empty()) expect_bug([&] { host_arena_.free(offloaded_.back().host + 1); });
  }

  void check() {
    arena_.check();
    TANDEM_CHECK(arena_.data(View::kRollout) == addresses_[0] && arena_.data(View::kTrain) == addresses_[1],
                 "a view has moved");
    int64_t allocated_bytes = 0, num_borrowed = 0;
    const View holder = view_of(ledger_.phase());
    std::array<int64_t, kNumTags> tag_bytes{};
    for (const LiveAllocation& allocation : live_) {
      TANDEM_CHECK(holds(allocation.address, allocation.bytes, allocation.stamp), "somebody wrote into an allocation");
      TANDEM_CHECK(allocation.view == holder, "a live allocation in the view without the lease");
      const int64_t bytes = (allocation.bytes + 511) / 512 * 512;
      allocated_bytes += bytes;
      tag_bytes[static_cast<size_t>(allocation.tag)] += bytes;
    }
    for (const Offloaded& offloaded : offloaded_)
      TANDEM_CHECK(offloaded.host[0] == offloaded.stamp && offloaded.host[offloaded.bytes - 1] == offloaded.stamp,
                   "somebody wrote into host memory");
    for (const auto& loan : loans_) num_borrowed += loan ? std::ssize(loan->extents()) : 0;
    TANDEM_CHECK_EQ(ledger_.current_bytes(), allocated_bytes);
    for (int tag = 0; tag < kNumTags; ++tag)
      TANDEM_CHECK_EQ(ledger_.current_bytes(static_cast<Tag>(tag)), tag_bytes[static_cast<size_t>(tag)]);
    TANDEM_CHECK(ledger_.high_water_bytes(ledger_.phase()) >= ledger_.current_bytes());
    TANDEM_CHECK_EQ(ledger_.pool_bytes(), pool_.num_extents() * kExtentBytes);
    TANDEM_CHECK_EQ(vmm_.counts().num_extents, pool_.num_extents());
    const int64_t num_lent = pool_.num_extents() - pool_.num_free();
    const int64_t num_arena_mappings = vmm_.can_alias() && !hide_ ? 2 * kNumExtents : held_extents(holder);
    TANDEM_CHECK_EQ(num_lent, kNumExtents + num_borrowed);
    const int64_t num_stale = vmm_.counts().num_mappings - num_arena_mappings;
    if (failing_.has_failed()) {  // extents that the driver did not unmap stay mapped until it does
      TANDEM_CHECK(num_stale >= 0, num_stale);
    } else {
      TANDEM_CHECK_EQ(num_stale, 0);
    }
  }

  SimulatedVmm& vmm_;
  FailingVmm& failing_;
  std::mt19937_64 random_;
  const bool hide_;
  int64_t num_waits_ = 0, fault_steps_ = 0;
  Ledger ledger_{{.event_bytes = 1, .max_events = 64}};
  ExtentPool pool_;
  HostArena host_arena_;
  Arena arena_;
  const std::array<std::byte*, 2> addresses_;
  std::vector<LiveAllocation> live_;
  std::array<std::optional<ExtentLoan>, 2> loans_;
  std::vector<Offloaded> offloaded_;
};

TEST(PhaseSimulation, NoSequenceOfCallsBreaksThePlan) {
  std::printf("seeds %lu to %lu\n", static_cast<unsigned long>(first_seed),
              static_cast<unsigned long>(first_seed + static_cast<uint64_t>(num_sequences) - 1));
  base::set_log_terminal([](const std::string&) {});  // hides the messages of injected failures
  int64_t num_steps = 0, num_failing = 0;
  for (uint64_t seed = first_seed; seed < first_seed + static_cast<uint64_t>(num_sequences); ++seed) {
    try {
      SimulatedMachine machine(seed % 3 != 0);
      {
        World world(machine, seed);
        const int num_steps_here = 5 + static_cast<int>(seed % 40);
        for (int i = 0; i < num_steps_here; ++i, ++num_steps) world.step();
        world.end();
      }
      num_failing += machine.failing.has_failed() ? 1 : 0;
      machine.failing.settle();
      TANDEM_CHECK(machine.vmm.counts() == device::VmmCounts{}, "leaked on the device");
      TANDEM_CHECK_EQ(machine.vmm.device_bytes().free, machine.vmm.device_bytes().total);
      TANDEM_CHECK_EQ(machine.host_memory.num_allocations(), 0);
    } catch (const std::exception& error) {
      FAIL() << "seed " << seed << ": " << error.what();
    }
  }
  base::set_log_terminal({});
  std::printf("%d sequences, %ld steps, %ld of the sequences on a device that failed\n", num_sequences,
              static_cast<long>(num_steps), static_cast<long>(num_failing));
}

}  // namespace
}  // namespace tandem::memory

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::string(argv[i]) == "--seed") tandem::memory::first_seed = std::stoull(argv[i + 1]);
    if (std::string(argv[i]) == "--sequences") tandem::memory::num_sequences = std::stoi(argv[i + 1]);
  }
  return RUN_ALL_TESTS();
}
