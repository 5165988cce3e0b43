#include "trainer/adapter_dropout.h"

#include <ATen/ops/empty.h>

#include <array>

#include "base/rng.h"
#include "device/transfer.h"
#include "memory/arena_allocator.h"

namespace tandem::trainer {
namespace {

// This keeps the random stream of dropout apart from those of samples, shuffles and choices, which have other keys.
constexpr uint64_t kDropoutStream = 0x64726F706F757421;  // "dropout!"

uint64_t number_of(const std::array<uint32_t, 4>& words) { return (uint64_t{words[1]} << 32) | words[0]; }

}  // namespace

uint64_t dropout_key(const DropoutSeed& seed, RowOwner owner, uint64_t id, int64_t place) {
  const uint64_t step = (seed.step << 1) | (owner == RowOwner::kPromptOfGroup ? 1 : 0);
  const uint64_t of_owner = number_of(base::philox(seed.seed ^ kDropoutStream, step, id));
  return number_of(base::philox(of_owner, kDropoutStream, static_cast<uint64_t>(place)));
}

at::Tensor dropout_keys(const PackedBatch& batch, const DropoutSeed& seed) {
  at::Tensor keys_T = at::empty({batch.num_tokens()}, at::kLong);
  auto* const keys = keys_T.mutable_data_ptr<int64_t>();
  const auto fill = [&](const RowRange& rows, RowOwner owner, uint64_t id) {
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      keys[row] = static_cast<int64_t>(dropout_key(seed, owner, id, row - rows.begin));
    }
  };
  for (size_t s = 0; s < batch.samples.size(); ++s) {
    const bool is_first = s == 0 || batch.prompt_rows[s] != batch.prompt_rows[s - 1];
    if (is_first) fill(batch.prompt_rows[s], RowOwner::kPromptOfGroup, batch.samples[s]->group_id);
    fill(batch.own_rows[s], RowOwner::kSample, batch.samples[s]->sample_id);
  }
  return keys_T;
}

AdapterDropoutScope::AdapterDropoutScope(model::Model& model, const PackedBatch& batch, const DropoutSeed& seed)
    : model_(model) {
  const model::ModelConfig& config = model.config();
  if (!config.lora || config.lora->dropout == 0.0) return;
  const memory::TagScope tag(memory::Tag::kBatch);
  dropout_.emplace(model::AdapterDropout{
      .rate = config.lora->dropout, .row_keys_T = device::to_device(dropout_keys(batch, seed), model.ops().device())});
  model_.set_adapter_dropout(&*dropout_);
}

AdapterDropoutScope::~AdapterDropoutScope() { model_.set_adapter_dropout(nullptr); }

}  // namespace tandem::trainer
