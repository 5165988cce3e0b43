// Which rank this process is, as the variables of whoever started it say. No torch.
//
// The first that applies wins:
//   RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT   torchrun, `tandem launch`; with TANDEM_LAUNCH
//                                                                         the last two may be missing on one host
//   SLURM_PROCID SLURM_NTASKS SLURM_LOCALID, in a step of srun             Slurm
//   OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE                  Open MPI
//   PMI_RANK PMI_SIZE MPI_LOCALRANKID MPI_LOCALNRANKS                      MPICH
// Of Slurm and MPI, MASTER_ADDR and MASTER_PORT say where rank 0 listens, if they are set. Unset, it is 127.0.0.1 where
// all ranks share a host, with Slurm else the first host of the node list, with MPI else an error; the port is made of
// what all ranks of a job know.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace tandem::mesh {

using Variables = std::map<std::string, std::string>;  // name to value

struct LaunchVariables {
  int rank = 0, size = 1;
  int local_rank = 0, local_size = 1;  // among the ranks of this host
  std::string master_address = "127.0.0.1";
  int master_port = 0;
  std::optional<int> store_descriptor;     // a socket that listens already, given to rank 0 by its launcher
  std::optional<int> launcher_descriptor;  // its end of the socket of launcher_link.h
  bool store_is_anothers = false;          // on several hosts none of these ranks listens: torchrun's agent does
  std::string party = "";                 // "engine 0": of ranks that are a part of those of their launch (placement.h)
  std::string id = "";  // digits that this launch alone has, on this machine, from its launcher; "": it gives none
  int64_t attempt = 0;  // how often torchrun has started the ranks again; its store stays
  std::string source;   // "RANK=0 WORLD_SIZE=4 ...", for messages

  bool is_one_host() const { return local_size == size; }
  // "rank 2 of 4", "rank 1 of 2 of engine 0".
  std::string name() const;
};

// Nothing where nobody started ranks: the process is alone, and so is a Slurm step of one task, a batch script of Slurm
// or a shell inside an allocation. `parent`: this process's parent, which ranks of an mpirun on one host share.
// UserError that names the variables when some of a row are missing, are no numbers, or contradict each other.
std::optional<LaunchVariables> read_launch_variables(const Variables& variables, int64_t parent);
// Of this process.
std::optional<LaunchVariables> launch_variables();
// Of this process; nothing where `tandem launch`, or train itself, did not start it.
std::optional<int> launcher_descriptor();

// The first host of a list as Slurm writes it: "gpu01" of "gpu[01-03,7],login". "" of a list that is none.
std::string first_host(const std::string& list);
// How many tasks node number `node` has in a list as Slurm writes it: 4 of "2,4(x3)" for nodes 1 to 3.
std::optional<int> tasks_of_node(const std::string& list, int node);

// Threads of one rank's kernels where the user asks for none: the host's ranks share its cores.
int64_t threads_per_rank(int64_t asked, int64_t cores, int local_size);

}  // namespace tandem::mesh
