#include "rollout/rollout_plan.h"

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "device/block.h"
#include "model/model_plan.h"

namespace tandem::rollout {

constexpr int64_t kFloatBytes = 4;

int64_t kv_block_bytes(const model::ModelConfig& config, int64_t element_bytes) {
  return config.num_layers * model::layer_kv_block_bytes(config, element_bytes);
}

int64_t num_kv_blocks(const model::ModelConfig& config, int64_t element_bytes, int64_t kv_cache_bytes) {
  const int64_t block_bytes = kv_block_bytes(config, element_bytes);
  TANDEM_USER_CHECK(kv_cache_bytes >= block_bytes, "--kv-cache-bytes is", kv_cache_bytes, "but one block of",
                    device::kBlockTokens, "tokens of this model takes", block_bytes, "bytes: raise it");
  // Slots are 32-bit numbers. More blocks than that can be named are no use.
  return std::min<int64_t>(kv_cache_bytes / block_bytes, std::numeric_limits<int32_t>::max() / device::kBlockTokens);
}

int64_t logits_window_rows(int64_t vocab) {
  constexpr int64_t kLogitsBytes = int64_t{32} << 20;
  return std::max<int64_t>(1, kLogitsBytes / (vocab * kFloatBytes));
}

void add_engine_moments(const model::ModelConfig& config, model::Dtype dtype, const EngineShape& shape,
                        const memory::TagBytes& standing, memory::MemoryPlan& plan) {
  using memory::Phase;
  using memory::Tag;
  const model::BlockRowBytes row = model::block_row_bytes(config, dtype);
  device::OpsShape ops = model::ops_shape(config);
  ops.rows = shape.max_batch_tokens;
  ops.logits_rows = std::min(logits_window_rows(config.vocab), shape.max_running);
  ops.context = shape.context_tokens;
  // id, position, sequence and slot of each row; the block tables.
  const int64_t table = shape.max_running * ((shape.context_tokens + device::kBlockTokens - 1) / device::kBlockTokens);
  memory::TagBytes batch = standing;
  batch[Tag::kBatch] += (5 * ops.rows + table) * static_cast<int64_t>(sizeof(int32_t));

  memory::TagBytes block = batch;
  block[Tag::kEngineScratch] += ops.rows * (row.hidden + row.inference) +
                                device::block_temporary_bytes(shape.family, ops) + memory::rounding_of(12);
  plan.add(Phase::kRollout, "forward of a block", block);

  // Where samples of a group draw from one row, its logits are repeated.
  memory::TagBytes window = batch;
  window[Tag::kEngineScratch] +=
      ops.rows * row.hidden + ops.logits_rows * (row.hidden + 2 * config.vocab * kFloatBytes) +
      device::logits_temporary_bytes(shape.family, ops, /*has_entropy_gradient=*/false) + memory::rounding_of(8);
  plan.add(Phase::kRollout, "logits of a window of rows", window);
}

}  // namespace tandem::rollout
