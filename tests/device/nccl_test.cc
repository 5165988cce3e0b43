// NCCL between two processes with a GPU each: the questions of every communicator, and how fast it moves. Skipped where
// there are not two GPUs.
#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <chrono>

#include "base/check.h"
#include "device/registry.h"
#include "tests/device/communicator_conformance.h"
#include "tests/device/forked_ranks.h"

namespace tandem::device {
namespace {

constexpr int kRanks = 2;
constexpr int64_t kMiB = int64_t{1} << 20;

// Two GPUs, or why not; found out in a process of its own, since a fork cannot use CUDA after its parent has.
const std::string& why_no_gpus() {
  static const std::string why = run_forked(1, [](int) {
    make_ops({.backend = "cuda", .index = kRanks - 1}, {.num_threads = 1});
    return std::string();
  })[0];
  return why;
}

// How rank 0 gives its id to the others.
class IdPipe {
 public:
  IdPipe() { TANDEM_CHECK_EQ(pipe(ends_.data()), 0); }
  ~IdPipe() {
    close(ends_[0]);
    close(ends_[1]);
  }

  std::string share(const DeviceSpec& device, int rank, int size) {
    if (rank == 0) {
      const std::string id = make_communicator_id(device);
      for (int i = 1; i < size; ++i) TANDEM_CHECK_EQ(write(ends_[1], id.data(), id.size()), std::ssize(id));
      return id;
    }
    std::string id(128, '\0');
    TANDEM_CHECK_EQ(read(ends_[0], id.data(), id.size()), std::ssize(id));
    return id;
  }

 private:
  std::array<int, 2> ends_{};
};

std::vector<std::string> run_nccl(int size, const Body& body) {
  IdPipe ids;
  return run_forked(size, [&](int rank) {
    const DeviceSpec device{.backend = "cuda", .index = rank};
    const std::unique_ptr<Ops> ops = make_ops(device, {.num_threads = 1});
    const DeviceRanks ranks{.id = ids.share(device, rank, size), .rank = rank, .size = size, .timeout_s = 5};
    const std::unique_ptr<Communicator> communicator = make_communicator(device, ranks);
    return outcome_of(body, *communicator);
  });
}

std::vector<RankKind> nccl_kinds() {
  return {{.name = "nccl",
           .size = kRanks,
           .device = at::kCUDA,
           .are_processes = true,
           .run = run_nccl,
           .why_none = why_no_gpus}};
}

INSTANTIATE_TEST_SUITE_P(Nccl, CommunicatorConformance, testing::ValuesIn(nccl_kinds()), rank_kind_name);

void wait_for_device() { at::empty({1}, at::TensorOptions(at::kByte).device(at::kCUDA)).fill_(1).cpu(); }

// Milliseconds that `work`, which queues it, takes on the device; the best of several.
double best_ms(const std::function<void()>& work) {
  double best = 1e9;
  for (int i = 0; i < 6; ++i) {
    wait_for_device();
    const auto start = std::chrono::steady_clock::now();
    work();
    wait_for_device();
    best = std::min(best, std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

TEST(Nccl, ARankThatDoesNotComeIsMissedInTime) {
  if (!why_no_gpus().empty()) GTEST_SKIP() << why_no_gpus();
  const auto start = std::chrono::steady_clock::now();
  const std::string outcome = run_forked(1, [](int) {
    const DeviceSpec device{.backend = "cuda"};
    const std::unique_ptr<Ops> ops = make_ops(device, {.num_threads = 1});
    const DeviceRanks ranks{.id = make_communicator_id(device), .rank = 0, .size = 2, .timeout_s = 3};
    return outcome_of([&](Communicator&) { make_communicator(device, ranks); }, *solo_communicator());
  })[0];
  EXPECT_THAT(outcome, testing::StartsWith("PeerLost: NCCL: joining: not all ranks answered; waited 3."));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

// Prints GB/s that a rank sends, and receives at the same time.
TEST(Nccl, MovesFast) {
  if (!why_no_gpus().empty()) GTEST_SKIP() << why_no_gpus();
  const std::vector<std::string> outcomes = run_nccl(kRanks, [](Communicator& ranks) {
    const auto bytes = [](int64_t count) { return at::empty({count}, at::TensorOptions(at::kByte).device(at::kCUDA)); };
    const auto report = [&](const char* what, int64_t moved_bytes, double ms) {
      if (ranks.rank() == 0) {
        fmt::print("{}: {:.3f} ms, {:.0f} GB/s\n", what, ms, static_cast<double>(moved_bytes) / ms / 1e6);
      }
    };
    for (const int64_t length : {int64_t{1024}, 512 * kMiB}) {
      const at::Tensor mine = bytes(length), theirs = bytes(length);
      const TensorLists to(kRanks, {mine}), from(kRanks, {theirs});
      const double ms = best_ms([&] { ranks.start_exchange(to, from)->wait(); });
      report(length == 1024 ? "exchange of 1 KiB" : "exchange of 512 MiB", length, ms);
    }
    constexpr int64_t kPiece = 512 * kMiB, kPieces = 16;
    const at::Tensor whole = bytes(kPieces * kPiece);
    const double ms = best_ms([&] {
      for (int64_t piece = 0; piece < kPieces; ++piece) {
        TensorLists parts;
        for (int64_t rank = 0; rank < kRanks; ++rank) {
          parts.push_back({whole.narrow(0, piece * kPiece + rank * kPiece / kRanks, kPiece / kRanks)});
        }
        all_gather(ranks, parts);
      }
    });
    report("all_gather of 8 GiB in pieces of 512 MiB, half of it moved", kPieces * kPiece / kRanks, ms);
  });
  for (const std::string& outcome : outcomes) EXPECT_EQ(outcome, "");
}

}  // namespace
}  // namespace tandem::device
