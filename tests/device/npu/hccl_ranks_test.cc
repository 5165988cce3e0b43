// Tests of the communicator between NPUs over stand-ins for CANN and HCCL: the conformance tests of every communicator,
// also where work runs late and where bytes arrive in another order, and what only HCCL's does. They show that our
// calls are in order, and nothing of what HCCL does with them. Tensors are on the pretend device, whose work is done at
// once.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "device/checksum.h"
#include "device/npu/hccl_communicator.h"
#include "device/ops.h"
#include "mesh/socket_communicator.h"
#include "tests/base/thrown.h"
#include "tests/device/npu/fake_cann/fake_cann.h"
#include "tests/device/npu/fake_hccl/fake_hccl.h"
#include "tests/device/ranks/communicator_conformance.h"
#include "tests/device/ranks/forked_ranks.h"
#include "tests/mesh/socket_ranks.h"
#include "tests/pretend_device/pretend_device.h"

namespace tandem::device {
namespace {

using pretend_device::device;
using testing::StartsWith;

struct Setting {
  std::function<void(int rank)> prepare = [](int) {};  // sets up the stand-ins on a rank
  double timeout_s = 5;
  std::function<void()> synchronize = [] {};
  std::string interface = {};
};

// Runs `body` on ranks that are processes, with an NPU each. Outcomes are those of RankKind::run.
std::vector<std::string> run_on_npus(int size, const Body& body, const Setting& setting) {
  mesh::ForkedConnections connections(size);
  const auto on_rank = [&](int rank) {
    setting.prepare(rank);
    pretend_device::reset(int64_t{1} << 30);
    const std::unique_ptr<Communicator> hosts = mesh::make_socket_communicator(
        {.name = "hosts", .rank = rank, .connections = connections.take(rank), .wait_s = 30, .silence_s = 30});
    const npu::AclCalls acl = npu::load_acl_calls();
    const npu::HcclCalls hccl = npu::load_hccl_calls();
    return outcome_of(
        [&](Communicator&) {
          const DeviceRanks ranks{.hosts = *hosts, .timeout_s = setting.timeout_s, .interface = setting.interface};
          body(*make_hccl_communicator(acl, hccl, rank, ranks, setting.synchronize));
        },
        *hosts);
  };
  return run_forked(size, on_rank, [&] { connections.close(); });
}

std::vector<RankKind> kinds() {
  const auto kind = [](const std::string& name, int size, const std::function<void(int)>& prepare) {
    return RankKind{
        .name = name,
        .size = size,
        .device = device(),
        .are_processes = true,
        .run = [prepare](int ranks, const Body& body) { return run_on_npus(ranks, body, {.prepare = prepare}); }};
  };
  std::vector<RankKind> result;
  for (int size = 1; size <= 8; ++size) result.push_back(kind("at_once", size, [](int) {}));
  for (const int size : {2, 5}) {
    result.push_back(kind("late", size, [](int) { fake_cann_set("late", "1"); }));
    result.push_back(kind("shuffled", size, [](int) { fake_hccl_set("shuffle", "7"); }));
  }
  return result;
}

INSTANTIATE_TEST_SUITE_P(Hccl, CommunicatorConformance, testing::ValuesIn(kinds()), rank_kind_name);

at::Tensor bytes_on_device(int64_t count) { return at::empty({count}, at::TensorOptions(at::kByte).device(device())); }

// Exchanges one tensor between two ranks.
std::unique_ptr<Communicator::Exchange> swap(Communicator& ranks, const at::Tensor& mine, const at::Tensor& theirs) {
  TensorLists to(2), from(2);
  to[static_cast<size_t>(1 - ranks.rank())] = {mine};
  from[static_cast<size_t>(1 - ranks.rank())] = {theirs};
  return ranks.start_exchange(std::move(to), std::move(from));
}
void swap_bytes(Communicator& ranks) { swap(ranks, bytes_on_device(100), bytes_on_device(100))->wait(); }

TEST(HcclRanks, OneThatDoesNotComeIsMissed) {
  const std::vector<std::string> outcomes = run_on_npus(2, swap_bytes, {.prepare = [](int rank) {
                                                          fake_hccl_set("connect_s", "0.5");
                                                          if (rank == 1)
                                                            fake_hccl_set("fail", "HcclCommInitRootInfo:9");
                                                        }});
  for (const std::string& outcome : outcomes) EXPECT_EQ(outcome, "PeerLost: HCCL: joining: not all ranks answered");
}

TEST(HcclRanks, ALostRankIsMissedInTimeWhereHcclDoesNotNoticeIt) {
  const auto start = std::chrono::steady_clock::now();
  const Setting setting{.prepare = [](int) { fake_hccl_set("deaf", "1"); }, .timeout_s = 1};
  const std::vector<std::string> outcomes = run_on_npus(
      2,
      [](Communicator& ranks) {
        swap_bytes(ranks);
        if (ranks.rank() == 0) swap_bytes(ranks);
      },
      setting);
  EXPECT_EQ(outcomes[0], "PeerLost: HCCL: exchange: not all ranks answered within 1 s");
  EXPECT_EQ(outcomes[1], "");
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
}

TEST(HcclRanks, AnErrorThatHcclReportsEndsAnExchange) {
  const std::vector<std::string> outcomes = run_on_npus(2,
                                                        [](Communicator& ranks) {
                                                          swap_bytes(ranks);
                                                          fake_hccl_set("async_error", "21");
                                                          swap_bytes(ranks);
                                                        },
                                                        {});
  for (const std::string& outcome : outcomes) {
    EXPECT_EQ(outcome, "PeerLost: HCCL: exchange: error 21, remote error");
  }
}

TEST(HcclRanks, RanksThatDoNotAgreeOnSizesAreToldSo) {
  const std::vector<std::string> outcomes =
      run_on_npus(2,
                  [](Communicator& ranks) {
                    swap(ranks, bytes_on_device(100), bytes_on_device(ranks.rank() == 0 ? 100 : 200))->wait();
                    swap_bytes(ranks);
                  },
                  {});
  EXPECT_EQ(outcomes[1], "PeerLost: HCCL: exchange: error 1, parameter error");
  EXPECT_THAT(outcomes[0], StartsWith("PeerLost: "));
}

TEST(HcclRanks, ACallThatHcclRefusesIsNoLostRank) {
  const std::vector<std::string> outcomes = run_on_npus(2, swap_bytes, {.prepare = [](int rank) {
                                                          if (rank == 0) fake_hccl_set("fail", "HcclBatchSendRecv:1");
                                                        }});
  EXPECT_EQ(outcomes[0], "HCCL: exchange: error 1, parameter error; please report it with the version of CANN");
}

TEST(HcclRanks, AFailureOfTheStreamEndsAnExchange) {
  const std::vector<std::string> outcomes = run_on_npus(2,
                                                        [](Communicator& ranks) {
                                                          if (ranks.rank() == 0)
                                                            fake_cann_set("fail", "aclrtStreamQuery:0:507899");
                                                          swap_bytes(ranks);
                                                          swap_bytes(ranks);
                                                        },
                                                        {});
  for (const std::string& outcome : outcomes) EXPECT_THAT(outcome, StartsWith("PeerLost: HCCL: exchange: "));
  EXPECT_THAT(outcomes[0], testing::EndsWith("aclrtStreamQuery: error 507899"));
}

// The device's work of before: here it writes the tensor when somebody waits for it, and not before.
TEST(HcclRanks, AnExchangeSendsWhatEarlierWorkWrites) {
  static at::Tensor mine;
  const Setting setting{.synchronize = [] {
    if (mine.defined()) mine.fill_(7);
  }};
  const std::vector<std::string> outcomes = run_on_npus(
      2,
      [](Communicator& ranks) {
        mine = bytes_on_device(100);
        const at::Tensor theirs = bytes_on_device(100);
        swap(ranks, mine, theirs)->wait();
        if (!theirs.cpu().eq(7).all().item<bool>()) throw std::runtime_error("old bytes were sent");
        mine.reset();
      },
      setting);
  for (const std::string& outcome : outcomes) EXPECT_EQ(outcome, "");
}

// A sum is exchange and sum_parts. HCCL's setting and the order in which parts arrive do not show in its bits.
TEST(HcclRanks, NoSettingOfHcclDecidesABitOfASum) {
  constexpr int kRanks = 4;
  constexpr int64_t kElements = 3000;
  const auto sum = [](Communicator& ranks) {
    TensorLists parts;
    for (int rank = 0; rank < kRanks; ++rank) {
      const at::Tensor part = at::empty({kElements}, at::kFloat);
      for (int64_t i = 0; i < kElements && rank == ranks.rank(); ++i) {
        part.mutable_data_ptr<float>()[i] = std::ldexp(static_cast<float>((i * 37 + rank * 11) % 101), rank * 7 - 10);
      }
      parts.push_back({part.to(device())});
    }
    all_gather(ranks, parts);
    std::vector<at::Tensor> on_host;
    for (const auto& part : parts) on_host.push_back(part[0].cpu());
    const at::Tensor total = at::empty({kElements}, at::kFloat);
    make_cpu_ops("scalar", 1)->sum_parts(on_host, {}, total);
    const auto* const bytes = static_cast<const std::byte*>(total.const_data_ptr());
    throw std::runtime_error(fmt::format("{:x}", checksum_of({bytes, total.nbytes()}).first));
  };
  std::set<std::string> sums;
  for (const char* deterministic : {"false", "true", "strict"}) {
    for (const char* seed : {"0", "1", "2"}) {
      const Setting setting{.prepare = [&](int) {
        setenv("HCCL_DETERMINISTIC", deterministic, 1);
        fake_hccl_set("shuffle", seed);
      }};
      for (const std::string& outcome : run_on_npus(kRanks, sum, setting)) sums.insert(outcome);
    }
  }
  EXPECT_EQ(sums.size(), 1) << *sums.begin() << " and " << *sums.rbegin();
  EXPECT_THAT(*sums.begin(), testing::Not(StartsWith("PeerLost")));
}

TEST(HcclRanks, HcclIsGivenTheRunsTimeoutAndInterface) {
  const auto say = [](Communicator&) {
    throw std::runtime_error(fmt::format("{} {} {}", getenv("HCCL_CONNECT_TIMEOUT"), getenv("HCCL_EXEC_TIMEOUT"),
                                         getenv("HCCL_SOCKET_IFNAME")));
  };
  EXPECT_EQ(run_on_npus(1, say, {.timeout_s = 4.5, .interface = "eth1"})[0], "120 5 =eth1");
  EXPECT_EQ(run_on_npus(1, say, {.timeout_s = 86400, .interface = "eth1"})[0], "7200 86400 =eth1");
}

TEST(HcclCalls, WhatIsMissingIsNamed) {
  EXPECT_EQ(base::thrown_by<EnvironmentError>([] { npu::load_hccl_calls("libhccl_that_is_not_there.so"); }),
            "several NPUs need HCCL: libhccl_that_is_not_there.so: cannot open shared object file: No such file or "
            "directory; install CANN and source its set_env.sh, or use one device");
  const auto find = [](const char* name) {
    static int symbol = 0;
    return std::strcmp(name, "HcclBatchSendRecv") == 0 ? nullptr : static_cast<void*>(&symbol);
  };
  EXPECT_EQ(base::thrown_by<EnvironmentError>([&] { npu::find_hccl_calls("libhccl.so", find); }),
            "libhccl.so has no HcclBatchSendRecv; install CANN 9.1 or newer");
}

}  // namespace
}  // namespace tandem::device
