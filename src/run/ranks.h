// What the parts of a run are told of its ranks.
#pragma once

#include "checkpoint/saving_ranks.h"
#include "mesh/mesh.h"

namespace tandem::run {

// For the thread that writes checkpoints, and before it begins. Borrows the mesh.
checkpoint::SavingRanks saving_ranks(const mesh::Mesh& mesh);

}  // namespace tandem::run
