#include "trainer/trainer_plan.h"

#include <algorithm>
#include <memory>

#include "base/check.h"
#include "base/size.h"
#include "device/block.h"
#include "model/model_plan.h"
#include "trainer/shard.h"
#include "weights/weights_plan.h"

namespace tandem::trainer {

using base::kFloatBytes;

namespace {

// Returns the largest value of `bytes`(its shard) of any rank.
template <typename F>
Size most_of_ranks(int64_t data_ranks, F bytes) {
  Size most = 0;
  for (int rank = 0; rank < data_ranks; ++rank) {
    most = std::max(most, Size(bytes(Shard{.rank = rank, .size = static_cast<int>(data_ranks)})));
  }
  return most;
}

Size own_elements(const weights::PackedTensor& packed, const Shard& shard) {
  return shard.size == 1 ? Size(packed.num_elements()) : Size(elements_of(packed.shape, shard));
}

// Returns the most that a rank owns of one packed tensor.
Size largest_parameter(const weights::Layout& trained, int64_t data_ranks) {
  return most_of_ranks(data_ranks, [&](const Shard& shard) {
    Size largest = 0;
    for (const weights::PackedTensor& packed : trained.tensors)
      largest = std::max(largest, own_elements(packed, shard));
    return largest;
  });
}

}  // namespace

OptimizerBytes optimizer_bytes(const weights::Layout& trained, model::Dtype dtype, int64_t data_ranks) {
  const Size one = kFloatBytes * most_of_ranks(data_ranks, [&](const Shard& shard) {
                     Size elements = 0;
                     for (const weights::PackedTensor& packed : trained.tensors)
                       elements += own_elements(packed, shard);
                     return elements;
                   });
  const Size gradient = kFloatBytes * most_of_ranks(data_ranks, [&](const Shard& shard) {
                          Size elements = 0;
                          for (const weights::PackedTensor& packed : trained.tensors)
                            elements += weights::aligned_elements(own_elements(packed, shard), kFloatBytes);
                          return elements;
                        });
  return {.master = dtype == model::Dtype::kFloat32 ? Size(0) : one,
          .moments = 2 * one,
          .gradient = memory::allocated_bytes(gradient)};
}

Size gradient_scratch_bytes(const weights::Layout& trained, int64_t data_ranks, bool has_several_micro_batches,
                            int64_t group_size) {
  if (data_ranks == 1 && !has_several_micro_batches) return 0;
  const Buckets whole = buckets_of(trained);
  const Size scratch =
      kFloatBytes * (Size(gradient_layer_slots(data_ranks)) * whole.largest_layer() + whole.outer.num_elements);
  const Size own = kFloatBytes * most_of_ranks(data_ranks, [&](const Shard& shard) {
                     return Size(buckets_of(trained, shard).largest());
                   });
  Size bytes = memory::allocated_bytes(scratch);
  if (works_in_two_levels(data_ranks, group_size)) {
    const Size column =
        kFloatBytes * most_of_ranks(group_size, [&](const Shard& place) {
          std::vector<Buckets> ranks;
          for (int64_t r = place.rank; r < data_ranks; r += group_size) {
            ranks.push_back(buckets_of(trained, {.rank = static_cast<int>(r), .size = static_cast<int>(data_ranks)}));
          }
          return column_elements_of(ranks);
        });
    const Size sums = (data_ranks / group_size - 1) * own;
    return bytes + memory::allocated_bytes((group_size - 1) * column) + memory::allocated_bytes(column) +
           (sums > 0 ? memory::allocated_bytes(sums) : Size(0));
  }
  if (data_ranks > 1) bytes += memory::allocated_bytes((data_ranks - 1) * own);
  // A gradient is float32, whatever the weights are.
  if (group_size > 1 && has_several_micro_batches) {
    bytes += optimizer_bytes(trained, model::Dtype::kFloat32, data_ranks).gradient;
  }
  return bytes;
}

OffloadBytes offload_bytes(const weights::Layout& trained, model::Dtype dtype, Size piece_elements,
                           int64_t data_ranks) {
  const OptimizerBytes resident = optimizer_bytes(trained, dtype, data_ranks);
  const Size kinds = dtype == model::Dtype::kFloat32 ? 2 : 3;
  const Size piece = std::min(piece_elements, largest_parameter(trained, data_ranks));
  return {.pinned_host = resident.master + resident.moments,
          .device_buffers = kOffloadBufferSets * kinds * weights::aligned_elements(piece, kFloatBytes) * kFloatBytes};
}

Size routing_load_bytes(const model::ModelConfig& config) {
  if (!config.experts) return 0;
  return memory::allocated_bytes(config.num_layers * (Size(config.experts->count) + 2) * Size(sizeof(int64_t)));
}

BalanceBytes balance_bytes(const model::ModelConfig& config, const MicroBatchShape& batch) {
  const Size experts = config.experts->count, rows = batch.rows, samples = batch.sequences;
  // The segment of each row; of each sample the segments, a factor, and its turn in its prompt's sum; the step's sum.
  BalanceBytes bytes;
  bytes.batch = memory::allocated_bytes(rows * sizeof(int32_t)) + 4 * memory::allocated_bytes(samples * kFloatBytes) +
                memory::allocated_bytes(sizeof(int64_t));
  // Probabilities, their gradients and the product of both, and what adds it up. Before that there are, beside the
  // probabilities, the places' numbers; counts of each sample's rows and of each prompt's; and two of each sample's.
  const Size numbers = rows * config.experts->chosen * (sizeof(int64_t) + 2 * sizeof(int32_t)) + rows * sizeof(int32_t);
  const Size counts = 4 * samples * experts * kFloatBytes;
  const Size product = rows * (experts * kFloatBytes + 2 * kFloatBytes + sizeof(int64_t));
  bytes.work = rows * experts * kFloatBytes + memory::rounding_of(8) +
               std::max(numbers + counts, std::max(counts, product) + rows * experts * kFloatBytes);
  return bytes;
}

Size teacher_rows_bytes(const model::ModelConfig& teacher, const MicroBatchShape& batch) {
  return memory::allocated_bytes(model::hidden_bytes(teacher, teacher.dtype, batch.rows));
}

KeptBytes kept_bytes(const model::ModelConfig& c, Size num_tokens) {
  // VarlenAttention keeps keys and values, whose blocks are taken to be full, and the logarithms of the sums.
  const Size kept =
      num_tokens * (2 * c.num_kv_heads * c.head_dim * model::dtype_bytes(c.dtype) + c.num_heads * kFloatBytes);
  // A graph is the same on any device.
  const device::OpsPlan ops(model::ops_shape(c), model::dtype_bytes(c.dtype));
  const Size stream = model::stream_bytes(c, c.dtype, num_tokens);
  const model::AttentionBytes attention = {.forward = {}, .kept = kept, .backward = {}};
  return {.block_input = stream,
          .block_graph = model::block_bytes(c, c.dtype, ops, num_tokens, attention).graph,
          .head = stream + model::hidden_bytes(c, c.dtype, num_tokens) + num_tokens * c.hidden * kFloatBytes};
}

Size activation_bytes(const model::ModelConfig& config, Size num_tokens, Size recomputed_layers) {
  const KeptBytes kept = kept_bytes(config, num_tokens);
  const Size kept_layers = config.num_layers - recomputed_layers;
  // When a dropped block is re-run all kept graphs are gone, so its own counts only where no block is kept.
  const Size graphs = std::max<Size>(kept_layers, 1);
  return config.num_layers * kept.block_input + graphs * kept.block_graph + kept.head;
}

Size recomputed_layers_for(const model::ModelConfig& config, Size num_tokens, Size budget_bytes) {
  if (budget_bytes == 0) return 0;
  Size recomputed = 0;
  while (recomputed < config.num_layers && activation_bytes(config, num_tokens, recomputed) > budget_bytes) {
    ++recomputed;
  }
  return recomputed;
}

namespace {

// If steps do not end with groups, their first and last group are cut.
Size groups_of(const StepShape& step) {
  return std::min(step.num_samples, (step.num_samples + step.group_size - 1) / step.group_size +
                                        (step.num_samples % step.group_size == 0 ? 0 : 1));
}

Size tokens_of(const StepShape& step) {
  return groups_of(step) * step.largest_group_prompt() + step.num_samples * step.response_tokens;
}

// Counts what trainer/divergence.h takes for a chunk of rows beside the policy's logits: `most` while it is computed,
// `result` for its gradient, which stays until it is added to that of the log-probs.
struct DivergenceBytes {
  Size result = 0, most = 0;
};

DivergenceBytes divergence_bytes(const model::ModelConfig& policy, const TrainShape& shape, const device::OpsPlan& ops,
                                 Size chunk_rows) {
  DivergenceBytes bytes;
  if (shape.teachers.empty()) return bytes;
  const Size matrix = memory::allocated_bytes(chunk_rows * policy.vocab * kFloatBytes);
  for (const model::ModelConfig& teacher : shape.teachers) {
    const Size logits = memory::allocated_bytes(chunk_rows * teacher.vocab * kFloatBytes);
    bytes.most = std::max(
        {bytes.most,
         model::hidden_bytes(teacher, teacher.dtype, chunk_rows) + model::head_bytes(teacher, ops, chunk_rows).most,
         logits + 2 * matrix, 4 * matrix});
  }
  bytes.result = matrix;
  // Rows of several teachers are put together.
  if (shape.teachers.size() > 1) bytes.most += matrix;
  bytes.most += memory::rounding_of(8) + 4 * memory::allocated_bytes(chunk_rows * kFloatBytes);
  return bytes;
}

}  // namespace

bool may_take_several_micro_batches(const StepShape& step, const rl::Split& split) {
  return step.num_samples > 1 && (split.multiple > 1 || tokens_of(step) > split.max_tokens);
}

MicroBatchShape largest_micro_batch(const StepShape& step, Size max_tokens) {
  constexpr int64_t kBlock = device::kBlockTokens;
  const Size longest = step.longest_sample();
  TANDEM_CHECK(step.num_samples > 0 && step.group_size > 0 && step.prompt_tokens > 0 && step.response_tokens > 0 &&
                   longest > step.prompt_tokens && longest > step.response_tokens,
               "a step without samples, or samples without tokens");
  const Size groups = groups_of(step);
  const Size all_tokens = tokens_of(step);
  const Size tokens = std::min(std::max(max_tokens, longest), all_tokens);
  MicroBatchShape batch;
  batch.context_tokens = longest;
  // A completion's last token has no row. The fewest completions that can hold the tokens give the most rows.
  batch.rows = std::min(tokens - 1, all_tokens - step.num_samples);
  batch.targets = std::min(tokens - 1, step.num_samples * step.response_tokens);
  batch.sequences = std::min(step.num_samples, tokens - 1);
  batch.expanded_keys = std::min(batch.rows + batch.sequences * step.prompt_tokens, batch.sequences * (longest - 1));
  const auto own_blocks = [&](Size prompt) {
    return (prompt % kBlock + step.response_tokens - 1 + kBlock - 1) / kBlock;
  };
  // A prompt that ends just before a block's end shares one block less, and each sample copies most of that block.
  const Size shared = step.prompt_tokens / kBlock, copied = std::min(step.prompt_tokens, Size(kBlock - 1));
  Size all_blocks = groups * shared + step.num_samples * own_blocks(copied);
  if (step.num_samples % step.group_size == 0) {
    const Size shorter = shared > 0 ? groups * (shared - 1) + step.num_samples * own_blocks(kBlock - 1) : Size(0);
    all_blocks = std::max(groups * shared + step.num_samples * own_blocks(step.prompt_tokens), shorter);
  }
  // If the context cuts responses behind long prompts, the step's tokens bound the blocks for prompts of every length.
  if (step.largest_group_prompt() < step.prompt_tokens)
    all_blocks = (all_tokens + step.num_samples * (2 * kBlock - 3)) / kBlock;
  // Each sample copies at most 15 prompt rows into blocks of its own, the last of which has at least one row.
  const Size bound = (batch.rows + batch.sequences * 2 * (kBlock - 1)) / kBlock;
  batch.kv_blocks = std::min(all_blocks, bound);
  // The first sample of a group has its prompt's rows too.
  constexpr int64_t kTile = device::kAttentionTileRows;
  const auto tiles_of = [](Size rows) { return (rows + kTile - 1) / kTile; };
  batch.tiles =
      std::min(groups * tiles_of(longest - 1) + (step.num_samples - groups) * tiles_of(step.response_tokens - 1),
               (batch.rows + batch.sequences * (kTile - 1)) / kTile);
  // A further sequence ends a block and a tile that the sample's tokens would have filled.
  const Size further = batch.sequences * step.further_sequences;
  batch.sequences += further;
  batch.kv_blocks += further;
  batch.tiles += further;
  return batch;
}

namespace {

// Holds the plans of a micro-batch's forward and backward.
struct BatchPlan {
  BatchPlan(const model::ModelConfig& config, const TrainShape& shape, bool trains)
      : planned_ops(model::ops_plan(shape.footprint, config, config.dtype)),
        ops(*planned_ops),
        load{.rows = shape.batch.rows,
             .tiles = shape.batch.tiles,
             .longest_rows = shape.batch.context_tokens - 1,
             .longest_keys = (shape.batch.context_tokens - 1 + device::kBlockTokens - 1) / device::kBlockTokens *
                             device::kBlockTokens,
             .sequences = shape.batch.sequences,
             .kv_blocks = shape.batch.kv_blocks,
             .expanded_keys = shape.batch.expanded_keys},
        residual(memory::allocated_bytes(model::stream_bytes(config, config.dtype, load.rows))),
        normed(memory::allocated_bytes(model::hidden_bytes(config, config.dtype, load.rows))),
        norm(model::norm_bytes(config, config.dtype, ops, load.rows)),
        cache(shape.batch.kv_blocks * model::layer_kv_block_bytes(config, model::dtype_bytes(config.dtype))),
        chunk_rows(std::min(shape.logprob_chunk_rows, shape.batch.targets)),
        chunk_hidden(model::hidden_bytes(config, config.dtype, chunk_rows)),
        head(model::head_bytes(config, ops, chunk_rows)),
        scoring(model::scoring_bytes(config, ops, chunk_rows)),
        block(model::block_bytes(config, config.dtype, ops, load.rows, attention(config, shape, trains),
                                 shape.balances ? balance_bytes(config, shape.batch).work : Size(0))) {}

