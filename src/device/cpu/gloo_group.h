// The connections of make_gloo_communicator. The one .cc file behind this sees LibTorch's header of Gloo.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "device/cpu/gloo_communicator.h"

namespace tandem::device {

// Sends and receives between all ranks. Waits and throws as make_gloo_communicator says.
c10::intrusive_ptr<c10d::Backend> connect_gloo(const c10::intrusive_ptr<c10d::Store>& store, const std::string& name,
                                               const GlooSettings& settings);

}  // namespace tandem::device
