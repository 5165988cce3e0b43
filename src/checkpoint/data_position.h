// The place in the data at which a run goes on, and the groups in flight that a checkpoint holds. No torch.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "checkpoint/checkpoints.h"
#include "data/prompt_order.h"

namespace tandem::checkpoint {

// The place in the data from which the next step goes on.
struct DataPosition {
  data::PromptCursor cursor;
  // With --partial-rollout, on rank 0: the groups that have begun and are not trained on (groups/in_flight.h).
  std::shared_ptr<const std::string> in_flight = nullptr;
};
// Returns the groups in flight as a tensor of bytes, which borrows them.
SavedTensor in_flight_tensor(const std::string& in_flight);
// Returns the groups in flight of a checkpoint, or nullopt if its run had no --partial-rollout.
std::optional<std::string> in_flight_of(const Checkpoint& checkpoint);

}  // namespace tandem::checkpoint