  // This follows VarlenAttention: without backward, the cache is its caller's.
  model::AttentionBytes attention(const model::ModelConfig& config, const TrainShape& shape, bool trains) const {
    const Size entries = shape.batch.kv_blocks * device::kBlockTokens;
    const device::OpBytes read = ops.paged_attention(load), write = ops.kv_append(entries);
    model::AttentionBytes bytes;
    bytes.forward = {.result = read.result, .most = std::max(read.most, write.most)};
    if (!trains) return bytes;
    bytes.kept = cache + load.rows * config.num_heads * kFloatBytes;  // cache, and the logarithms of the sums
    bytes.backward = ops.attention_backward(load);
    return bytes;
  }

  // Returns the bytes of a chunk of logits; its hidden states are freed before their log-probs are computed.
  Size chunk() const { return std::max(chunk_hidden + head.most, head.result + scoring); }

  // These are ids, positions and sequence of each row; token and slot of each cached row; predictor and target.
  Size indices(const MicroBatchShape& batch, bool trains) const {
    const auto of = [](Size count) { return memory::allocated_bytes(count * sizeof(int32_t)); };
    const Size table = batch.sequences * ((batch.context_tokens + device::kBlockTokens - 1) / device::kBlockTokens);
    return 3 * of(batch.rows) + 2 * of(batch.kv_blocks * device::kBlockTokens) + of(table) + of(batch.sequences + 1) +
           2 * of(batch.targets) + prepared(batch, trains);
  }

