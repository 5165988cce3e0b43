// Tests of the launchers' variables, row by row.
#include "mesh/launch/launch_variables.h"

#include <gtest/gtest.h>

#include "tandem/error.h"

namespace tandem::mesh {
namespace {

constexpr int64_t kParent = 4711;

struct Case {
  std::string name;
  Variables variables;
  std::string expected;  // "rank/size local_rank/local_size address:port"; "alone"; or the error's words
};

std::string answer(const Variables& variables) {
  try {
    const std::optional<LaunchVariables> launch = read_launch_variables(variables, kParent);
    if (!launch) return "alone";
    return fmt::format("{}/{} {}/{} {}:{}", launch->rank, launch->size, launch->local_rank, launch->local_size,
                       launch->master_address, launch->master_port);
  } catch (const UserError& error) {
    return error.what();
  }
}

Variables with(Variables variables, const Variables& more) {
  for (const auto& [name, value] : more) {
    if (value.empty()) variables.erase(name);
    if (!value.empty()) variables[name] = value;
  }
  return variables;
}

const Variables kTorchrun = {{"RANK", "3"},
                             {"WORLD_SIZE", "8"},
                             {"LOCAL_RANK", "1"},
                             {"LOCAL_WORLD_SIZE", "2"},
                             {"MASTER_ADDR", "node-0"},
                             {"MASTER_PORT", "29500"}};
const Variables kSlurm = {{"SLURM_PROCID", "5"},
                          {"SLURM_NTASKS", "8"},
                          {"SLURM_LOCALID", "1"},
                          {"SLURM_STEP_ID", "2"},
                          {"SLURM_JOB_ID", "345"},
                          {"SLURM_NODEID", "1"},
                          {"SLURM_TASKS_PER_NODE", "4(x2)"},
                          {"SLURM_JOB_NODELIST", "gpu[01-02]"}};
const Variables kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "1"},
                            {"OMPI_COMM_WORLD_SIZE", "4"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}};
const Variables kMpich = {{"PMI_RANK", "2"}, {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "2"}, {"MPI_LOCALNRANKS", "4"}};

const std::vector<Case> kCases = {
    {"nobody started ranks", {}, "alone"},
    {"MASTER_ADDR alone starts nothing", {{"MASTER_ADDR", "a"}, {"MASTER_PORT", "1"}}, "alone"},

    {"torchrun", kTorchrun, "3/8 1/2 node-0:29500"},
    {"torchrun inside Slurm", with(kSlurm, kTorchrun), "3/8 1/2 node-0:29500"},
    {"torchrun, torn",
     {{"RANK", "3"}, {"WORLD_SIZE", "8"}},
     "RANK=3 WORLD_SIZE=8 set and LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT not: whoever starts ranks "
     "sets "
     "all of them; unset what was left over, or set the rest"},
    {"a rank that is none", with(kTorchrun, {{"RANK", "three"}}),
     "RANK=three: is to be a whole number of 0 to 1048576; unset it where nobody starts ranks"},
    {"a rank beyond the ranks", with(kTorchrun, {{"RANK", "8"}}),
     "RANK=8 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2: contradict each other; a rank is less than the number of "
     "ranks, and a host has no more of them than there are"},
    {"more on a host than there are", with(kTorchrun, {{"LOCAL_WORLD_SIZE", "9"}}),
     "RANK=3 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=9: contradict each other; a rank is less than the number of "
     "ranks, and a host has no more of them than there are"},
    {"a port beyond ports", with(kTorchrun, {{"MASTER_PORT", "65536"}}),
     "MASTER_PORT=65536: is to be a whole number of 1 to 65535; unset it where nobody starts ranks"},

    {"srun", kSlurm, "5/8 1/4 gpu01:22417"},
    {"srun, on one host", with(kSlurm, {{"SLURM_TASKS_PER_NODE", "8"}, {"SLURM_NODEID", "0"}, {"SLURM_LOCALID", "5"}}),
     "5/8 5/8 127.0.0.1:22417"},
    {"srun, a step of a larger job",
     with(kSlurm, {{"SLURM_STEP_NUM_TASKS", "2"},
                   {"SLURM_PROCID", "1"},
                   {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"},
                   {"SLURM_LOCALID", "0"},
                   {"SLURM_STEP_NODELIST", "gpu02,gpu07"}}),
     "1/2 0/1 gpu02:22417"},
    {"srun --ntasks-per-node", with(kSlurm, {{"SLURM_TASKS_PER_NODE", ""}, {"SLURM_NTASKS_PER_NODE", "4"}}),
     "5/8 1/4 gpu01:22417"},
    {"srun, with an address", with(kSlurm, {{"MASTER_ADDR", "10.0.0.1"}, {"MASTER_PORT", "77"}}),
     "5/8 1/4 10.0.0.1:77"},
    {"srun of one task",
     with(kSlurm, {{"SLURM_NTASKS", "1"}, {"SLURM_PROCID", "0"}, {"PMI_RANK", "0"}, {"PMI_SIZE", "1"}}), "alone"},
    {"a batch script of a job of eight tasks", with(kSlurm, {{"SLURM_STEP_ID", ""}, {"SLURM_PROCID", "0"}}), "alone"},
    {"a shell in an allocation", {{"SLURM_JOB_ID", "3"}, {"SLURM_NTASKS", "4"}}, "alone"},
    {"srun, torn", with(kSlurm, {{"SLURM_LOCALID", ""}}),
     "SLURM_PROCID=5 SLURM_NTASKS=8 SLURM_JOB_ID=345 set and SLURM_LOCALID not: whoever starts ranks sets all of them; "
     "unset what was left over, or set the rest"},

    {"Open MPI", kOpenMpi, "1/4 1/4 127.0.0.1:24711"},
    {"Open MPI on several hosts", with(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}}),
     "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2: the "
     "ranks "
     "are on several hosts; set MASTER_ADDR to that of rank 0 and MASTER_PORT to a free port there, for all ranks "
     "(mpirun -x, -genv)"},
    {"Open MPI on several hosts, with an address",
     with(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "9"}}), "1/4 1/2 a:9"},
    {"MPICH", kMpich, "2/4 2/4 127.0.0.1:24711"},
    {"MPICH, torn", with(kMpich, {{"MPI_LOCALNRANKS", ""}}),
     "PMI_RANK=2 PMI_SIZE=4 MPI_LOCALRANKID=2 set and MPI_LOCALNRANKS not: whoever starts ranks sets all of them; "
     "unset "
     "what was left over, or set the rest"},
    {"Open MPI before MPICH", with(kMpich, kOpenMpi), "1/4 1/4 127.0.0.1:24711"},
};

