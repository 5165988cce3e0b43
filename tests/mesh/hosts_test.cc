// Tests of the checks of a launch on several hosts before any of its ranks talks.
#include "mesh/hosts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/base/thrown.h"

namespace tandem::mesh {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

std::string refusal(const LaunchVariables& launch, bool trust_network, const std::string& secret) {
  return base::thrown_by([&] { check_hosts(launch, trust_network, secret, /*wait_s=*/0.0); });
}

LaunchVariables four_ranks(int per_host) {
  LaunchVariables launch;
  launch.size = 4;
  launch.local_size = per_host;
  launch.master_address = "10.0.0.1";
  launch.source = "WORLD_SIZE=4";
  return launch;
}

TEST(Hosts, NeedASecretOrTrust) {
  EXPECT_THAT(refusal(four_ranks(2), false, ""), StartsWith("WORLD_SIZE=4: the ranks are on several hosts"));
  EXPECT_EQ(refusal(four_ranks(2), true, ""), "");
  EXPECT_EQ(refusal(four_ranks(2), false, "a secret"), "");
  EXPECT_EQ(refusal(four_ranks(4), false, ""), "");
}

}  // namespace
}  // namespace tandem::mesh
