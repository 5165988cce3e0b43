#include "rollout/rollout_plan.h"

#include <algorithm>
#include <limits>
#include <memory>

#include "base/check.h"
#include "device/block.h"
#include "device/draw.h"
#include "model/model_plan.h"
#include "rollout/kv_layout.h"
#include "rollout/step_input.h"

namespace tandem::rollout {

constexpr int64_t kFloatBytes = 4;

Size kv_block_bytes(const model::ModelConfig& config) {
  return kv_layout(config).block_size * model::dtype_bytes(config.dtype);
}

Size num_kv_blocks(const model::ModelConfig& config, Size kv_cache_bytes) {
  const KvLayout layout = kv_layout(config);
  const Size block_bytes = layout.block_size * model::dtype_bytes(config.dtype);
  const int64_t block_tokens = span_of(layout.kinds);
  TANDEM_USER_CHECK(kv_cache_bytes >= block_bytes, "--kv-cache-bytes is", kv_cache_bytes, "but one block of",
                    block_tokens, "tokens of this model takes", block_bytes, "bytes: raise it");
  // Slots are 32-bit numbers, so more blocks than that can number are no use.
  return std::min<Size>(kv_cache_bytes / block_bytes, std::numeric_limits<int32_t>::max() / block_tokens);
}

Size kv_tokens(const model::ModelConfig& config, Size num_blocks) {
  const std::vector<BlockKind> kinds = kv_layout(config).kinds;
  return num_blocks * span_of(kinds) / blocks_of(kinds, span_of(kinds));
}

Size logits_window_rows(Size vocab) {
  constexpr int64_t kLogitsBytes = int64_t{32} << 20;
  return std::max<Size>(1, kLogitsBytes / (vocab * kFloatBytes));
}

Size most_shared_rows(const BatchLimits& limits) {
  return bucket_rows(std::min(limits.most_recorded_rows(), kLargestBucket));
}

namespace {

// Returns the bytes of a step's rows of experts that a rank holds beside those of a block: the rows of all ranks, and
// their results, which are also sent and received.
Size shared_rows_bytes(const model::ModelConfig& config, Size rows_of_all) {
  return rows_of_all * (1 + 2 * config.experts->chosen) * config.hidden * model::dtype_bytes(config.dtype);
}

// Returns the bytes of StepTensors, as far as the engine allocates them: id, position and slots of each row, draws and
// the rows that draw; and the results, three words a draw, which may exist twice, and once for each other rank that
// draws.
Size step_tensor_bytes(Size rows, Size draws, Size num_kinds, Size num_ranks) {
  constexpr int64_t kWordBytes = sizeof(int32_t), kDrawBytes = sizeof(device::Draw);
  return memory::allocated_bytes(draws * kDrawBytes + ((2 + num_kinds) * rows + draws) * kWordBytes) +
         (num_ranks + 1) * memory::allocated_bytes(3 * draws * kWordBytes);
}

// The memory of recorded steps (StepBuckets), with what the operations make of their rows.
Size step_memory_bytes(const EngineShape& shape, int64_t num_kinds, const device::OpsPlan& ops) {
  const auto prepared_bytes = [&ops](const StepShape& step) {
    return ops.prepared_bytes(step.num_rows, step.num_sequences, step.max_blocks);
  };
  const int64_t rows = std::min<int64_t>(shape.recorded_rows, kLargestBucket);
  return lay_out_buckets(rows, bucket_blocks(shape.context_tokens), num_kinds, prepared_bytes).rbegin()->second.end;
}

}  // namespace

void add_engine_peaks(const model::ModelConfig& config, const EngineShape& shape, const memory::TagBytes& standing,
                      memory::MemoryPlan& plan) {
  using memory::Phase;
  using memory::Tag;
  const std::unique_ptr<const device::OpsPlan> planned_ops = model::ops_plan(shape.footprint, config, config.dtype);
  const device::OpsPlan& ops = *planned_ops;
  // A step of several ranks has the rows of all of them in its experts. All other parts are counted as if it had, too.
  const Size rows_of_all = shape.sharing_ranks > 1 ? shape.shared_rows * shape.sharing_ranks : Size(0);
  const Size rows = std::max(shape.max_batch_tokens, rows_of_all);
  const int64_t num_kinds = std::ssize(kv_layout(config).kinds);
  const Size num_blocks = (shape.context_tokens + device::kBlockTokens - 1) / device::kBlockTokens;
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
  const Size hidden = model::hidden_bytes(config, config.dtype, rows);
  // All samples of a group draw from its prompt's last row at once, besides those that run.
  const Size draws = shape.max_running + shape.largest_group;
  const Size indices = step_tensor_bytes(rows, draws, num_kinds, config.shard.size);

  const bool shares = shape.sharing_ranks > 1;
  const Size shared = shares ? shared_rows_bytes(config, rows_of_all) : Size(0);
  const Size exchange = shares ? ops.shared_experts(shape.shared_rows, shape.sharing_ranks) : Size(0);

  memory::TagBytes block = standing;
  block[Tag::kOverhead] += exchange;
  if (ops.records_steps()) block[Tag::kGraphs] += step_memory_bytes(shape, num_kinds, ops);
  block[Tag::kEngineScratch] += indices + num_kinds * ops.prepared(load, /*has_backward=*/false) + hidden +
                                model::block_bytes(config, config.dtype, ops, rows, attention).inference + shared +
                                memory::rounding_of(12);
  plan.add(Phase::kRollout, "forward of a block", block);

  if (ops.records_steps()) {
    // The logits of all rows that draw exist at once; the draw keeps nothing besides them.
    const Size logits_rows =
        shape.max_running <= kLargestBucket ? Size(bucket_rows(shape.max_running)) : shape.max_running;
    memory::TagBytes head = standing;
    head[Tag::kOverhead] += exchange;
    head[Tag::kGraphs] += step_memory_bytes(shape, num_kinds, ops);
    const device::OpBytes part = model::head_bytes(config, ops, logits_rows);
    head[Tag::kEngineScratch] +=
        indices + hidden + model::hidden_bytes(config, config.dtype, logits_rows) +
        std::max(part.most, part.result + model::own_logits_bytes(config, ops, logits_rows).most) +
        memory::rounding_of(8);
    plan.add(Phase::kRollout, "logits of all rows", head);
    return;
  }

  // If samples of a group draw from one row, its logits are repeated.
  const Size logits_rows = std::min(logits_window_rows(config.vocab), shape.max_running);
  const Size repeated = logits_rows * config.vocab * kFloatBytes;
  const device::OpBytes part = model::head_bytes(config, ops, logits_rows);
  const device::OpBytes own = model::own_logits_bytes(config, ops, logits_rows);
  // If the host draws, there are tokens, their log-probs and a sum for each.
  const Size drawn = 3 * memory::allocated_bytes(std::min(logits_window_rows(config.vocab), draws) * kFloatBytes);
  memory::TagBytes window = standing;
  window[Tag::kOverhead] += exchange;
  window[Tag::kEngineScratch] += indices + drawn + hidden + model::hidden_bytes(config, config.dtype, logits_rows) +
                                 std::max({part.most, part.result + own.most,
                                           part.result + own.result + repeated + ops.logprob(logits_rows).most}) +
                                 memory::rounding_of(8);
  plan.add(Phase::kRollout, "logits of a window of rows", window);
}

}  // namespace tandem::rollout
