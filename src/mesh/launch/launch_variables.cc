#include "mesh/launch/launch_variables.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <sstream>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/env.h"

namespace tandem::mesh {

namespace {

// Ports that are derived, not given, are below those that the kernel hands out to connecting sockets.
constexpr int64_t kFirstPort = 20000, kNumPorts = 12000;
constexpr int64_t kMaxRanks = 1 << 20;
constexpr int64_t kMaxPort = 65535;

std::optional<int64_t> number(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return value;
}

// Reads the variables of a launcher, and words errors about them.
class Reader {
 public:
  explicit Reader(const Variables& variables) : variables_(variables) {}

  bool has(const std::string& name) const { return variables_.count(name) > 0; }
  std::string text(const std::string& name) const { return has(name) ? variables_.at(name) : ""; }

  // Throws UserError, which names those that are missing, unless all are set.
  void need(const std::vector<std::string>& names) const {
    std::vector<std::string> set, missing;
    for (const std::string& name : names) (has(name) ? set : missing).push_back(name);
    TANDEM_USER_CHECK(missing.empty(), fmt::format("{} set and {} not: whoever starts ranks sets all of them; unset "
                                                   "what was left over, or set the rest",
                                                   say(set), fmt::join(missing, ", ")));
  }
  int integer(const std::string& name, int64_t least, int64_t most) const {
    const std::optional<int64_t> value = number(text(name));
    TANDEM_USER_CHECK(value && *value >= least && *value <= most,
                      fmt::format("{}={}: is to be a whole number of {} to {}; unset it where nobody starts ranks",
                                  name, text(name), least, most));
    return static_cast<int>(*value);
  }
  // Returns "RANK=1 WORLD_SIZE=4" with those that are set.
  std::string say(const std::vector<std::string>& names) const {
    std::vector<std::string> words;
    for (const std::string& name : names) {
      if (has(name)) words.push_back(fmt::format("{}={}", name, text(name)));
    }
    return fmt::format("{}", fmt::join(words, " "));
  }

