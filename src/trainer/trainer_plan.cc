#include "trainer/trainer_plan.h"

#include <algorithm>

#include "base/check.h"
#include "device/block.h"
#include "model/model_plan.h"
#include "model/registry.h"
#include "weights/weights_plan.h"

namespace tandem::trainer {

constexpr int64_t kFloatBytes = 4;

OptimizerBytes optimizer_bytes(const model::ModelConfig& config, model::Dtype store_dtype) {
  const int64_t one = config.num_parameters() * kFloatBytes;
  return {.master = store_dtype == model::Dtype::kFloat32 ? 0 : one,
          .moments = 2 * one,
          .gradient = memory::allocated_bytes(weights::store_bytes(model::build_layout(config), kFloatBytes))};
}

namespace {

int64_t largest_parameter(const model::ModelConfig& config) {
  int64_t largest = 0;
  for (const weights::PackedTensor& packed : model::build_layout(config).tensors) {
    largest = std::max(largest, packed.num_elements());
  }
  return largest;
}

}  // namespace

OffloadBytes offload_bytes(const model::ModelConfig& config, model::Dtype store_dtype, int64_t piece_elements) {
  const OptimizerBytes resident = optimizer_bytes(config, store_dtype);
  const int64_t kinds = store_dtype == model::Dtype::kFloat32 ? 2 : 3;
  const int64_t piece = std::min(piece_elements, largest_parameter(config));
  return {.pinned_host = resident.master + resident.moments,
          .device_buffers = kOffloadBufferSets * kinds * weights::aligned_elements(piece, kFloatBytes) * kFloatBytes};
}

TokenBytes token_bytes(const model::ModelConfig& c, model::Dtype dtype) {
  const int64_t heads = c.num_heads * c.head_dim, kv_heads = c.num_kv_heads * c.head_dim;
  // qkv before and q after norm and RoPE, the scratch cache, attention's result, the block's middle, gate_up
  // (model/qwen3.cc says why no more).
  const int64_t elements = (heads + 2 * kv_heads) + heads + 2 * kv_heads + heads + c.hidden + 2 * c.mlp;
  const int64_t logsumexp = c.num_heads * kFloatBytes;
  const int64_t hidden = c.hidden * model::dtype_bytes(dtype);
  return {.block_input = hidden,
          .block_graph = elements * model::dtype_bytes(dtype) + logsumexp,
          .head = 2 * hidden + c.hidden * kFloatBytes};
}

int64_t logits_bytes(const model::ModelConfig& config, int64_t chunk_rows) {
  return config.vocab * chunk_rows * kFloatBytes;
}

int64_t activation_bytes(const model::ModelConfig& config, model::Dtype dtype, int64_t num_tokens,
                         int64_t recomputed_layers) {
  const TokenBytes token = token_bytes(config, dtype);
  const int64_t kept_layers = config.num_layers - recomputed_layers;
  // While a dropped block is re-run all kept graphs are gone, so its own counts only where no block is kept.
  const int64_t graphs = std::max<int64_t>(kept_layers, 1);
  return num_tokens * (config.num_layers * token.block_input + graphs * token.block_graph + token.head);
}

int64_t recomputed_layers_for(const model::ModelConfig& config, model::Dtype dtype, int64_t num_tokens,
                              int64_t budget_bytes) {
  if (budget_bytes == 0) return 0;
  int64_t recomputed = 0;
  while (recomputed < config.num_layers && activation_bytes(config, dtype, num_tokens, recomputed) > budget_bytes) {
    ++recomputed;
  }
  return recomputed;
}

MicroBatchShape largest_micro_batch(const StepShape& step, int64_t max_tokens) {
  constexpr int64_t kBlock = device::kBlockTokens;
  TANDEM_CHECK(step.num_samples > 0 && step.group_size > 0 && step.prompt_tokens > 0 && step.response_tokens > 0,
               "a step without samples, or samples without tokens");
  // Where steps do not end with groups, the first and the last group of one are cut.
  const int64_t groups = std::min(step.num_samples, (step.num_samples + step.group_size - 1) / step.group_size +
                                                        (step.num_samples % step.group_size == 0 ? 0 : 1));
  const int64_t longest = step.prompt_tokens + step.response_tokens;
  const int64_t all_tokens = groups * step.prompt_tokens + step.num_samples * step.response_tokens;
  const int64_t tokens = std::min(std::max(max_tokens, longest), all_tokens);
  MicroBatchShape batch;
  batch.context_tokens = longest;
  // A completion's last token has no row. As few completions as the tokens may be have most rows.
  batch.rows = std::min(tokens - 1, all_tokens - step.num_samples);
  batch.targets = std::min(tokens - 1, step.num_samples * step.response_tokens);
  batch.sequences = std::min(step.num_samples, tokens - 1);
  const auto own_blocks = [&](int64_t prompt) {
    return (prompt % kBlock + step.response_tokens - 1 + kBlock - 1) / kBlock;
  };
  // A prompt that ends just before a block's end shares one block less, and each sample copies the most of it.
  const int64_t shared = step.prompt_tokens / kBlock, copied = std::min(step.prompt_tokens, kBlock - 1);
  int64_t all_blocks = groups * shared + step.num_samples * own_blocks(copied);
  if (step.num_samples % step.group_size == 0) {
    const int64_t shorter = shared > 0 ? groups * (shared - 1) + step.num_samples * own_blocks(kBlock - 1) : 0;
    all_blocks = std::max(groups * shared + step.num_samples * own_blocks(step.prompt_tokens), shorter);
  }
  // Each sample copies at most 15 prompt rows into blocks of its own, the last of which has at least one row.
  const int64_t bound = (batch.rows + batch.sequences * 2 * (kBlock - 1)) / kBlock;
  batch.kv_blocks = std::min(all_blocks, bound);
  return batch;
}

namespace {

int64_t batch_bytes(const MicroBatchShape& batch) {
  const auto indices = [](int64_t count) { return memory::allocated_bytes(count * 4); };
  const int64_t table = batch.sequences * ((batch.context_tokens + device::kBlockTokens - 1) / device::kBlockTokens);
  const int64_t kv_entries = batch.kv_blocks * device::kBlockTokens;
  // ids, positions, sequence of each row; token and slot of each cached row; predictor and target.
  return 3 * indices(batch.rows) + 2 * indices(kv_entries) + indices(table) + indices(batch.sequences + 1) +
         2 * indices(batch.targets);
}

}  // namespace

void add_scoring_moments(const model::ModelConfig& config, model::Dtype dtype, const TrainShape& shape,
                         const memory::TagBytes& standing, memory::MemoryPlan& plan) {
  using memory::Tag;
  const MicroBatchShape& batch = shape.batch;
  const model::BlockRowBytes row = model::block_row_bytes(config, dtype);
  device::OpsShape ops = model::ops_shape(config);
  ops.rows = batch.rows;
  ops.logits_rows = std::min(shape.logprob_chunk_rows, batch.targets);
  ops.context = batch.context_tokens;
  const int64_t stream = memory::allocated_bytes(batch.rows * row.hidden);
  memory::TagBytes block = standing;
  block[Tag::kBatch] += batch_bytes(batch);
  memory::TagBytes head = block;
  block[Tag::kBlockScratch] += batch.kv_blocks * model::layer_kv_block_bytes(config, model::dtype_bytes(dtype)) +
                               stream + batch.rows * row.inference + device::block_temporary_bytes(shape.family, ops) +
                               memory::rounding_of(12);
  plan.add(memory::Phase::kTrain, "a block of the reference", block);
  head[Tag::kBlockScratch] += stream;
  head[Tag::kHead] += 3 * memory::allocated_bytes(batch.targets * kFloatBytes) + ops.logits_rows * row.hidden +
                      logits_bytes(config, ops.logits_rows) +
                      device::logits_temporary_bytes(shape.family, ops, /*has_entropy_gradient=*/false) +
                      memory::rounding_of(6);
  plan.add(memory::Phase::kTrain, "logits of the reference", head);
}

void add_train_moments(const model::ModelConfig& config, model::Dtype dtype, const TrainShape& shape,
                       const memory::TagBytes& standing, memory::MemoryPlan& plan) {
  using memory::Phase;
  using memory::Tag;
  const MicroBatchShape& batch = shape.batch;
  const model::BlockRowBytes row = model::block_row_bytes(config, dtype);
  const int64_t T = batch.rows, R = batch.targets;
  const int64_t cache = batch.kv_blocks * model::layer_kv_block_bytes(config, model::dtype_bytes(dtype));
  const int64_t cache_gradient = batch.kv_blocks * model::layer_kv_block_bytes(config, kFloatBytes);
  const int64_t kept_layers = config.num_layers - shape.recomputed_layers;
  const int64_t stream = memory::allocated_bytes(T * row.hidden);          // hidden states of all rows, once
  const int64_t graph = T * row.graph + cache + memory::rounding_of(8);    // of one kept block
  const int64_t idle_cache = kept_layers < config.num_layers ? cache : 0;  // of blocks without graph; kept to the end
  device::OpsShape ops = model::ops_shape(config);
  ops.rows = T;
  ops.logits_rows = std::min(shape.logprob_chunk_rows, R);
  ops.context = batch.context_tokens;
  ops.trains = true;
  const int64_t temporaries = device::block_temporary_bytes(shape.family, ops) + memory::rounding_of(12);
  // Log-probs, entropies, logsumexps and their gradients.
  const int64_t scores = memory::allocated_bytes(R * kFloatBytes) * (shape.has_entropy_term ? 5 : 4);

  memory::TagBytes base = standing;
  base[Tag::kBatch] += batch_bytes(batch);
  const auto backward_scratch = [&] {
    return std::max(T * row.mlp_backward, T * row.attention_backward + cache_gradient) + temporaries;
  };

  memory::TagBytes forward = base;  // the last block
  forward[Tag::kBlockInputs] += config.num_layers * stream;
  forward[Tag::kBlockGraphs] += std::max<int64_t>(kept_layers - 1, 0) * graph;  // those that are done
  forward[Tag::kBlockScratch] +=
      idle_cache + (kept_layers > 0 ? graph + T * row.forward : T * row.inference) + temporaries;
  plan.add(Phase::kTrain, "forward of the last block", forward);

  // Input and output of the final norm; the output's gradient in float32.
  memory::TagBytes head = base;
  head[Tag::kBlockInputs] += config.num_layers * stream;
  head[Tag::kBlockGraphs] += kept_layers * graph;
  head[Tag::kBlockScratch] += idle_cache;
  head[Tag::kHead] += 2 * stream + scores;
  memory::TagBytes logits = head;
  const int64_t chunk_hidden = 2 * ops.logits_rows * row.hidden;  // and its gradient
  logits[Tag::kHead] += T * config.hidden * kFloatBytes + logits_bytes(config, ops.logits_rows) + chunk_hidden +
                        device::logits_temporary_bytes(shape.family, ops, shape.has_entropy_term) +
                        memory::rounding_of(6);
  plan.add(Phase::kTrain, "backward of a chunk of logits", logits);
  // Rounded to bfloat16, or where there is nothing to round, through the final norm.
  memory::TagBytes norm = head;
  norm[Tag::kHead] +=
      stream + (dtype == model::Dtype::kFloat32 ? stream : T * config.hidden * kFloatBytes) + memory::rounding_of(3);
  plan.add(Phase::kTrain, "backward of the final norm", norm);

  if (kept_layers > 0) {
    memory::TagBytes kept = head;
    kept[Tag::kBlockScratch] += backward_scratch();
    plan.add(Phase::kTrain, "backward of the last block", kept);
  }
  if (shape.recomputed_layers > 0) {
    memory::TagBytes again = base;  // the kept blocks and all behind them are gone
    again[Tag::kBlockInputs] += shape.recomputed_layers * stream;
    again[Tag::kHead] += 2 * stream + scores;  // what the loss had, and the block's result
    again[Tag::kBlockScratch] += idle_cache;
    memory::TagBytes rerun = again;
    rerun[Tag::kBlockScratch] += graph + T * (row.forward + row.hidden) + temporaries;
    plan.add(Phase::kTrain, "a block that is run again", rerun);
    again[Tag::kBlockGraphs] += graph;
    again[Tag::kBlockScratch] += backward_scratch();
    plan.add(Phase::kTrain, "backward of a recomputed block", again);
  }

  memory::TagBytes update = standing;
  int64_t largest = largest_parameter(config);
  if (shape.offloads_optimizer) {
    largest = std::min(largest, kOffloadPieceElements);
    update[Tag::kStaging] += offload_bytes(config, dtype).device_buffers;
  }
  update[Tag::kStaging] += device::optimizer_temporary_bytes(shape.family, largest);
  plan.add(Phase::kTrain, "the optimizer's update", update);
}

}  // namespace tandem::trainer