  // There are up to nine tensors of the batch, and three of each sequence.
  Size prepared(const MicroBatchShape& batch, bool trains) const {
    const Size bytes = ops.prepared(load, trains);
    return bytes == 0 ? Size(0) : bytes + memory::rounding_of(9 + 3 * batch.sequences);
  }

  std::unique_ptr<const device::OpsPlan> planned_ops;
  const device::OpsPlan& ops;
  device::AttentionLoad load;
  Size residual;  // bytes of the hidden states, once: all rows, or those that this rank keeps
  Size normed;    // bytes of the final norm's result, all rows
  device::OpBytes norm;
  Size cache;  // bytes of one layer's keys and values
  Size chunk_rows, chunk_hidden;
  device::OpBytes head;  // bytes of a chunk's head
  Size scoring;          // bytes of scoring a chunk's logits
  model::BlockBytes block;
};

}  // namespace

void add_scoring_peaks(const model::ModelConfig& config, const TrainShape& shape, const memory::TagBytes& standing,
                       memory::MemoryPlan& plan) {
  using memory::Phase;
  using memory::Tag;
  const BatchPlan p(config, shape, /*trains=*/false);
  memory::TagBytes base = standing;
  base[Tag::kBatch] += p.indices(shape.batch, /*trains=*/!p.ops.has_attention_kernel());
  memory::TagBytes block = base;
  block[Tag::kBlockScratch] += p.cache + p.residual + p.block.inference + memory::rounding_of(12);
  plan.add(Phase::kTrain, "a block of the reference", block);
  memory::TagBytes norm = base;
  norm[Tag::kBlockScratch] += p.cache + p.residual + p.norm.most + memory::rounding_of(4);
  plan.add(Phase::kTrain, "the reference's final norm", norm);
  memory::TagBytes head = base;
  head[Tag::kBlockScratch] += p.normed;
  head[Tag::kHead] +=
      3 * memory::allocated_bytes(shape.batch.targets * kFloatBytes) + p.chunk() + memory::rounding_of(6);
  plan.add(Phase::kTrain, "logits of the reference", head);
}

void add_train_peaks(const model::ModelConfig& config, const TrainShape& shape, const memory::TagBytes& standing,
                     memory::MemoryPlan& plan) {
  using memory::Phase;
  using memory::Tag;
  const BatchPlan p(config, shape, /*trains=*/true);
  const Size T = shape.batch.rows, R = shape.batch.targets;
  const Size kept_layers = config.num_layers - shape.recomputed_layers;
  const Size graph_rounding = memory::rounding_of(8);
  const Size graph = p.block.graph + graph_rounding;  // bytes of one kept block
  const Size idle_cache =
      kept_layers < config.num_layers ? p.cache : Size(0);  // cache of blocks without graph; kept to the end
  const Size rounding = memory::rounding_of(12);
  // These are log-probs, entropies, logsumexps and their gradients; with teachers divergences and theirs.
  const Size scores =
      memory::allocated_bytes(R * kFloatBytes) * ((shape.has_entropy_term ? 5 : 4) + (shape.teachers.empty() ? 0 : 2));

  memory::TagBytes base = standing;
  base[Tag::kBatch] += p.indices(shape.batch, /*trains=*/true) + routing_load_bytes(config);
  if (config.lora && config.lora->dropout > 0.0) base[Tag::kBatch] += memory::allocated_bytes(T * sizeof(int64_t));
  BalanceBytes balance;
  if (shape.balances) balance = balance_bytes(config, shape.batch);
  base[Tag::kBatch] += balance.batch;

  memory::TagBytes forward = base;  // peak in the last block
  forward[Tag::kBlockInputs] += config.num_layers * p.residual;
  forward[Tag::kBlockGraphs] += std::max<Size>(kept_layers - 1, 0) * graph;  // graphs of the blocks that are done
  forward[Tag::kBlockScratch] +=
      idle_cache + (kept_layers > 0 ? p.block.forward + graph_rounding : p.block.forward_again) + rounding;
  plan.add(Phase::kTrain, "forward of the last block", forward);

  memory::TagBytes done = base;  // state after all blocks
  done[Tag::kBlockInputs] += config.num_layers * p.residual;
  done[Tag::kBlockGraphs] += kept_layers * graph;
  done[Tag::kBlockScratch] += idle_cache;
  memory::TagBytes normed = done;
  normed[Tag::kHead] += p.residual + p.norm.most + memory::rounding_of(4);
  plan.add(Phase::kTrain, "the final norm", normed);

  memory::TagBytes head = done;
  head[Tag::kHead] += p.residual + p.normed + scores;  // input and output of the final norm
  memory::TagBytes logits = head;
  logits[Tag::kHead] += p.chunk() + memory::rounding_of(6);
  plan.add(Phase::kTrain, "a chunk of logits", logits);
  const device::OpBytes dhidden = model::head_backward_bytes(config, config.dtype, p.ops, p.chunk_rows);
  const Size gradients =
      std::max({model::scoring_backward_bytes(config, p.ops, p.chunk_rows, shape.has_entropy_term), dhidden.most,
                dhidden.result + p.ops.embedding_backward(p.chunk_rows, model::dtype_bytes(config.dtype)).most});
  logits = head;
  // Logits are computed while the gradient of normed_TE is there: again for each of several chunks, and those of a
  // single one too where the log-probs are known before, because forward and backward of the head are then one pass.
  // Computing them may take more than logits and gradients do, where few rows are a part of a library call's rows.
  const DivergenceBytes divergence = divergence_bytes(config, shape, p.ops, p.chunk_rows);
  logits[Tag::kHead] +=
      T * config.hidden * kFloatBytes + p.chunk_hidden +
      std::max(p.head.most, p.head.result + std::max({divergence.result + gradients, p.scoring, divergence.most})) +
      memory::rounding_of(6);
  plan.add(Phase::kTrain, "backward of a chunk of logits", logits);
  // The gradient is rounded to the model's dtype and goes through the final norm.
  memory::TagBytes norm = head;
  const Size rounded = config.dtype == model::Dtype::kFloat32 ? Size(0) : p.normed;
  norm[Tag::kHead] += std::max(T * config.hidden * kFloatBytes + rounded,
                               p.normed + model::norm_backward_bytes(config, p.ops, T).most) +
                      memory::rounding_of(3);
  plan.add(Phase::kTrain, "backward of the final norm", norm);

  // The gradient of a block's output exists besides the bytes that its backward allocates.
  const auto add_backward = [&](const memory::TagBytes& before, const std::string& which) {
    memory::TagBytes mlp = before, attention = before;
    mlp[Tag::kBlockScratch] += p.residual + p.block.mlp_backward + rounding;
    plan.add(Phase::kTrain, "backward of the MLP of " + which, mlp);
    attention[Tag::kBlockGraphs] -= p.block.mlp_graph;
    attention[Tag::kBlockScratch] += p.residual + p.block.attention_backward + rounding;
    plan.add(Phase::kTrain, "backward of the attention of " + which, attention);
  };
  if (kept_layers > 0) add_backward(head, "the last block");
  if (shape.recomputed_layers > 0) {
    memory::TagBytes again = base;  // the kept blocks and all after them are gone
    again[Tag::kBlockInputs] += shape.recomputed_layers * p.residual;
    again[Tag::kHead] += p.normed + p.residual + scores;  // tensors of the loss, and the block's result
    again[Tag::kBlockScratch] += idle_cache;
    memory::TagBytes rerun = again;
    rerun[Tag::kBlockScratch] += p.residual + p.block.forward + graph_rounding + rounding;
    plan.add(Phase::kTrain, "a block that is run again", rerun);
    again[Tag::kBlockGraphs] += graph;
    add_backward(again, "a block that was run again");
  }

  memory::TagBytes update = standing;
  Size largest = largest_parameter(shape.trained, shape.data_ranks);
  Size norm_bytes = 0;
  for (const weights::PackedTensor& packed : shape.trained.tensors) {
    const Size block = Size(rows_of_block(packed.shape)) * elements_of_row(packed.shape);
    norm_bytes =
        std::max(norm_bytes, p.ops.sums_of_squares(std::min(largest, Size(packed.num_elements())), block).most);
  }
  if (shape.offloads_optimizer) {
    largest = std::min(largest, Size(kOffloadPieceElements));
    update[Tag::kStaging] +=
        offload_bytes(shape.trained, config.dtype, kOffloadPieceElements, shape.data_ranks).device_buffers;
  }
  const Size temporaries = std::max(p.ops.adamw(largest).most, norm_bytes);
  update[Tag::kStaging] += temporaries + (temporaries > 0 ? memory::rounding_of(4) : Size(0));
  plan.add(Phase::kTrain, "the optimizer's update", update);
}

}  // namespace tandem::trainer
