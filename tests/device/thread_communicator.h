// Communicators of one process: each rank is a thread, and an exchange copies memory. For tests of what ranks do
// together.
#pragma once

#include <memory>
#include <vector>

#include "device/communicator.h"

namespace tandem::device {

// One for each rank, by rank; each is used by a thread of its own. A rank whose communicator is destroyed, or that
// called abort(), is gone: who waits for it gets PeerLost that names it. A wait ends in PeerLost after a minute. Lists
// that do not fit each other are a BugError on both sides.
std::vector<std::unique_ptr<Communicator>> thread_communicators(int size);

}  // namespace tandem::device
