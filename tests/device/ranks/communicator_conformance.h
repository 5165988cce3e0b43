// Tests that every kind of communicator must pass. A test file of a kind instantiates them, once for each number of
// ranks:
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

// The work of one rank. It throws where something is not as it should be.
using Body = std::function<void(Communicator& ranks)>;

struct RankKind {
  std::string name;
  int size = 1;
  at::Device device = at::kCPU;
  bool are_processes = false;  // true: a rank can be killed
  // Runs `body` on ranks of their own. Returns by rank "" if it returned, else the message that it threw, after
  // "PeerLost: " for a PeerLost; or "killed".
  std::function<std::vector<std::string>(int size, const Body& body)> run;
  // Says why this machine has no such ranks; empty: it has.
  std::function<std::string()> why_none = [] { return std::string(); };
};

inline void PrintTo(const RankKind& kind, std::ostream* out) { *out << kind.name << " " << kind.size; }

inline std::string rank_kind_name(const testing::TestParamInfo<RankKind>& info) {
  return info.param.name + "_" + std::to_string(info.param.size);
}

// Returns body's outcome on one rank, in the form of RankKind::run.
std::string outcome_of(const Body& body, Communicator& ranks);

class CommunicatorConformance : public testing::TestWithParam<RankKind> {
 protected:
  void SetUp() override;
  // Expects that all ranks return.
  void expect_right(const Body& body);
  // Kills the last rank while all repeat `operation` and expects that the others soon get a PeerLost that names it.
  void expect_death_noticed(const std::string& operation, const Body& body);
};

}  // namespace tandem::device
