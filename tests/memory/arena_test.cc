// The lease: its holder alone may allocate, live allocations stop it from moving, and moving is cheap.
#include "memory/arena.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "base/log.h"
#include "device/cpu/cpu_vmm.h"
#include "tests/base/thrown.h"
#include "tests/device/memory/failing_vmm.h"
#include "tests/memory/simulated_device.h"

namespace tandem::memory {

namespace {

struct ArenaTest : testing::Test {
  SimulatedDevice device{8};
  int num_waits = 0;
  Arena arena{
      device.pool,
      {.num_extents = 8, .synchronize = [this] { ++num_waits; }, .size_flag = "--arena-gib", .slack_flag = "--slack"}};
  void TearDown() override { arena.check(); }
};

TEST_F(ArenaTest, OneViewAtATimeHasTheMemory) {
  EXPECT_EQ(arena.view_bytes(View::kTrain).held, arena.bytes()) << "loading uses the train view";
  EXPECT_EQ(arena.allocate(View::kRollout, 1, Tag::kKv, "kv"), nullptr);
  arena.enter(Phase::kRollout);
  std::byte* const kv = arena.allocate(View::kRollout, arena.bytes(), Tag::kKv, "kv");
  EXPECT_EQ(kv, arena.data(View::kRollout));
  EXPECT_EQ(arena.allocate(View::kTrain, 1, Tag::kHead, "head"), nullptr);
  arena.free(kv);
  arena.enter(Phase::kTrain);
  std::byte* const logits = arena.allocate(View::kTrain, 512, Tag::kHead, "logits");
  EXPECT_EQ(logits, arena.data(View::kTrain) + arena.bytes() - 512) << "from the high end";
  arena.free(logits);
}

TEST_F(ArenaTest, ALiveAllocationHoldsTheLeaseAndIsNamed) {
  arena.enter(Phase::kRollout);
  std::byte* const kv = arena.allocate(View::kRollout, 3 * kExtentBytes, Tag::kKv, "kv_cache");
  std::byte* const scratch = arena.allocate(View::kRollout, 512, Tag::kEngineScratch, "scratch");
  const int num_waits_before = num_waits;
  EXPECT_NE(base::thrown_by<BugError>([&] {
              arena.enter(Phase::kTrain);
            }).find("kv_cache of tag kv, 3 extents, still live in the rollout view (and 1 more)"),
            std::string::npos)
      << base::thrown_by<BugError>([&] { arena.enter(Phase::kTrain); });
  EXPECT_EQ(num_waits, num_waits_before) << "a bug is told without waiting";
  EXPECT_EQ(device.ledger.phase(), Phase::kRollout);
  EXPECT_EQ(arena.view_bytes(View::kRollout).held, arena.bytes());
  arena.free(kv);
  EXPECT_NE(base::thrown_by<BugError>([&] {
              arena.enter(Phase::kTrain);
            }).find("scratch of tag engine_scratch, 1 extent, still live in the rollout view"),
            std::string::npos);
  arena.free(scratch);
  arena.enter(Phase::kTrain);
}

// A run on a pretended device, on a machine with too little to compute on, once ended with the bug above: autograd's
// thread had told of its end and not yet dropped its last gradient.
TEST_F(ArenaTest, AnotherThreadsLastFreeIsWaitedFor) {
  std::byte* const gradient = arena.allocate(View::kTrain, 512, Tag::kHead, "gradient");
  const std::jthread autograd([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    arena.free(gradient);
  });
  arena.enter(Phase::kRollout);
  EXPECT_EQ(device.ledger.phase(), Phase::kRollout);
}

TEST_F(ArenaTest, WaitsForTheDeviceOncePerMove) {
  arena.enter(Phase::kRollout);
  EXPECT_EQ(num_waits, 1);
  arena.enter(Phase::kRollout);
  EXPECT_EQ(num_waits, 1) << "nothing moved";
  arena.enter(Phase::kTrain);
  EXPECT_EQ(num_waits, 2);
  arena.enter(Phase::kLoad);
  EXPECT_EQ(num_waits, 2) << "the train view has it all";
  EXPECT_EQ(device.ledger.phase(), Phase::kLoad);
}

TEST_F(ArenaTest, ARefusalSaysWhatToChange) {
  std::byte* const half = arena.allocate(View::kTrain, 4 * kExtentBytes, Tag::kHead, "half");
  EXPECT_EQ(arena.allocate(View::kTrain, 5 * kExtentBytes, Tag::kHead, "logits"), nullptr);
  EXPECT_EQ(arena.shortage(View::kTrain, 5 * kExtentBytes, Tag::kHead),
            "40960 bytes of tag head do not fit into the train view: it holds 65536 bytes, 32768 are free, the largest "
            "hole has 32768; lower --arena-gib, or raise --slack");
  arena.free(half);
}

TEST_F(ArenaTest, AnAllocationMayComeToCountForAnotherTag) {
  std::byte* const old = arena.allocate(View::kTrain, 1024, Tag::kBlockScratch, "old");
  const int64_t mark = arena.mark(View::kTrain);
  std::byte* const kept = arena.allocate(View::kTrain, 512, Tag::kBlockScratch, "kept");
  std::byte* const other = arena.allocate(View::kTrain, 512, Tag::kHead, "other");
  arena.retag(View::kTrain, mark, Tag::kBlockScratch, Tag::kBlockGraphs);
  EXPECT_EQ(device.ledger.current_bytes(Tag::kBlockScratch), 1024) << "what was there before";
  EXPECT_EQ(device.ledger.current_bytes(Tag::kBlockGraphs), 512);
  EXPECT_EQ(device.ledger.current_bytes(Tag::kHead), 512);
  arena.retag(kept, Tag::kBlockInputs);
  EXPECT_EQ(device.ledger.current_bytes(Tag::kBlockGraphs), 0);
  EXPECT_EQ(device.ledger.current_bytes(), 2048) << "nothing was taken by it";
  for (std::byte* const address : {old, kept, other}) arena.free(address);
  EXPECT_EQ(device.ledger.current_bytes(), 0);
}

TEST_F(ArenaTest, MisuseIsABug) {
  std::byte* const a = arena.allocate(View::kTrain, 512, Tag::kHead, "a");
  EXPECT_THROW(arena.free(a + 1), BugError);
  EXPECT_THROW(arena.free(arena.data(View::kRollout)), BugError);
  EXPECT_THROW(arena.free(nullptr), BugError);
  EXPECT_THROW(arena.allocate(View::kTrain, 0, Tag::kHead, "nothing"), BugError);
  arena.free(a);
  EXPECT_THROW(arena.free(a), BugError);
}

TEST_F(ArenaTest, AWaitThatFailsMovesNothing) {
  SimulatedDevice other(4);
  Arena failing(other.pool, {.num_extents = 4, .synchronize = [] { throw EnvironmentError("device lost"); }});
  EXPECT_THROW(failing.enter(Phase::kRollout), EnvironmentError);
  EXPECT_EQ(other.ledger.phase(), Phase::kLoad);
  EXPECT_EQ(failing.view_bytes(View::kTrain).held, failing.bytes());
  failing.check();
}

TEST(Arena, ADeviceThatIsTooSmallIsNamed) {
  SimulatedDevice device(4);
  try {
    const Arena arena(device.pool, {.num_extents = 5, .size_flag = "--arena-gib"});
    FAIL();
  } catch (const EnvironmentError& error) {
    EXPECT_STREQ(error.what(), "the device has 32768 bytes free, and the arena is 40960 bytes; lower --arena-gib");
  }
  EXPECT_EQ(device.vmm.counts(), device::VmmCounts{});
}

TEST(Arena, AddressesNeverChangeAndTheDriverIsNotAsked) {
  SimulatedDevice device(64);
  device::CountingVmm counting(device.vmm);
  ExtentPool pool(counting, device.ledger, kExtentBytes);
  Arena arena(pool, {.num_extents = 64});
  EXPECT_EQ(counting.num_calls("map"), 128);
  EXPECT_EQ(counting.num_calls("open_access"), 2) << "one call for each view";
  const auto addresses = std::pair(arena.data(View::kRollout), arena.data(View::kTrain));
  const int64_t num_calls = counting.num_calls();
  for (int step = 0; step < 10; ++step) {
    arena.enter(Phase::kRollout);
    arena.enter(Phase::kTrain);
  }
  EXPECT_EQ(counting.num_calls(), num_calls);
  EXPECT_EQ(std::pair(arena.data(View::kRollout), arena.data(View::kTrain)), addresses);
}

TEST(Arena, BothViewsShowTheSameMemory) {
  device::CpuVmm vmm(int64_t{1} << 20);
  Ledger ledger;
  ExtentPool pool(vmm, ledger, 16384);
  Arena arena(pool, {.num_extents = 4});
  arena.enter(Phase::kRollout);
  std::memset(arena.data(View::kRollout), 3, static_cast<size_t>(arena.bytes()));
  arena.enter(Phase::kTrain);
  std::byte* const train = arena.data(View::kTrain);
  EXPECT_EQ(train[0], std::byte{3});
  EXPECT_EQ(train[arena.bytes() - 1], std::byte{3});
}

// Idle views are unmapped on devices that map an extent once, and for debugging; a stray access then faults.
class HidingArena : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(CanAlias, HidingArena, testing::Bool());

TEST_P(HidingArena, AStrayAccessFaults) {
  device::CpuVmm vmm(int64_t{1} << 20, GetParam());
  Ledger ledger;
  ExtentPool pool(vmm, ledger, 16384);
  Arena arena(pool, {.num_extents = 4, .hide_idle_view = GetParam()});
  std::byte *const train = arena.data(View::kTrain), *const rollout = arena.data(View::kRollout);
  train[0] = std::byte{5};
  EXPECT_DEATH(rollout[0] = std::byte{1}, "");
  arena.enter(Phase::kRollout);
  EXPECT_EQ(rollout[0], std::byte{5}) << "the memory moved with the lease";
  EXPECT_DEATH(train[0] = std::byte{1}, "");
  arena.enter(Phase::kTrain);
  EXPECT_EQ(train[0], std::byte{5});
  EXPECT_DEATH(rollout[3 * 16384] = std::byte{1}, "");
  arena.check();
}

// The driver fails from the third extent of the new view on, so that nothing is mapped in the old one again either.
TEST(Arena, AnExtentThatIsMappedNowhereIsHeldByNoViewUntilALaterMove) {
  SimulatedDevice device(4, /*can_alias=*/false);
  device::FailingVmm failing(device.vmm);
  {
    ExtentPool pool(failing, device.ledger, kExtentBytes);
    Arena arena(pool, {.num_extents = 4});
    failing.arm(1 + 2, /*for_good=*/true, device::Outcome::kDriverError);
    base::set_log_terminal([](const std::string&) {});
    EXPECT_THROW(arena.enter(Phase::kRollout), EnvironmentError);
    EXPECT_EQ(device.ledger.phase(), Phase::kLoad);
    EXPECT_EQ(arena.view_bytes(View::kTrain).held + arena.view_bytes(View::kRollout).held, 0) << "none could go back";
    arena.check();
    failing.disarm();
    arena.enter(Phase::kLoad);
    EXPECT_EQ(arena.view_bytes(View::kTrain).held, arena.bytes()) << "a move into the same phase is one";
    arena.check();
    failing.arm(1 + 2, /*for_good=*/true, device::Outcome::kDriverError);
    EXPECT_THROW(arena.enter(Phase::kRollout), EnvironmentError);
    failing.disarm();
    arena.enter(Phase::kRollout);
    EXPECT_EQ(arena.view_bytes(View::kRollout).held, arena.bytes());
    std::byte* const all = arena.allocate(View::kRollout, arena.bytes(), Tag::kKv, "all");
    EXPECT_EQ(all, arena.data(View::kRollout));
    for (int64_t extent = 0; extent < 4; ++extent) device.vmm.at(all + extent * kExtentBytes) = std::byte{1};
    arena.free(all);
    arena.check();
  }
  base::set_log_terminal({});
  EXPECT_EQ(device.vmm.counts(), device::VmmCounts{});
}

TEST_P(HidingArena, MovesARunWithOneCallEach) {
  SimulatedDevice device(16, GetParam());
  device::CountingVmm counting(device.vmm);
  ExtentPool pool(counting, device.ledger, kExtentBytes);
  Arena arena(pool, {.num_extents = 16, .hide_idle_view = GetParam()});
  const int64_t maps = counting.num_calls("map"), calls = counting.num_calls();
  arena.enter(Phase::kRollout);
  EXPECT_EQ(counting.num_calls("map") - maps, 16);
  EXPECT_EQ(counting.num_calls() - calls, 16 + 2) << "besides one open_access and one unmap";
}

// Many threads allocate and free while the lease moves; TSan watches, and the books stay right.
TEST(Arena, ThreadsAllocateWhileTheLeaseMoves) {
  SimulatedDevice device(32);
  Arena arena(device.pool, {.num_extents = 32});
  std::atomic<bool> stops = false;
  std::atomic<int64_t> num_allocated = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t)
    threads.emplace_back([&, t] {
      std::vector<std::byte*> live;
      for (int64_t i = 0; !stops; ++i) {
        const View view = t == 0 ? View::kRollout : View::kTrain;
        if (std::byte* const address = arena.allocate(view, 1 + (i * 977) % 9000, Tag::kHead, "some")) {
          live.push_back(address);
          ++num_allocated;
        }
        if (live.size() > 4 || (i % 3 == 0 && !live.empty())) {
          arena.free(live.back());
          live.pop_back();
        }
        if (i % 16 != 0) continue;
        for (std::byte* const address : live) arena.free(address);  // so that the lease can move now and then
        live.clear();
        std::this_thread::yield();
      }
      for (std::byte* const address : live) arena.free(address);
    });
  int64_t num_moves = 0;
  for (int i = 0; i < 300 || num_moves < 20 || num_allocated < 100; ++i) {
    try {
      arena.enter(arena.phase() == Phase::kRollout ? Phase::kTrain : Phase::kRollout);
      ++num_moves;
    } catch (const BugError&) {
      // A thread has an allocation, so the lease stays.
    }
    arena.check();
  }
  stops = true;
  for (std::thread& thread : threads) thread.join();
  arena.check();
  EXPECT_EQ(device.ledger.current_bytes(), 0);
}

// The time is printed; the bound is a hundred times what it takes.
TEST(Arena, APhaseChangeTakesMicroseconds) {
  device::CpuVmm vmm(int64_t{256} << 20);
  device::CountingVmm counting(vmm);
  Ledger ledger;
  ExtentPool pool(counting, ledger, 64 * 1024);
  Arena arena(pool, {.num_extents = 1024});
  const int64_t num_calls = counting.num_calls();
  constexpr int kNumChanges = 2000;
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kNumChanges; ++i) arena.enter(i % 2 == 0 ? Phase::kRollout : Phase::kTrain);
  const std::chrono::duration<double, std::micro> spent = std::chrono::steady_clock::now() - start;
  std::printf("a phase change over 1024 extents: %.2f us, %ld driver calls\n", spent.count() / kNumChanges,
              static_cast<long>(counting.num_calls() - num_calls));
  EXPECT_EQ(counting.num_calls(), num_calls);
  EXPECT_LT(spent.count() / kNumChanges, 5000);
}

}  // namespace
}  // namespace tandem::memory
