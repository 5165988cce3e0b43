// The store through which ranks meet: rank 0 has it, the others are connected to it.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "mesh/launch_variables.h"

namespace tandem::mesh {

// EnvironmentError in a line: the port is in use, or rank 0 did not answer within the time.
c10::intrusive_ptr<c10d::Store> open_store(const LaunchVariables& launch, double timeout_s);

}  // namespace tandem::mesh
