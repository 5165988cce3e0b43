// The store through which ranks meet: rank 0 serves it, the others are connected to it.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "mesh/launch/launch_variables.h"
#include "mesh/local_store.h"

namespace tandem::mesh {

// Opens the store of ranks on one machine, which nobody but their user reaches. Throws EnvironmentError in a line if
// rank 0 of another launch listens there, or rank 0 did not answer within the time.
c10::intrusive_ptr<LocalStore> open_local_store(const LaunchVariables& launch, double timeout_s);

// Opens the store of ranks on several machines, over TCP. Throws EnvironmentError in a line if the port is in use, or
// rank 0 did not answer within the time.
c10::intrusive_ptr<c10d::Store> open_store(const LaunchVariables& launch, double timeout_s);

}  // namespace tandem::mesh
