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
  const device::OpsPlan ops = model::ops_plan(shape.family, config, dtype);
  const int64_t rows = shape.max_batch_tokens;
  const int64_t num_blocks = (shape.context_tokens + device::kBlockTokens - 1) / device::kBlockTokens;
  // Every sequence may begin a tile of its own.
  const device::AttentionLoad load = {
      .rows = rows,
      .tiles =
          std::min(rows, (rows + shape.max_running * (device::kAttentionTileRows - 1)) / device::kAttentionTileRows),
      .longest_rows = rows,
      .longest_keys = num_blocks * device::kBlockTokens,
      .sequences = shape.max_running};
  const device::OpBytes read = ops.paged_attention(load), write = ops.kv_append(rows);
  const model::AttentionBytes attention = {
      .forward = {.result = read.result, .most = std::max(read.most, write.most)}, .kept = 0, .backward = {}};
  const int64_t hidden = model::hidden_bytes(config, dtype, rows);
  // What a device is sent: id, position and slot of each row, which rows draw.
  const int64_t indices =
      shape.family == device::OpsFamily::kCpu ? 0 : 4 * memory::allocated_bytes(rows * int64_t{sizeof(int32_t)});

  memory::TagBytes block = standing;
  block[Tag::kEngineScratch] += indices + ops.prepared(load, /*has_backward=*/false) + hidden +
                                model::block_bytes(config, dtype, ops, rows, attention).inference +
                                memory::rounding_of(12);
  plan.add(Phase::kRollout, "forward of a block", block);

  // Where samples of a group draw from one row, its logits are repeated.
  const int64_t logits_rows = std::min(logits_window_rows(config.vocab), shape.max_running);
  const int64_t logits = logits_rows * config.vocab * kFloatBytes;
  memory::TagBytes window = standing;
  window[Tag::kEngineScratch] += indices + hidden + model::hidden_bytes(config, dtype, logits_rows) +
                                 std::max(ops.linear(logits_rows, config.hidden, config.vocab, kFloatBytes).most,
                                          2 * logits + ops.logprob(logits_rows).most) +
                                 memory::rounding_of(8);
  plan.add(Phase::kRollout, "logits of a window of rows", window);
}

}  // namespace tandem::rollout
