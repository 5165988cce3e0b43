// The dropout of adapters in an optimizer step (PEFT's lora_dropout). Which elements are dropped follows from the run's
// seed, the step, the sample, the token's place in it, the matrix and the column, and from nothing else: not from the
// micro-batch, the rank, or whether a block is run again.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "model/model.h"
#include "trainer/packed_batch.h"

namespace tandem::trainer {

// Names an optimizer step of a run.
struct DropoutSeed {
  uint64_t seed = 0, step = 0;
};

// A row belongs to a sample, or to the prompt that the samples of a group share.
enum class RowOwner : uint8_t { kSample, kPromptOfGroup };
// Returns the key (device/dropout.h) of a row by the sample's or the group's id, and by its place: among the rows of
// the prompt, or among those of the sample's own tokens.
uint64_t dropout_key(const DropoutSeed& seed, RowOwner owner, uint64_t id, int64_t place);

// Returns the keys of a batch's rows, row_keys_T, int64 on the host.
at::Tensor dropout_keys(const PackedBatch& batch, const DropoutSeed& seed);

// A model that computes with dropout as long as the scope lives, if its adapter has any.
class AdapterDropoutScope {
 public:
  AdapterDropoutScope(model::Model& model, const PackedBatch& batch, const DropoutSeed& seed);
  ~AdapterDropoutScope();
  AdapterDropoutScope(const AdapterDropoutScope&) = delete;
  AdapterDropoutScope& operator=(const AdapterDropoutScope&) = delete;

 private:
  model::Model& model_;
  std::optional<model::AdapterDropout> dropout_;
};

}  // namespace tandem::trainer
