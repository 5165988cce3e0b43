// Tests of who works with whom in a launch.
#include "mesh/placement.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tandem/error.h"

namespace tandem::mesh {
namespace {

// Returns the launch of rank `rank` of `size`, with `per_host` on each host.
LaunchVariables launch_of(int rank, int size, int per_host) {
  LaunchVariables launch;
  launch.rank = rank;
  launch.size = size;
  launch.local_rank = rank % per_host;
  launch.local_size = std::min(per_host, size - (rank - launch.local_rank));
  return launch;
}

TEST(Placement, TrainersCountAsIfTheyWereAlone) {
  const Placement placement = {.num_trainers = 2, .per_engine = 1};
  const LaunchVariables party = party_of(launch_of(1, 5, 5), placement);
  EXPECT_EQ(party.rank, 1);
  EXPECT_EQ(party.size, 2);
  EXPECT_EQ(party.local_rank, 1);
  EXPECT_EQ(party.local_size, 2);
  EXPECT_TRUE(party.is_one_host());
  EXPECT_EQ(party.party, "");
}

TEST(Placement, TrainersOfTheSecondHostShareItWithThoseThatSample) {
  const Placement placement = {.num_trainers = 6, .per_engine = 2};
  const LaunchVariables party = party_of(launch_of(5, 8, 4), placement);
  EXPECT_EQ(party.rank, 5);
  EXPECT_EQ(party.size, 6);
  EXPECT_EQ(party.local_rank, 1);
  EXPECT_EQ(party.local_size, 2);
  EXPECT_FALSE(party.is_one_host());
}

TEST(Placement, AnEngineIsAPartyOfItsOwn) {
  const Placement placement = {.num_trainers = 2, .per_engine = 2};
  const LaunchVariables launch = launch_of(5, 6, 6);
  EXPECT_FALSE(placement.trains(launch));
  EXPECT_EQ(placement.engine(launch), 1);
  const LaunchVariables party = party_of(launch, placement);
  EXPECT_EQ(party.rank, 1);
  EXPECT_EQ(party.size, 2);
  EXPECT_EQ(party.local_rank, 1);
  EXPECT_EQ(party.local_size, 2);
  EXPECT_EQ(party.name(), "rank 1 of 2 of engine 1");
}

TEST(Placement, AnEngineOnAHostWithoutTrainers) {
  const LaunchVariables party = party_of(launch_of(7, 8, 4), {.num_trainers = 4, .per_engine = 2});
  EXPECT_EQ(party.rank, 1);
  EXPECT_EQ(party.local_rank, 1);
  EXPECT_TRUE(party.is_one_host());
}

TEST(Placement, AnEngineThatJoinsKeepsTheStoreItself) {
  const LaunchVariables party = party_of(launch_of(0, 2, 2), {.num_trainers = 0, .per_engine = 2});
  EXPECT_EQ(party.size, 2);
}

TEST(Placement, AnEngineIsWholeAndOnOneHost) {
  EXPECT_THROW(party_of(launch_of(4, 5, 5), {.num_trainers = 2, .per_engine = 2}), UserError);
  EXPECT_THROW(party_of(launch_of(3, 6, 3), {.num_trainers = 2, .per_engine = 2}), UserError);
  EXPECT_THROW(party_of(launch_of(2, 6, 3), {.num_trainers = 2, .per_engine = 2}), UserError);
}

}  // namespace
}  // namespace tandem::mesh
