// Converts the large part of a run's state to and from a checkpoint: its tensors. Randomness is a function of seeds and
// counters, so all else is a few counts (checkpoint/run_state.h), and with --partial-rollout the groups that wait for
// training between two steps (checkpoint/data_position.h).
#pragma once

#include <vector>

#include "checkpoint/checkpoints.h"
#include "checkpoint/run_state.h"
#include "trainer/trainer.h"
#include "weights/layout.h"
#include "weights/store.h"

namespace tandem::checkpoint {

// Returns masters and moments of each HF tensor, "master.model.norm.weight", "exp_avg...",
// "exp_avg_sq...", as the boxes that this rank holds, with any number of data and tensor ranks. Tensors that all tensor
// ranks hold are saved by the first of them, tensor_rank 0. The result is live: it is valid until the next optimizer
// step. The weights themselves are the masters, rounded.
std::vector<SavedTensor> optimizer_tensors(const trainer::Trainer& trainer, int tensor_rank);

// Returns the KL reference, if it is a copy of an earlier policy: "reference.model.norm.weight"..., in the store's
// dtype. Every data rank holds the same: one replica saves it, each of its tensor ranks its boxes. The result is live
// as well: it is valid until the reference changes.
std::vector<SavedTensor> reference_tensors(const weights::WeightStore& reference, int tensor_rank);
// Fills a store that has memory with the checkpoint's reference, converted where that is float32 and the store
// bfloat16, or the reverse: a run that goes on with another --ref-mixup-alpha may keep its reference in another dtype.
// Throws UserError if the checkpoint has none.
void restore_reference(const Checkpoint& checkpoint, weights::WeightStore& reference);

// Throws UserError unless the checkpoint has the state of the tensors that this run trains, and of no others, which
// would be dropped. `trained` is model::trained_layout().
void check_trained_tensors(const Checkpoint& checkpoint, const weights::Layout& trained);

// Restores state and optimizer, whichever number of ranks saved them; the store then has the checkpoint's version.
void restore(const Checkpoint& checkpoint, const RunState& state, trainer::Trainer& trainer,
             weights::WeightStore& store);

}  // namespace tandem::checkpoint
