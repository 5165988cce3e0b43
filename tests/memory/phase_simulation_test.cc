// Ten thousand random lives of an arena and its regions on a simulated device, healthy and failing. After every step:
// the lease has one holder per extent, live memory is mapped and holds what was written into it, addresses are where
// they were, and ledger, pool and device count the same. The seed is printed; --seed S --sequences N runs others.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <random>
#include <string>

#include "base/check.h"
#include "base/log.h"
#include "memory/arena.h"
#include "memory/region.h"
#include "tests/device/failing_vmm.h"
#include "tests/memory/simulated_vmm.h"

namespace tandem::memory {

uint64_t first_seed = 1;
int num_sequences = 10'000;

namespace {

using device::FailingVmm;
using device::Outcome;

constexpr int64_t kExtentBytes = 4096, kNumExtents = 6, kKeptBytes = 100;

struct LiveAllocation {
  View view;
  std::byte* address;
  int64_t bytes;  // bytes asked for
  Tag tag;
  std::byte stamp;
};

struct LiveRegion {
  std::unique_ptr<Region> region;
  Content content;
  int64_t num_extents;
  std::byte* address = nullptr;  // set once it is known
  std::byte stamp = std::byte{0};
  bool has_stamp = false;
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
        arena_(pool_, {.num_extents = kNumExtents, .hide_idle_view = hide_, .synchronize = [this] { ++num_waits_; }}),
        addresses_{arena_.data(View::kRollout), arena_.data(View::kTrain)} {
    const Content contents[] = {Content::kDiscard, Content::kZero, Content::kRebuild, Content::kKeep};
    for (int i = 0; i < 4; ++i) {
      RegionOptions options{.name = "region " + std::to_string(i), .tag = Tag::kReference, .content = contents[i]};
      const int64_t num_extents = 1 + draw(2);
      options.bytes = (num_extents - 1) * kExtentBytes + kKeptBytes;
      if (options.content == Content::kRebuild)
        options.rebuild = [this](std::byte* data, int64_t bytes) {
          for (int64_t at = 0; at < bytes; at += bytes - 1) vmm_.at(data + at) = std::byte{77};
        };
      regions_.push_back({.region = std::make_unique<Region>(pool_, host_arena_, options),
                          .content = contents[i],
                          .num_extents = num_extents});
    }
  }

  void step() {
    if (fault_steps_ > 0 && --fault_steps_ == 0) failing_.disarm();
    switch (draw(12)) {
      case 0:
      case 1:
      case 2: allocate(); break;
      case 3:
      case 4: free_one(); break;
      case 5: shrink_one(); break;
      case 6: hand_over(); break;
      case 7: enter(); break;
      case 8:
      case 9: pause_or_resume(); break;
      case 10: misuse(); break;
      default:
        if (draw(2) == 0) {
          tolerate([&] { pool_.trim(); });
        } else {
          failing_.arm(draw(8), draw(3) == 0, draw(2) == 0 ? Outcome::kOutOfMemory : Outcome::kDriverError);
          fault_steps_ = 1 + draw(4);
        }
    }
    check();
  }

  void end() {
    while (!live_.empty()) free_one();
  }

