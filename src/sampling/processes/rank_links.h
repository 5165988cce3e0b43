// Connects the ranks that train and sample (--colocate) with the pool of rank 0: the first rank of each other
// tensor-parallel group has a channel to it.
#pragma once

#include <memory>

#include "mesh/channel.h"
#include "mesh/channel_listener.h"
#include "mesh/mesh.h"
#include "sampling/processes/connections.h"

namespace tandem::sampling {

struct RankLinks {
  std::unique_ptr<Connections> connections;  // set on rank 0, if there are other ranks
  std::unique_ptr<mesh::Channel> rank0;      // set on the first rank of each other tensor-parallel group
};

struct LinkSettings {
  mesh::NetworkDoor door = {};  // rank 0's door, if ranks are on several machines; every rank has its secret
  double timeout_s = 60.0;
};

// All ranks call it together. Throws EnvironmentError if a rank does not connect within the timeout.
RankLinks link_ranks(mesh::Mesh& mesh, const LinkSettings& settings);

}  // namespace tandem::sampling
