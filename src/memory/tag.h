// What device memory is taken for, and when: the two axes of the plan and of the ledger. No torch.
#pragma once

#include <cstdint>

namespace tandem::memory {

// Phases follow one another; saving runs beside a rollout and takes host memory alone.
enum class Phase : uint8_t { kLoad, kRollout, kTrain };
constexpr int kNumPhases = 3;

enum class Tag : uint8_t {
  // As long as the run.
  kWeights,    // the one copy, packed
  kReference,  // those of the KL reference
  kMaster,     // float32, beside a bfloat16 store
  kMoments,    // two of AdamW, float32
  kGradients,  // float32
  // In the rollout phase.
  kKv,             // blocks of keys and values
  kEngineScratch,  // what one step of the engine allocates: hidden rows, logits, attention
  kGraphs,         // captured device graphs and their buffers
  // In the train phase.
  kBatch,               // ids, positions, block tables of a micro-batch
  kCheckpointedInputs,  // of every decoder block, kept or recomputed
  kSavedActivations,    // what the backward of kept blocks reads
  kLayerWorkspace,      // the one block that is being run or differentiated
  kHead,                // final norm, logits of one chunk, log-probs
  // Any time.
  kStaging,   // between files or host memory and the device
  kOverhead,  // what the driver and libraries take beyond all tags
};
constexpr int kNumTags = static_cast<int>(Tag::kOverhead) + 1;

const char* to_string(Phase phase);  // "rollout"
const char* to_string(Tag tag);      // "block_inputs"

}  // namespace tandem::memory
