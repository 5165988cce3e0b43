// The facts that a backend states of itself without being loaded: the bytes that the memory plan adds up, and the
// properties that callers ask in place of its name. Each backend's folder fills in one, in a file that is linked into
// the program, so that a run on a GPU can be planned on a machine without one. No torch.
#pragma once

#include <cstdint>
#include <memory>

#include "device/ops_plan.h"

namespace tandem::device {

struct Footprint {
  // Whether the device's memory is the host's. Then ranks of a machine share it, their tensors travel as the host's do,
  // and offloading saves nothing.
  bool shares_host_memory = false;
  // Whether processes of a machine map each other's memory of it (Backend::map_memory).
  bool maps_memory = false;
  // Whether operations allocate temporaries that are large beside their results. They leave holes in an arena.
  bool has_large_temporaries = true;
  // Whether its operations take quantised matrices, those of experts too (Ops::linear_quantised,
  // Ops::linear_of_experts_quantised).
  bool has_quantised = false;
  // This is true if its operations drop elements (Ops::dropout).
  bool has_dropout = false;
  // The tokens of one forward of the engine where nobody gives them: a device that computes more in the time in which
  // it reads all weights takes more.
  int64_t batch_tokens = 2048;
  int64_t context_bytes = 0;       // a process's context on the device, before anything is computed
  int64_t library_bytes = 0;       // what libraries take beside the context, for all that a run computes
  int64_t communicator_bytes = 0;  // what the library that moves tensors takes for one group of ranks
  // Counts the bytes of its operations, for a model of these widths with elements of so many bytes.
  std::unique_ptr<const OpsPlan> (*plan_ops)(const OpsShape& shape, Size element_bytes) = nullptr;
};

}  // namespace tandem::device