 private:
  int64_t draw(int64_t below) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(below)); }
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
    const Tag tag = static_cast<Tag>(draw(4) + static_cast<int64_t>(Tag::kBatch));
    const Arena::ViewBytes before = arena_.view_bytes(view);
    std::byte* const address = arena_.allocate(view, bytes, tag, "a" + std::to_string(draw(1000)));
    TANDEM_CHECK_EQ(address == nullptr, bytes > before.largest_hole);
    if (address == nullptr) return;
    live_.push_back({view, address, bytes, tag, static_cast<std::byte>(draw(256))});
    write(address, bytes, live_.back().stamp);
  }

  void free_one() {
    if (live_.empty()) return;
    std::swap(live_[static_cast<size_t>(draw(std::ssize(live_)))], live_.back());
    arena_.free(live_.back().address);
    live_.pop_back();
  }

  void shrink_one() {
    if (live_.empty()) return;
    LiveAllocation& allocation = live_[static_cast<size_t>(draw(std::ssize(live_)))];
    allocation.bytes = 1 + draw(allocation.bytes);
    arena_.shrink(allocation.address, allocation.bytes);
    write(allocation.address, allocation.bytes, allocation.stamp);
  }

  int64_t extent_of(const LiveAllocation& allocation, int64_t byte) const {
    return (allocation.address - arena_.data(allocation.view) + byte) / kExtentBytes;
  }

  // Moves `extents` by `act`; the expected result follows from the live allocations.
  void move(const std::vector<int64_t>& extents, View to, const std::function<void()>& act) {
    const Phase phase = ledger_.phase();
    std::vector<std::optional<View>> before;
    for (int64_t extent = 0; extent < kNumExtents; ++extent) before.push_back(arena_.holder(extent));
    const auto moves = [&](int64_t e) {
      return before[static_cast<size_t>(e)] != to && std::find(extents.begin(), extents.end(), e) != extents.end();
    };
    bool is_live = false, is_moving = false;
    for (int64_t extent = 0; extent < kNumExtents; ++extent) is_moving = is_moving || moves(extent);
    for (const LiveAllocation& allocation : live_)
      for (int64_t e = extent_of(allocation, 0); e <= extent_of(allocation, allocation.bytes - 1); ++e)
        is_live = is_live || (allocation.view != to && moves(e));
    const int64_t num_waits = num_waits_;
    bool is_done = false;
    if (is_live) {
      expect_bug(act);
    } else {
      is_done = tolerate(act);
      TANDEM_CHECK_EQ(num_waits_ - num_waits, is_moving ? 1 : 0);
    }
    if (!is_done) TANDEM_CHECK_EQ(static_cast<int>(ledger_.phase()), static_cast<int>(phase));
    for (int64_t e = 0; e < kNumExtents; ++e) {
      const std::optional<View> was = before[static_cast<size_t>(e)], is = arena_.holder(e);
      const bool is_right = is_done && moves(e) ? is == to : is == was || (!is_done && !is_live && !is);
      TANDEM_CHECK(is_right, "extent", e, "has the wrong holder");
    }
  }

  void hand_over() {
    const View to = draw_view();
    std::vector<int64_t> extents;
    if (draw(3) == 0) {
      for (int64_t i = draw(4); i > 0; --i) extents.push_back(draw(kNumExtents));
    } else {
      extents = arena_.idle_extents(to == View::kRollout ? View::kTrain : View::kRollout);
      extents.resize(static_cast<size_t>(draw(std::ssize(extents) + 1)));
    }
    move(extents, to, [&] { arena_.hand_over(extents, to); });
  }

  void enter() {
    const Phase phase = static_cast<Phase>(draw(kNumPhases));
    if (draw(2) == 0)
      std::erase_if(live_, [&](const LiveAllocation& allocation) {
        if (allocation.view != view_of(phase)) arena_.free(allocation.address);
        return allocation.view != view_of(phase);
      });
    std::vector<int64_t> all(kNumExtents);
    for (int64_t extent = 0; extent < kNumExtents; ++extent) all[static_cast<size_t>(extent)] = extent;
    move(all, view_of(phase), [&] { arena_.enter(phase); });
  }

  void pause_or_resume() {
    LiveRegion& live = regions_[static_cast<size_t>(draw(std::ssize(regions_)))];
    Region& region = *live.region;
    const bool was_paused = region.is_paused();
    const int64_t available = pool_.num_free() + vmm_.device_bytes().free / kExtentBytes;  // limit of borrow()
    bool says_yes = true;
    const bool is_done = tolerate([&] {
      if (was_paused) {
        says_yes = region.resume();
      } else {
        region.pause();
      }
    });
    TANDEM_CHECK_EQ(region.is_paused(), is_done && says_yes ? !was_paused : was_paused);
    if (!was_paused) return;
    if (is_done && !failing_.has_failed()) TANDEM_CHECK_EQ(says_yes, available >= live.num_extents);
    if (region.is_paused()) return;
    if (live.address == nullptr) live.address = region.data();
    const std::byte first = vmm_.at(region.data());
    if (live.content == Content::kZero) TANDEM_CHECK(first == std::byte{0}, "not zero");
    if (live.content == Content::kRebuild) TANDEM_CHECK(first == std::byte{77}, "not rebuilt");
    if (live.content == Content::kKeep && live.has_stamp)
      TANDEM_CHECK(holds(region.data(), region.bytes(), live.stamp), "not kept");
    live.stamp = static_cast<std::byte>(draw(256));
    live.has_stamp = true;
    write(region.data(), region.bytes(), live.stamp);
  }

  void misuse() {
    const Region& region = *regions_[static_cast<size_t>(draw(std::ssize(regions_)))].region;
    if (region.is_paused()) {
      expect_bug([&] { region.data(); });
      expect_bug([&] { const_cast<Region&>(region).pause(); });
    } else {
      expect_bug([&] { const_cast<Region&>(region).resume(); });
    }
    expect_bug([&] { arena_.free(arena_.data(View::kTrain) + arena_.bytes()); });
    if (!live_.empty()) expect_bug([&] { arena_.free(live_.back().address + 1); });
  }

  void check() {
    arena_.check();
    TANDEM_CHECK(arena_.data(View::kRollout) == addresses_[0] && arena_.data(View::kTrain) == addresses_[1],
                 "a view has moved");
    int64_t allocated_bytes = 0, region_bytes = 0, num_region_extents = 0, num_unheld = 0;
    for (const LiveAllocation& allocation : live_) {
      TANDEM_CHECK(holds(allocation.address, allocation.bytes, allocation.stamp), "somebody wrote into an allocation");
      for (int64_t e = extent_of(allocation, 0); e <= extent_of(allocation, allocation.bytes - 1); ++e)
        TANDEM_CHECK(arena_.holder(e) == allocation.view, "a live allocation in an extent of the other view");
      allocated_bytes += (allocation.bytes + 511) / 512 * 512;
    }
    for (const LiveRegion& live : regions_) {
      if (live.region->is_paused()) continue;
      TANDEM_CHECK(live.region->data() == live.address, "a region moved");
      TANDEM_CHECK(holds(live.region->data(), live.region->bytes(), live.stamp), "somebody wrote into a region");
      region_bytes += live.region->mapped_bytes();
      num_region_extents += live.num_extents;
    }
    TANDEM_CHECK_EQ(ledger_.current_bytes(), allocated_bytes + region_bytes);
    TANDEM_CHECK_EQ(ledger_.current_bytes(Tag::kReference), region_bytes);
    TANDEM_CHECK(ledger_.high_water_bytes(ledger_.phase()) >= ledger_.current_bytes());
    TANDEM_CHECK_EQ(ledger_.pool_bytes(), pool_.num_extents() * kExtentBytes);
    TANDEM_CHECK_EQ(vmm_.counts().num_extents, pool_.num_extents());
    const int64_t num_lent = pool_.num_extents() - pool_.num_free();
    for (int64_t e = 0; e < kNumExtents; ++e) num_unheld += arena_.holder(e) ? 0 : 1;
    const int64_t num_arena_mappings = vmm_.can_alias() && !hide_ ? 2 * kNumExtents : kNumExtents - num_unheld;
    const int64_t num_mappings = vmm_.counts().num_mappings - num_region_extents - num_arena_mappings;
    if (failing_.has_failed()) {  // extents that the driver did not take back stay lent and mapped until it does
      TANDEM_CHECK(num_lent >= kNumExtents + num_region_extents, num_lent);
      TANDEM_CHECK(num_mappings >= 0, num_mappings);
    } else {
      TANDEM_CHECK_EQ(num_lent, kNumExtents + num_region_extents);
      TANDEM_CHECK_EQ(num_mappings, 0);
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
  std::vector<LiveRegion> regions_;
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