 private:
  const Variables& variables_;
};

void check_ranks(const LaunchVariables& launch) {
  TANDEM_USER_CHECK(launch.rank < launch.size && launch.local_rank < launch.local_size &&
                        launch.local_size <= launch.size && launch.local_rank <= launch.rank,
                    fmt::format("{}: contradict each other; a rank is less than the number of ranks, and a host has no "
                                "more of them than there are",
                                launch.source));
}

// Reads MASTER_ADDR and MASTER_PORT where the user gives them.
void read_master(const Reader& reader, LaunchVariables& launch) {
  if (reader.has("MASTER_ADDR")) launch.master_address = reader.text("MASTER_ADDR");
  if (reader.has("MASTER_PORT")) launch.master_port = reader.integer("MASTER_PORT", 1, kMaxPort);
}

LaunchVariables of_torchrun(const Reader& reader) {
  std::vector<std::string> names = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
  const bool is_ours = reader.has("TANDEM_LAUNCH");
  if (!is_ours || reader.text("WORLD_SIZE") != reader.text("LOCAL_WORLD_SIZE")) {
    names.insert(names.end(), {"MASTER_ADDR", "MASTER_PORT"});
  }
  reader.need(names);
  LaunchVariables launch;
  launch.source = reader.say({"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"});
  launch.rank = reader.integer("RANK", 0, kMaxRanks);
  launch.size = reader.integer("WORLD_SIZE", 1, kMaxRanks);
  launch.local_rank = reader.integer("LOCAL_RANK", 0, kMaxRanks);
  launch.local_size = reader.integer("LOCAL_WORLD_SIZE", 1, kMaxRanks);
  read_master(reader, launch);
  launch.id = reader.text("TANDEM_LAUNCH");
  launch.store_is_anothers = reader.text("TORCHELASTIC_USE_AGENT_STORE") == "True";
  if (reader.has("TORCHELASTIC_RESTART_COUNT")) {
    launch.attempt = reader.integer("TORCHELASTIC_RESTART_COUNT", 0, kMaxRanks);
  }
  if (reader.has("TANDEM_STORE_FD") && launch.rank == 0) {
    launch.store_descriptor = reader.integer("TANDEM_STORE_FD", 3, kMaxRanks);
  }
  if (reader.has("TANDEM_LAUNCHER_FD")) {
    launch.launcher_descriptor = reader.integer("TANDEM_LAUNCHER_FD", 3, kMaxRanks);
  }
  return launch;
}

// If the step has a variable of its own, the one without STEP is the whole allocation's.
std::string of_step(const Reader& reader, const std::string& step, const std::string& job) {
  return reader.has(step) ? step : job;
}

int slurm_local_size(const Reader& reader, const LaunchVariables& launch) {
  const std::string list = of_step(reader, "SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE");
  if (reader.has(list)) {
    const int node = reader.has("SLURM_NODEID") ? reader.integer("SLURM_NODEID", 0, kMaxRanks) : 0;
    const std::optional<int> tasks = tasks_of_node(reader.text(list), node);
    TANDEM_USER_CHECK(tasks, fmt::format("{}={}: names no node {} (SLURM_NODEID)", list, reader.text(list), node));
    return *tasks;
  }
  if (reader.has("SLURM_NTASKS_PER_NODE")) {
    return std::min(reader.integer("SLURM_NTASKS_PER_NODE", 1, kMaxRanks), launch.size);
  }
  throw UserError(
      fmt::format("{} set and SLURM_TASKS_PER_NODE not: it says how many ranks share a host; start them "
                  "with srun --ntasks-per-node N",
                  launch.source));
}

// In a batch script and in a shell inside an allocation, SLURM_PROCID is 0 and SLURM_NTASKS the size that a step might
// have: only srun sets SLURM_STEP_ID.
std::optional<LaunchVariables> of_slurm(const Reader& reader) {
  const std::string size = of_step(reader, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS");
  if (!reader.has("SLURM_STEP_ID")) return std::nullopt;
  reader.need({"SLURM_PROCID", size, "SLURM_LOCALID", "SLURM_JOB_ID"});
  LaunchVariables launch;
  launch.size = reader.integer(size, 1, kMaxRanks);
  if (launch.size == 1) return std::nullopt;
  launch.source = reader.say({"SLURM_PROCID", size, "SLURM_LOCALID"});
  launch.rank = reader.integer("SLURM_PROCID", 0, kMaxRanks);
  launch.local_rank = reader.integer("SLURM_LOCALID", 0, kMaxRanks);
  launch.local_size = slurm_local_size(reader, launch);
  const std::optional<int64_t> job = number(reader.text("SLURM_JOB_ID"));
  const int64_t step = number(reader.text("SLURM_STEP_ID")).value_or(0);
  TANDEM_USER_CHECK(job && *job >= 0, fmt::format("SLURM_JOB_ID={}: is to be a number", reader.text("SLURM_JOB_ID")));
  launch.master_port = static_cast<int>(kFirstPort + (*job % kNumPorts * 7 + step % kNumPorts) % kNumPorts);
  if (!launch.is_one_host()) {
    const std::string list = of_step(reader, "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST");
    launch.master_address = first_host(reader.text(list));
    TANDEM_USER_CHECK(!launch.master_address.empty() || reader.has("MASTER_ADDR"),
                      fmt::format("{}={}: names no host; set MASTER_ADDR to that of rank 0", list, reader.text(list)));
  }
  read_master(reader, launch);
  return launch;
}

// Uses numbers that all ranks of an mpirun know, and another mpirun of the same host does not.
void read_mpi_master(const Reader& reader, int64_t parent, LaunchVariables& launch) {
  if (launch.is_one_host()) {
    launch.master_port = static_cast<int>(kFirstPort + parent % kNumPorts);
  } else {
    TANDEM_USER_CHECK(reader.has("MASTER_ADDR") && reader.has("MASTER_PORT"),
                      fmt::format("{}: the ranks are on several hosts; set MASTER_ADDR to that of rank 0 and "
                                  "MASTER_PORT to a free port there, for all ranks (mpirun -x, -genv)",
                                  launch.source));
  }
  read_master(reader, launch);
}

LaunchVariables of_mpi(const Reader& reader, int64_t parent, const std::vector<std::string>& names) {
  reader.need(names);
  LaunchVariables launch;
  launch.source = reader.say(names);
  launch.rank = reader.integer(names[0], 0, kMaxRanks);
  launch.size = reader.integer(names[1], 1, kMaxRanks);
  launch.local_rank = reader.integer(names[2], 0, kMaxRanks);
  launch.local_size = reader.integer(names[3], 1, kMaxRanks);
  read_mpi_master(reader, parent, launch);
  return launch;
}

std::optional<LaunchVariables> read_rows(const Reader& reader, int64_t parent) {
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}) {
    if (reader.has(name)) return of_torchrun(reader);
  }
  // srun may set PMI_RANK too: its step of one task is one process, whatever else is set.
  if (reader.has("SLURM_STEP_ID")) return of_slurm(reader);
  if (reader.has("OMPI_COMM_WORLD_RANK") || reader.has("OMPI_COMM_WORLD_SIZE")) {
    return of_mpi(
        reader, parent,
        {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"});
  }
  if (reader.has("PMI_RANK") || reader.has("PMI_SIZE")) {
    return of_mpi(reader, parent, {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"});
  }
  return std::nullopt;
}

}  // namespace

std::string LaunchVariables::name() const {
  return fmt::format("rank {} of {}{}", rank, size, party.empty() ? "" : " of " + party);
}

std::optional<LaunchVariables> read_launch_variables(const Variables& variables, int64_t parent) {
  std::optional<LaunchVariables> launch = read_rows(Reader(variables), parent);
  if (launch) check_ranks(*launch);
  return launch;
}

std::optional<LaunchVariables> launch_variables() {
  return read_launch_variables(base::launch_environment(), ::getppid());
}

std::string first_host(const std::string& list) {
  std::string host;
  for (size_t i = 0; i < list.size() && list[i] != ','; ++i) {
    if (list[i] != '[') {
      host += list[i];
      continue;
    }
    const size_t close = list.find(']', i);
    if (close == std::string::npos) return "";
    const std::string ranges = list.substr(i + 1, close - i - 1);
    host += ranges.substr(0, ranges.find_first_of("-,"));
    i = close;
  }
  return host;
}

std::optional<int> tasks_of_node(const std::string& list, int node) {
  std::istringstream groups(list);
  int64_t left = node;
  for (std::string group; std::getline(groups, group, ',');) {
    const size_t times = group.find("(x");
    const std::optional<int64_t> tasks = number(std::string_view(group).substr(0, times));
    std::optional<int64_t> nodes = 1;
    if (times != std::string::npos) {
      if (!group.ends_with(')')) return std::nullopt;
      nodes = number(std::string_view(group).substr(times + 2, group.size() - times - 3));
    }
    if (!tasks || !nodes || *tasks < 1 || *tasks > kMaxRanks || *nodes < 1) return std::nullopt;
    if (left < *nodes) return static_cast<int>(*tasks);
    left -= *nodes;
  }
  return std::nullopt;
}

int64_t threads_per_rank(int64_t asked, int64_t cores, int local_size) {
  return asked > 0 ? asked : std::max<int64_t>(cores / std::max(local_size, 1), 1);
}

}  // namespace tandem::mesh
