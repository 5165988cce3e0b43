// The store through which ranks meet: rank 0 serves it, the others are connected to it.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "mesh/launch_variables.h"
#include "mesh/local_store.h"

namespace tandem::mesh {

// Of ranks that are on one machine, which nobody but their user reaches. EnvironmentError in a line: rank 0 of another
// launch listens there, or rank 0 did not answer within the time.
c10::intrusive_ptr<LocalStore> open_local_store(const LaunchVariables& launch, double timeout_s);

// Of ranks on several machines, over TCP. EnvironmentError in a line: the port is in use, or rank 0 did not answer
// within the time.
c10::intrusive_ptr<c10d::Store> open_store(const LaunchVariables& launch, double timeout_s);

}  // namespace tandem::mesh
