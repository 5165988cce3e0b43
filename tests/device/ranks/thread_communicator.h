// Communicators of one process: each rank is a thread, and an exchange copies memory. They serve tests of the joint
// work of ranks.
#pragma once

#include <memory>
#include <vector>

#include "device/communicator.h"

namespace tandem::device {

// Returns one for each rank, by rank; each is used by a thread of its own. A rank whose communicator is destroyed, or
// that called abort(), is gone: a rank that waits for it gets a PeerLost that names it. A wait ends in PeerLost after a
// minute. Lists that do not fit each other are a BugError on both sides.
std::vector<std::unique_ptr<Communicator>> thread_communicators(int size);

}  // namespace tandem::device