TEST(LaunchVariables, TheFirstLauncherThatAppliesWins) {
  for (const Case& row : kCases) EXPECT_EQ(answer(row.variables), row.expected) << row.name;
}

TEST(LaunchVariables, TheAgentsStoreAndThatOfOurLauncher) {
  EXPECT_FALSE(read_launch_variables(kTorchrun, kParent)->store_is_anothers);
  const auto agent = read_launch_variables(
      with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "True"}, {"TORCHELASTIC_RESTART_COUNT", "2"}}), kParent);
  EXPECT_TRUE(agent->store_is_anothers);
  EXPECT_EQ(agent->attempt, 2);
  EXPECT_FALSE(read_launch_variables(with(kTorchrun, {{"TANDEM_STORE_FD", "7"}}), kParent)->store_descriptor)
      << "it is rank 0's alone";
  const auto rank_0 =
      read_launch_variables(with(kTorchrun, {{"TANDEM_STORE_FD", "7"}, {"RANK", "0"}, {"LOCAL_RANK", "0"}}), kParent);
  EXPECT_EQ(rank_0->store_descriptor, 7);
  EXPECT_EQ(rank_0->launcher_descriptor, std::nullopt);
  const auto any_rank = read_launch_variables(with(kTorchrun, {{"TANDEM_LAUNCHER_FD", "8"}}), kParent);
  EXPECT_EQ(any_rank->launcher_descriptor, 8);
}

TEST(LaunchVariables, OurLauncherOnOneHostGivesAnIdAndNoPort) {
  const Variables ours = {
      {"RANK", "1"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "2"}, {"TANDEM_LAUNCH", "a1b2"}};
  EXPECT_EQ(read_launch_variables(ours, kParent)->id, "a1b2");
  EXPECT_EQ(read_launch_variables(kTorchrun, kParent)->id, "");
  EXPECT_THROW(read_launch_variables(with(ours, {{"WORLD_SIZE", "4"}}), kParent), UserError)
      << "on several hosts it has to say where rank 0 is";
}

TEST(LaunchVariables, TheFirstHostOfAList) {
  EXPECT_EQ(first_host("node"), "node");
  EXPECT_EQ(first_host("a[01-03],b7"), "a01");
  EXPECT_EQ(first_host("b7,a[01-03]"), "b7");
  EXPECT_EQ(first_host("a[3,5-7].cluster,x"), "a3.cluster");
  EXPECT_EQ(first_host("r[1-2]n[09-10]"), "r1n09");
  EXPECT_EQ(first_host(""), "");
  EXPECT_EQ(first_host("a[1-"), "");
}

TEST(LaunchVariables, TasksOfANode) {
  EXPECT_EQ(tasks_of_node("2,4(x3)", 0), 2);
  EXPECT_EQ(tasks_of_node("2,4(x3)", 3), 4);
  for (const char* list : {"2,4(x3)", "2", "", "x", "2(x", "2(xy)", "0"})
    EXPECT_EQ(tasks_of_node(list, 4), std::nullopt);
}

TEST(LaunchVariables, RanksShareTheCoresOfTheirHost) {
  EXPECT_EQ(threads_per_rank(0, 16, 4), 4);
  EXPECT_EQ(threads_per_rank(0, 2, 8), 1);
  EXPECT_EQ(threads_per_rank(0, 16, 1), 16);
  EXPECT_EQ(threads_per_rank(3, 16, 4), 3) << "what the user asks for holds";
}

}  // namespace
}  // namespace tandem::mesh
