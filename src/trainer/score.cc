#include "trainer/score.h"

#include <ATen/core/grad_mode.h>

#include "device/transfer.h"
#include "memory/arena_allocator.h"
#include "rl/packing.h"
#include "trainer/varlen_attention.h"

namespace tandem::trainer {

TokenScores score_batch(const model::Model& model, const PackedBatch& batch, const HeadOptions& head) {
  if (batch.num_targets() == 0) return {};
  const at::NoGradGuard without_graph;
  const memory::TagScope blocks(memory::Tag::kLayerWorkspace);
  VarlenAttention attention(model.ops(), batch);
  const at::Tensor normed_TE = model::forward_hidden(model, batch.ids_T, batch.positions_T, attention);
  const memory::TagScope head_tag(memory::Tag::kHead);
  return score_targets(model, batch, normed_TE, head, /*keep_logits=*/false);
}

Scores score(const model::Model& model, const std::vector<const rl::Sample*>& samples, const BatchConfig& batch,
             double temperature) {
  const HeadOptions head = {.temperature = temperature, .chunk_rows = batch.logprob_chunk_rows};
  Scores scores{.logprobs = std::vector<std::vector<float>>(samples.size()),
                .entropy = std::vector<std::vector<float>>(samples.size())};
  for (const rl::MicroBatch& micro_batch : rl::split_into_micro_batches(samples, batch.max_tokens_per_gpu)) {
    const PackedBatch packed = pack_micro_batch(samples, micro_batch, model.ops());
    if (packed.num_targets() == 0) continue;
    const TokenScores tokens = score_batch(model, packed, head);
    const at::Tensor logprobs_R = device::to_host(tokens.logprobs_R), entropy_R = device::to_host(tokens.entropy_R);
    const float* const logprobs = logprobs_R.const_data_ptr<float>();
    const float* const entropy = entropy_R.const_data_ptr<float>();
    for (size_t i = 0; i < micro_batch.samples.size(); ++i) {
      const auto index = static_cast<size_t>(micro_batch.samples[i]);
      const int64_t begin = packed.target_offsets[i], end = packed.target_offsets[i + 1];
      scores.logprobs[index].assign(logprobs + begin, logprobs + end);
      scores.entropy[index].assign(entropy + begin, entropy + end);
    }
  }
  return scores;
}

}  // namespace tandem::trainer
