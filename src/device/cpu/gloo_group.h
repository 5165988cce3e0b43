// The connections of make_gloo_communicator. Only the .cc file of this header includes LibTorch's header of Gloo.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "device/cpu/gloo_communicator.h"

namespace tandem::device {

// Connects all ranks for sends and receives. Waits and throws as make_gloo_communicator does.
c10::intrusive_ptr<c10d::Backend> connect_gloo(const c10::intrusive_ptr<c10d::Store>& store, const std::string& name,
                                               const GlooSettings& settings);

}  // namespace tandem::device
