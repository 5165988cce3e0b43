// What every kind of communicator is asked. A test file of a kind instantiates it, once for each number of ranks:
//   INSTANTIATE_TEST_SUITE_P(Threads, CommunicatorConformance, testing::ValuesIn(kinds), rank_kind_name);
#pragma once

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "device/communicator.h"

namespace tandem::device {

// What a rank does; throws where something is not as it should be.
using Body = std::function<void(Communicator& ranks)>;

struct RankKind {
  std::string name;
  int size = 1;
  at::Device device = at::kCPU;
  bool are_processes = false;  // a rank can be killed
  // Runs `body` on ranks of their own. By rank: "" where it returned, else what it threw, behind "PeerLost: " where it
  // was that; "killed".
  std::function<std::vector<std::string>(int size, const Body& body)> run;
  // Why this machine has no such ranks; empty: it has.
  std::function<std::string()> why_none = [] { return std::string(); };
};

inline void PrintTo(const RankKind& kind, std::ostream* out) { *out << kind.name << " " << kind.size; }

inline std::string rank_kind_name(const testing::TestParamInfo<RankKind>& info) {
  return info.param.name + "_" + std::to_string(info.param.size);
}

// body's outcome on one rank, as RankKind::run gives it.
std::string outcome_of(const Body& body, Communicator& ranks);

class CommunicatorConformance : public testing::TestWithParam<RankKind> {
 protected:
  void SetUp() override;
  // All ranks return.
  void expect_right(const Body& body);
  // The last rank is killed while all repeat `operation`: the others get PeerLost that names it, soon.
  void expect_death_noticed(const std::string& operation, const Body& body);
};

}  // namespace tandem::device
