// Shows the ranks of a run to one of them: its number, and its communicators to the others.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "device/communicator.h"

namespace tandem::mesh {

// Ranks that work together. Both communicators connect the same ranks in the same order: one moves tensors of their
// devices, the other those of their hosts.
struct Group {
  device::Communicator& device;
  device::Communicator& host;

  int rank() const { return host.rank(); }
  int size() const { return host.size(); }
};

class Mesh {
 public:
  virtual ~Mesh() = default;

  int rank() const { return host().rank(); }
  int size() const { return host().size(); }
  bool is_alone() const { return size() == 1; }
  // Returns whether this is rank 0, which alone writes the run directory and talks to the terminal.
  bool is_conductor() const { return rank() == 0; }

  // Connects the hosts of all ranks: host() is for the thread that runs the loop, savers() for the one that writes
  // checkpoints, because two threads must not share one.
  virtual device::Communicator& host() const = 0;
  virtual device::Communicator& savers() const = 0;
  // Returns the tensor-parallel group: t ranks with one *replica* of the model, which are neighbours: rank = replica *
  // t + tensor rank.
  virtual Group tensor() const = 0;
  // Connects their hosts for the thread that writes checkpoints.
  virtual device::Communicator& tensor_savers() const = 0;
  // Returns the ranks that hold the same part of the model, one of each replica.
  virtual Group data() const = 0;
};

// Returns the mesh of a run that is one process. `kept` lives as long.
std::unique_ptr<Mesh> solo_mesh(std::shared_ptr<void> kept = nullptr);

}  // namespace tandem::mesh
