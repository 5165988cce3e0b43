// Tags name the uses of device memory, phases the times of use: the two axes of the plan and of the ledger. No torch.
#pragma once

#include <cstdint>

namespace tandem::memory {

// Phases follow one another; saving runs during a rollout and takes host memory alone.
enum class Phase : uint8_t { kLoad, kRollout, kTrain };
constexpr int kNumPhases = 3;

enum class Tag : uint8_t {
  // These tags last as long as the run.
  kWeights,    // the one copy, packed
  kReference,  // weights of the KL reference
  kMaster,     // float32, with a bfloat16 store
  kMoments,    // AdamW's two, float32
  // This tag is of the train phase, as those after the rollout's are.
  kGradients,  // float32
  // These are of the rollout phase.
  kKv,             // blocks of keys and values
  kEngineScratch,  // what one step of the engine allocates: hidden rows, logits, attention
  kGraphs,         // captured device graphs and their buffers
  // These are of the train phase.
  kBatch,         // ids, positions, block tables of a micro-batch
  kBlockInputs,   // inputs of every decoder block, kept or recomputed
  kBlockGraphs,   // inputs of the backward of kept blocks
  kBlockScratch,  // the one block that runs forward or backward
  kHead,          // final norm, logits of one chunk, log-probs
  // These may be taken at any time.
  kStaging,   // copies between files or host memory and the device
  kOverhead,  // driver and libraries, beyond all tags
};
constexpr int kNumTags = static_cast<int>(Tag::kOverhead) + 1;

const char* to_string(Phase phase);  // "rollout"
const char* to_string(Tag tag);      // "block_inputs"

}  // namespace tandem::memory
