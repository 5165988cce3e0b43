// Tests of communicators between GPUs, one process each: the conformance tests of every communicator, what only these
// do, and how fast they move. NCCL needs a GPU for each rank; ranks that map each other's memory may share one. They
// are skipped where there are none.
#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <random>
#include <stdexcept>

#include "device/expert_exchange.h"
#include "device/registry.h"
#include "mesh/socket_communicator.h"
#include "tests/device/ranks/communicator_conformance.h"
#include "tests/device/ranks/forked_ranks.h"
#include "tests/mesh/socket_ranks.h"

namespace tandem::device {
namespace {

constexpr int kRanks = 2;
constexpr int64_t kMiB = int64_t{1} << 20;

// Says why there are not so many GPUs; empty: there are. A process of its own finds out, since a fork cannot use CUDA
// after its parent has.
std::string why_not_gpus(int count) {
  return run_forked(1, [count](int) {
    make_ops({.backend = "cuda", .index = count - 1}, {.num_threads = 1});
    return std::string();
  })[0];
}
const std::string& why_no_gpu() {
  static const std::string why = why_not_gpus(1);
  return why;
}
const std::string& why_no_gpus() {
  static const std::string why = why_not_gpus(kRanks);
  return why;
}

int index_of(int rank) { return why_no_gpus().empty() ? rank % kRanks : 0; }

std::unique_ptr<Communicator> hosts_of(int rank, mesh::ForkedConnections& connections) {
  return mesh::make_socket_communicator(
      {.name = "hosts", .rank = rank, .connections = connections.take(rank), .wait_s = 30, .silence_s = 30});
}

// The work of one rank with its device and the other hosts.
using DeviceBody = std::function<void(const Ops& ops, Communicator& ranks, Communicator& hosts)>;

std::vector<std::string> run_on_devices(int size, bool shares_memory, const DeviceBody& body) {
  why_no_gpus();  // it is found out before the forks
  mesh::ForkedConnections connections(size);
  const auto on_rank = [&](int rank) {
    const std::unique_ptr<Communicator> hosts = hosts_of(rank, connections);
    const DeviceSpec device{.backend = "cuda", .index = index_of(rank)};
    const std::unique_ptr<Ops> ops = make_ops(device, {.num_threads = 1});
    const std::unique_ptr<Communicator> communicator =
        make_communicator(device, {.hosts = *hosts, .shares_memory = shares_memory, .timeout_s = 5});
    return outcome_of([&](Communicator& ranks) { body(*ops, ranks, *hosts); }, *communicator);
  };
  return run_forked(size, on_rank, [&] { connections.close(); });
}
std::vector<std::string> run_on_gpus(int size, bool shares_memory, const Body& body) {
  return run_on_devices(size, shares_memory,
                        [&](const Ops& /*ops*/, Communicator& ranks, Communicator& /*hosts*/) { body(ranks); });
}

std::vector<std::string> run_nccl(int size, const Body& body) { return run_on_gpus(size, false, body); }
std::vector<std::string> run_peers(int size, const Body& body) { return run_on_gpus(size, true, body); }

std::vector<RankKind> gpu_kinds() {
  std::vector<RankKind> kinds = {{.name = "nccl",
                                  .size = kRanks,
                                  .device = at::kCUDA,
                                  .are_processes = true,
                                  .run = run_nccl,
                                  .why_none = why_no_gpus}};
  for (const int size : {2, 3, 8}) {
    kinds.push_back({.name = "peers",
                     .size = size,
                     .device = at::kCUDA,
                     .are_processes = true,
                     .run = [](int ranks, const Body& body) { return run_peers(ranks, body); },
                     .why_none = why_no_gpu});
  }
  return kinds;
}

INSTANTIATE_TEST_SUITE_P(Gpu, CommunicatorConformance, testing::ValuesIn(gpu_kinds()), rank_kind_name);

// The tests for two ranks of either kind.
class GpuRanks : public testing::TestWithParam<RankKind> {
 protected:
  void SetUp() override {
    if (const std::string why = GetParam().why_none(); !why.empty()) GTEST_SKIP() << why;
  }
  void expect_right(const Body& body) {
    for (const std::string& outcome : GetParam().run(kRanks, body)) EXPECT_EQ(outcome, "");
  }
};

std::vector<RankKind> kinds_of_two() {
  std::vector<RankKind> kinds;
  for (const RankKind& kind : gpu_kinds()) {
    if (kind.size == kRanks) kinds.push_back(kind);
  }
  return kinds;
}
INSTANTIATE_TEST_SUITE_P(Gpu, GpuRanks, testing::ValuesIn(kinds_of_two()), rank_kind_name);

void wait_for_device() { at::empty({1}, at::TensorOptions(at::kByte).device(at::kCUDA)).fill_(1).cpu(); }

// Returns the milliseconds that the device takes for the work that `work` queues; the best of several.
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
  if (!why_no_gpu().empty()) GTEST_SKIP() << why_no_gpu();
  const auto start = std::chrono::steady_clock::now();
  mesh::ForkedConnections connections(kRanks);
  const auto on_rank = [&](int rank) {
    const std::unique_ptr<Communicator> hosts = hosts_of(rank, connections);
    if (rank > 0) {
      broadcast_text(*hosts, 0, "");
      std::this_thread::sleep_for(std::chrono::seconds(8));
      return std::string();
    }
    const DeviceSpec device{.backend = "cuda"};
    const std::unique_ptr<Ops> ops = make_ops(device, {.num_threads = 1});
    return outcome_of([&](Communicator&) { make_communicator(device, {.hosts = *hosts, .timeout_s = 3}); }, *hosts);
  };
  const std::string outcome = run_forked(kRanks, on_rank, [&] { connections.close(); })[0];
  EXPECT_THAT(outcome, testing::StartsWith("PeerLost: NCCL: joining: not all ranks answered; waited 3."));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
}

// Prints the GB/s that a rank sends, and receives at the same time.
TEST_P(GpuRanks, MoveFast) {
  expect_right([](Communicator& ranks) {
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
}

// Computes what Communicator::sum() promises, by exchange and one addition after the other.
at::Tensor sum_by_exchange(Communicator& ranks, const at::Tensor& part, const at::Tensor& residual,
                           at::ScalarType dtype) {
  TensorLists parts;
  for (int rank = 0; rank < ranks.size(); ++rank) {
    parts.push_back({rank == ranks.rank() ? part : at::empty_like(part)});
  }
  all_gather(ranks, parts);
  at::Tensor sum = parts[0][0].to(at::kFloat);
  for (size_t rank = 1; rank < parts.size(); ++rank) sum = sum.add(parts[rank][0].to(at::kFloat));
  sum = sum.to(dtype);
  return residual.defined() ? residual.add(sum) : sum;
}

bool same_bytes(const at::Tensor& a, const at::Tensor& b) {
  return a.view(-1).view(at::kByte).equal(b.view(-1).view(at::kByte));
}

TEST(Peers, SumsAreThoseOfAnExchange) {
  if (!why_no_gpu().empty()) GTEST_SKIP() << why_no_gpu();
  const std::vector<std::string> outcomes = run_peers(3, [](Communicator& ranks) {
    std::mt19937 drawn(7);  // draws the sizes, the same on all ranks
    at::manual_seed(static_cast<uint64_t>(ranks.rank()) + 1);
    for (int round = 0; round < 300; ++round) {
      const int64_t n = 8 * (1 + static_cast<int64_t>(drawn() % (round % 10 == 0 ? 262144 : 4096)));
      const at::ScalarType part_dtype = drawn() % 2 == 0 ? at::kFloat : at::kBFloat16;
      const at::ScalarType dtype = drawn() % 2 == 0 ? at::kFloat : at::kBFloat16;
      const auto options = at::TensorOptions(at::kCUDA);
      const at::Tensor part = at::randn({n}, options.dtype(at::kFloat)).to(part_dtype);
      const at::Tensor residual = drawn() % 2 == 0 ? at::Tensor() : at::randn({n}, options.dtype(at::kFloat)).to(dtype);
      const at::Tensor out = at::empty({n}, options.dtype(dtype));
      if (!ranks.sum(part, residual, out)) throw std::runtime_error("the ranks do not see each other's memory");
      if (!same_bytes(out, sum_by_exchange(ranks, part, residual, dtype))) {
        throw std::runtime_error(fmt::format("another sum of {} elements in round {}", n, round));
      }
    }
    const at::Tensor large = at::empty({3 << 20}, at::TensorOptions(at::kFloat).device(at::kCUDA));
    if (ranks.sum(large, {}, large)) throw std::runtime_error("a part that is too large");
  });
  for (const std::string& outcome : outcomes) EXPECT_EQ(outcome, "");
}

// A step of a tensor-parallel model is recorded once and replayed.
TEST_P(GpuRanks, ExchangesAndSumsAreRecorded) {
  expect_right([](Communicator& ranks) {
    const std::unique_ptr<Ops> ops = make_ops({.backend = "cuda", .index = index_of(ranks.rank())}, {.num_threads = 1});
    const auto options = at::TensorOptions(at::kFloat).device(at::kCUDA);
    constexpr int64_t kElements = 2560 * 32;
    const at::Tensor part = at::zeros({kElements}, options), sum = at::zeros({kElements}, options);
    const at::Tensor theirs = at::zeros({kElements}, options);
    const bool adds_up = ranks.sum(part, {}, sum);
    const auto work = [&] {
      if (!adds_up || !ranks.sum(part, {}, sum)) sum.copy_(part).mul_(3.0F).div_(static_cast<float>(ranks.rank() + 1));
      TensorLists to(kRanks), from(kRanks);
      to[static_cast<size_t>(1 - ranks.rank())] = {sum};
      from[static_cast<size_t>(1 - ranks.rank())] = {theirs};
      ranks.start_exchange(to, from)->wait();
    };
    work();  // NCCL connects
    wait_for_device();
    const std::unique_ptr<Ops::Recording> recording = ops->record(work);
    for (int replay = 1; replay <= 100; ++replay) {
      part.fill_(static_cast<float>(replay * (ranks.rank() + 1)));
      recording->replay();
      const auto expected = static_cast<float>(3 * replay);
      if (!sum.eq(expected).all().item<bool>() || !theirs.eq(expected).all().item<bool>()) {
        throw std::runtime_error(fmt::format("replay {} gave something else", replay));
      }
    }
    const auto report = [&](const char* what, double ms) {
      if (ranks.rank() == 0) fmt::print("{}: {:.1f} us\n", what, ms * 1000.0);
    };
    constexpr int kSums = 100;
    for (const int64_t rows : {1, 32, 256}) {
      const at::Tensor x = at::zeros({rows * 4096}, options),
                       y = at::zeros({rows * 4096}, options.dtype(at::kBFloat16));
      const at::Tensor other = at::zeros({rows * 4096}, options);
      if (adds_up) {
        const auto sums = ops->record([&] {
          for (int i = 0; i < kSums; ++i) ranks.sum(x, y, y);
        });
        report(fmt::format("sum of {} x 4,096, recorded", rows).c_str(), best_ms([&] { sums->replay(); }) / kSums);
      }
      const auto exchanges = ops->record([&] {
        for (int i = 0; i < kSums; ++i)
          ranks.start_exchange(TensorLists(kRanks, {x}), TensorLists(kRanks, {other}))->wait();
      });
      report(fmt::format("exchange of {} x 4,096, recorded", rows).c_str(),
             best_ms([&] { exchanges->replay(); }) / kSums);
    }
  });
}

// The layer of a sparse model in bfloat16, of the same weights on every rank, and rows of each rank's own.
struct SparseLayer {
  int64_t experts, chosen, hidden, width;
  at::Tensor router, gate_up, down;

  SparseLayer(int64_t num_experts, int64_t num_chosen, int64_t hidden_size, int64_t expert_width)
      : experts(num_experts), chosen(num_chosen), hidden(hidden_size), width(expert_width) {
    at::manual_seed(1);
    router = drawn({experts, hidden});
    gate_up = drawn({experts * 2 * width, hidden}).mul_(0.05);
    down = drawn({experts * hidden, width}).mul_(0.05);
  }
  static at::Tensor drawn(at::IntArrayRef shape) {
    return at::randn(shape, at::TensorOptions(at::kBFloat16).device(at::kCUDA));
  }
  std::unique_ptr<ExpertExchange> exchange(const Ops& ops, Communicator& ranks, Communicator& hosts,
                                           int64_t most_rows) const {
    return make_expert_exchange(
        ops, ranks, hosts,
        {.experts = experts, .chosen = chosen, .hidden = hidden, .most_rows = most_rows, .dtype = at::kBFloat16});
  }
  Routing route(const Ops& ops, const at::Tensor& rows) const {
    return ops.route(ops.linear(rows, router, at::kFloat), {.chosen = chosen, .normalises = true});
  }
  at::Tensor alone(const Ops& ops, const at::Tensor& rows, const at::Tensor& residual) const {
    return ops.mlp_of_experts(rows, gate_up, down, route(ops, rows), residual, at::kBFloat16, false).sum_TE;
  }
  at::Tensor shared(const Ops& ops, ExpertExchange& ranks, const at::Tensor& own, const at::Tensor& residual) const {
    const at::Tensor rows = ranks.gather(own);
    const Routing routing = route(ops, rows);
    const at::Tensor y = ranks.results(rows, routing);
    ops.results_of_experts(rows, gate_up, down, routing, experts_of_rank(experts, ranks.rank(), ranks.size()), y);
    return ranks.sum(y, routing, residual);
  }
};

TEST(Peers, SharedExpertsHaveTheBitsOfOneRank) {
  if (!why_no_gpu().empty()) GTEST_SKIP() << why_no_gpu();
  for (const int size : {2, 3}) {
    const auto outcomes = run_on_devices(size, true, [](const Ops& ops, Communicator& ranks, Communicator& hosts) {
      const SparseLayer layer(16, 4, 256, 128);
      const std::unique_ptr<ExpertExchange> exchange = layer.exchange(ops, ranks, hosts, 512);
      for (const int64_t rows : {1, 2, 7, 32, 200, 512}) {
        at::manual_seed(static_cast<uint64_t>(10 + ranks.rank()));
        const at::Tensor own = SparseLayer::drawn({rows, layer.hidden});
        const at::Tensor residual = SparseLayer::drawn({rows, layer.hidden}), got = at::empty_like(residual);
        const auto work = [&] { got.copy_(layer.shared(ops, *exchange, own, residual)); };
        const auto expect = [&](const char* how, int round) {
          if (!same_bytes(got, layer.alone(ops, own, residual))) {
            throw std::runtime_error(fmt::format("{} rows, {}, round {}: other bits", rows, how, round));
          }
        };
        work();
        expect("at once", 0);
        const std::unique_ptr<Ops::Recording> recording = ops.record([&] {
          for (int i = 0; i < 3; ++i) work();
        });
        for (int round = 0; round < 20; ++round) {
          own.copy_(SparseLayer::drawn({rows, layer.hidden}));
          recording->replay();
          expect("recorded", round);
        }
      }
    });
    for (const std::string& outcome : outcomes) EXPECT_EQ(outcome, "");
  }
}

// Prints the microseconds of a layer of Qwen3-30B-A3B's experts, recorded: by itself, shared, and what it takes to move
// the rows.
TEST(Peers, SharedExpertsOfALargeLayer) {
  if (!why_no_gpus().empty()) GTEST_SKIP() << why_no_gpus();
  const auto outcomes = run_on_devices(kRanks, true, [](const Ops& ops, Communicator& ranks, Communicator& hosts) {
    const SparseLayer layer(128, 8, 2048, 768);
    const std::unique_ptr<ExpertExchange> exchange = layer.exchange(ops, ranks, hosts, 256);
    constexpr int kLayers = 24;
    const auto us = [&](const std::function<void()>& work) {
      work();
      wait_for_device();
      const std::unique_ptr<Ops::Recording> recording = ops.record([&] {
        for (int i = 0; i < kLayers; ++i) work();
      });
      any_of(hosts, false);
      return best_ms([&] { recording->replay(); }) / kLayers * 1000.0;
    };
    for (const int64_t rows : {1, 8, 32, 64, 128, 256}) {
      at::manual_seed(static_cast<uint64_t>(10 + ranks.rank()));
      const at::Tensor own = SparseLayer::drawn({rows, layer.hidden}), residual = at::zeros_like(own);
      const Routing routing = layer.route(ops, exchange->gather(own));
      const at::Tensor y = exchange->results(own, routing);
      const double alone = us([&] { layer.alone(ops, own, residual); });
      const double shared = us([&] { layer.shared(ops, *exchange, own, residual); });
      const double gather = us([&] {
        exchange->gather(own);
        exchange->sum(y, routing, residual);
      });
      if (ranks.rank() == 0) {
        fmt::print("{} rows a rank: alone {:.1f} us, shared {:.1f}, of which moving rows and adding up {:.1f}\n", rows,
                   alone, shared, gather);
      }
    }
  });
  for (const std::string& outcome : outcomes) EXPECT_EQ(outcome, "");
}

}  // namespace
}  // namespace tandem::device
