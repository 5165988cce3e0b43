// Tests of who in a launch trains, who samples, and who shares an engine, whatever has started the processes.
#include "mesh/launch/launch.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/files.h"
#include "tandem/error.h"
#include "tests/base/temporary_directory.h"

namespace tandem::mesh {
namespace {

const Placement kTwoAndEngines = {.trainers_per_host = 2, .num_workers = 4, .per_engine = 2};

Launch launch_of(int rank, int size, int per_host, const Placement& placement) {
  Launch launch = {.is_launched = true, .placement = placement};
  launch.processes.rank = rank;
  launch.processes.size = size;
  launch.processes.local_rank = rank % per_host;
  launch.processes.local_size = std::min(per_host, size - (rank - launch.processes.local_rank));
  return launch;
}

// Returns "trains as rank 1 of 2, 1/2 of its host" or "samples as rank 0 of 2 of engine 1, 0/2 of its host".
std::string place(const Launch& launch) {
  const LaunchVariables party = launch.party();
  return fmt::format("{} as {}, {}/{} of its host", launch.only_samples() ? "samples" : "trains", party.name(),
                     party.local_rank, party.local_size);
}

TEST(Launch, TrainersCountAsIfTheyWereAlone) {
  const Launch launch = launch_of(1, 6, 6, kTwoAndEngines);
  EXPECT_EQ(place(launch), "trains as rank 1 of 2, 1/2 of its host");
  EXPECT_TRUE(launch.party().is_one_host());
}

TEST(Launch, TrainersOfTheSecondHostShareItWithThoseThatSample) {
  const Launch launch = launch_of(5, 8, 4, {.num_hosts = 2, .trainers_per_host = 3, .num_workers = 2, .per_engine = 2});
  EXPECT_EQ(place(launch), "trains as rank 5 of 6, 1/2 of its host");
  EXPECT_FALSE(launch.party().is_one_host());
}

TEST(Launch, AnEngineIsAPartyOfItsOwn) {
  EXPECT_EQ(place(launch_of(5, 6, 6, kTwoAndEngines)), "samples as rank 1 of 2 of engine 1, 1/2 of its host");
  EXPECT_EQ(kTwoAndEngines.num_engines(), 2);
}

TEST(Launch, AnEngineOnAHostWithoutTrainers) {
  const Launch launch = launch_of(7, 8, 4, {.trainers_per_host = 4, .num_workers = 4, .per_engine = 2});
  EXPECT_EQ(place(launch), "samples as rank 1 of 2 of engine 1, 1/2 of its host");
  EXPECT_TRUE(launch.party().is_one_host());
  EXPECT_FALSE(launch.processes.is_one_host());
}

// Returns what the flags of a launch of workers ask for: they are the flags of the run that the workers join, whose
// trainers are in another launch.
TEST(Launch, AllOfALaunchThatJoinsARunSample) {
  Placement joining = kTwoAndEngines;
  joining.joins = true;
  EXPECT_EQ(place(launch_of(0, 4, 4, joining)), "samples as rank 0 of 2 of engine 0, 0/2 of its host");
  EXPECT_EQ(place(launch_of(3, 4, 4, joining)), "samples as rank 1 of 2 of engine 1, 1/2 of its host");
  EXPECT_FALSE(launch_of(0, 4, 2, joining).spreads_workers()) << "the run has its own, which are somewhere else";
}

TEST(Launch, AnEngineIsWholeAndOnOneHost) {
  EXPECT_THROW(launch_of(4, 5, 5, kTwoAndEngines).party(), UserError);
  EXPECT_THROW(launch_of(3, 6, 3, kTwoAndEngines).party(), UserError);
  EXPECT_THROW(launch_of(2, 6, 3, kTwoAndEngines).party(), UserError);
}

TEST(Launch, WorkersAreSpreadWhereThereAreSomeAndSeveralHosts) {
  EXPECT_TRUE(launch_of(0, 6, 2, kTwoAndEngines).spreads_workers());
  EXPECT_TRUE(launch_of(5, 6, 2, kTwoAndEngines).spreads_workers());
  EXPECT_FALSE(launch_of(0, 6, 6, kTwoAndEngines).spreads_workers());
  EXPECT_FALSE(launch_of(0, 4, 2, {.num_hosts = 2, .trainers_per_host = 2}).spreads_workers());
}

TEST(Launch, AProcessThatNobodyLaunchedTrainsAlone) {
  const Launch launch = {};
  EXPECT_FALSE(launch.is_launched);
  EXPECT_EQ(place(launch), "trains as rank 0 of 1, 0/1 of its host");
  EXPECT_FALSE(launch.spreads_workers());
  EXPECT_EQ(launch.secret(), "");
}

TEST(Launch, TheSecretIsTheFilesAndIsReadWhereItIsUsed) {
  const base::TemporaryDirectory folder;
  const Launch launch = {.secret_file = folder / "secret"};
  EXPECT_THROW(launch.secret(), UserError);
  const std::string secret = "thirty-two different bytes, or so: 0123456789";
  base::write_file_durably(launch.secret_file, secret);
  std::filesystem::permissions(launch.secret_file, std::filesystem::perms::owner_read);
  EXPECT_EQ(launch.secret(), secret);
}

TEST(Launch, EachHostHasAllItsTrainersOrNone) {
  const Placement placement = {.num_hosts = 2, .trainers_per_host = 2, .num_workers = 4};
  EXPECT_EQ(placement.num_trainers_among(0, 3), 3);
  EXPECT_EQ(placement.num_trainers_among(3, 3), 1);
  EXPECT_EQ(placement.num_trainers_among(6, 2), 0);
  EXPECT_NO_THROW(placement.check_host(0, 2, ""));
  EXPECT_NO_THROW(placement.check_host(2, 6, ""));
  EXPECT_NO_THROW(placement.check_host(4, 4, ""));
  try {
    placement.check_host(0, 8, "WORLD_SIZE=8");
    ADD_FAILURE() << "four trainers of one host are too many";
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(),
                 "--actor-num-nodes 2 x --actor-num-gpus-per-node 2: the first 4 processes train, and on one machine 4 "
                 "of its 8 do (WORLD_SIZE=8); the others sample, behind them: start so many on each machine that 2 "
                 "train where any do");
  }
}

// The variables that a launcher gives to one of eight processes, of which four are on each of two hosts.
struct Launcher {
  std::string name;
  Variables (*variables)(int rank);
};

const std::vector<Launcher> kLaunchers = {
    {"torchrun",
     [](int rank) {
       return Variables{{"RANK", std::to_string(rank)},
                        {"WORLD_SIZE", "8"},
                        {"LOCAL_RANK", std::to_string(rank % 4)},
                        {"LOCAL_WORLD_SIZE", "4"},
                        {"MASTER_ADDR", "node-0"},
                        {"MASTER_PORT", "29500"},
                        {"TORCHELASTIC_USE_AGENT_STORE", "True"}};
     }},
    {"srun",
     [](int rank) {
       return Variables{{"SLURM_PROCID", std::to_string(rank)},
                        {"SLURM_NTASKS", "8"},
                        {"SLURM_LOCALID", std::to_string(rank % 4)},
                        {"SLURM_STEP_ID", "0"},
                        {"SLURM_JOB_ID", "345"},
                        {"SLURM_NODEID", std::to_string(rank / 4)},
                        {"SLURM_TASKS_PER_NODE", "4(x2)"},
                        {"SLURM_JOB_NODELIST", "node-[0-1]"}};
     }},
    {"mpirun of Open MPI",
     [](int rank) {
       return Variables{{"OMPI_COMM_WORLD_RANK", std::to_string(rank)},
                        {"OMPI_COMM_WORLD_SIZE", "8"},
                        {"OMPI_COMM_WORLD_LOCAL_RANK", std::to_string(rank % 4)},
                        {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                        {"MASTER_ADDR", "node-0"},
                        {"MASTER_PORT", "29500"}};
     }},
    {"mpirun of MPICH",
     [](int rank) {
       return Variables{
           {"PMI_RANK", std::to_string(rank)}, {"PMI_SIZE", "8"},         {"MPI_LOCALRANKID", std::to_string(rank % 4)},
           {"MPI_LOCALNRANKS", "4"},           {"MASTER_ADDR", "node-0"}, {"MASTER_PORT", "29500"}};
     }},
    {"tandem launch",
     [](int rank) {
       return Variables{
           {"RANK", std::to_string(rank)}, {"WORLD_SIZE", "8"},        {"LOCAL_RANK", std::to_string(rank % 4)},
           {"LOCAL_WORLD_SIZE", "4"},      {"MASTER_ADDR", "node-0"},  {"MASTER_PORT", "29500"},
           {"TANDEM_LAUNCH", "a1b2"},      {"TANDEM_LAUNCHER_FD", "9"}};
     }},
};

// With 4 trainers on the first of two hosts, and two engines of two processes on the second.
TEST(Launch, IsTheSameWhateverStartsTheProcesses) {
  const Placement placement = {.trainers_per_host = 4, .num_workers = 4, .per_engine = 2};
  const std::vector<std::string> expected = {
      "trains as rank 0 of 4, 0/4 of its host",
      "trains as rank 1 of 4, 1/4 of its host",
      "trains as rank 2 of 4, 2/4 of its host",
      "trains as rank 3 of 4, 3/4 of its host",
      "samples as rank 0 of 2 of engine 0, 0/2 of its host",
      "samples as rank 1 of 2 of engine 0, 1/2 of its host",
      "samples as rank 0 of 2 of engine 1, 0/2 of its host",
      "samples as rank 1 of 2 of engine 1, 1/2 of its host",
  };
  for (const Launcher& launcher : kLaunchers) {
    for (int rank = 0; rank < 8; ++rank) {
      const std::optional<LaunchVariables> processes = read_launch_variables(launcher.variables(rank), /*parent=*/1);
      ASSERT_TRUE(processes) << launcher.name;
      const Launch launch = {.is_launched = true, .processes = *processes, .placement = placement};
      EXPECT_EQ(place(launch), expected[static_cast<size_t>(rank)]) << launcher.name;
      EXPECT_TRUE(launch.spreads_workers()) << launcher.name;
      EXPECT_EQ(launch.processes.first_here(), rank / 4 * 4) << launcher.name;
      EXPECT_EQ(launch.party().master_address, "node-0") << launcher.name;
      EXPECT_NO_THROW(launch.placement.check_host(launch.processes.first_here(), launch.processes.local_size, ""));
    }
  }
}

}  // namespace
}  // namespace tandem::mesh
