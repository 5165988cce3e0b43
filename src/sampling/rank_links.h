// How the ranks that train and sample (--colocate) reach the pool of rank 0: the first rank of each other
// tensor-parallel group has a channel to it.
#pragma once

#include <memory>

#include "mesh/channel.h"
#include "mesh/channel_listener.h"
#include "mesh/mesh.h"
#include "sampling/connections.h"

namespace tandem::sampling {

struct RankLinks {
  std::unique_ptr<Connections> connections;  // on rank 0, where there are others
  std::unique_ptr<mesh::Channel> rank0;      // on the first rank of each other tensor-parallel group
};

struct LinkSettings {
  mesh::NetworkDoor door = {};  // of rank 0, where ranks are on several machines; its secret is every rank's
  double timeout_s = 60.0;
};

// Called by all ranks together. EnvironmentError: a rank does not connect within the timeout.
RankLinks link_ranks(mesh::Mesh& mesh, const LinkSettings& settings);

}  // namespace tandem::sampling
