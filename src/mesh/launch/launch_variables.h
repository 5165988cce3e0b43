// Finds out which rank this process is, from the variables of the launcher that started it. No torch.
//
// The first that applies wins:
//   RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT   torchrun, `tandem launch`; with TANDEM_LAUNCH
//                                                                         the last two may be missing on one host
//   SLURM_PROCID SLURM_NTASKS SLURM_LOCALID, in a step of srun             Slurm
//   OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE                  Open MPI
//   PMI_RANK PMI_SIZE MPI_LOCALRANKID MPI_LOCALNRANKS                      MPICH
// With Slurm and MPI, MASTER_ADDR and MASTER_PORT say where rank 0 listens, if they are set. Unset, the address is
// 127.0.0.1 if all ranks share a host, with Slurm else the first host of the node list, with MPI else an error; the
// port is derived from numbers that all ranks of a job know.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace tandem::mesh {

using Variables = std::map<std::string, std::string>;  // name to value

struct LaunchVariables {
  int rank = 0, size = 1;
  int local_rank = 0, local_size = 1;  // number among the ranks of this host, and how many there are
  std::string master_address = "127.0.0.1";
  int master_port = 0;
  std::optional<int> store_descriptor;     // listening socket that the launcher gave to rank 0
  std::optional<int> launcher_descriptor;  // this process's end of the socket of launcher_link.h
  bool store_is_anothers = false;  // true: on several hosts none of these ranks listens, but torchrun's agent does
  std::string party = "";          // "engine 0": name of the ranks if they are a part of their launch (launch.h)
  std::string id = "";  // digits from the launcher that this launch alone has on this machine; "": it gives none
  int64_t attempt = 0;  // number of times that torchrun has started the ranks again; its store stays
  std::string source;   // "RANK=0 WORLD_SIZE=4 ...", for messages

  bool is_one_host() const { return local_size == size; }
  int first_here() const { return rank - local_rank; }  // ranks of a host are neighbours
  // Returns "rank 2 of 4", or "rank 1 of 2 of engine 0".
  std::string name() const;
};

// Returns nothing if no launcher started this process: then it is alone, like a Slurm step of one task, a batch script
// of Slurm or a shell inside an allocation. `parent` is this process's parent, which ranks of an mpirun on one host
// share. Throws UserError that names the variables when some of a row are missing, are no numbers, or contradict each
// other.
std::optional<LaunchVariables> read_launch_variables(const Variables& variables, int64_t parent);
// Reads the variables of this process.
std::optional<LaunchVariables> launch_variables();

// Returns the first host of a list in Slurm's notation: "gpu01" of "gpu[01-03,7],login". Returns "" if it is no list.
std::string first_host(const std::string& list);
// Returns how many tasks node number `node` has in a list in Slurm's notation: 4 of "2,4(x3)" for nodes 1 to 3.
std::optional<int> tasks_of_node(const std::string& list, int node);

// Returns the threads of one rank's kernels. If the user asks for none, the host's ranks share its cores.
int64_t threads_per_rank(int64_t asked, int64_t cores, int local_size);

}  // namespace tandem::mesh
