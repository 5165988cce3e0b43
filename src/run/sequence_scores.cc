#include "run/sequence_scores.h"

#include <c10/core/GradMode.h>

#include "device/transfer.h"
#include "rl/packing.h"
#include "trainer/packed_batch.h"
#include "trainer/varlen_attention.h"

namespace tandem::run {

SequenceScores score_sequences(const model::Model& model, const std::vector<const rl::Sample*>& samples,
                               int64_t max_tokens, const trainer::HeadOptions& head) {
  const c10::NoGradGuard no_grad;
  SequenceScores scores;
  scores.logprobs.resize(samples.size());
  scores.entropy.resize(samples.size());
  for (const rl::MicroBatch& micro_batch : rl::split_into_micro_batches(samples, max_tokens)) {
    std::vector<const rl::Sample*> members;
    for (const int64_t index : micro_batch.samples) members.push_back(samples[static_cast<size_t>(index)]);
    const trainer::PackedBatch batch = trainer::pack_batch(members, model.ops());
    trainer::VarlenAttention attention(model.ops(), batch);
    const at::Tensor normed_TE = model::forward_hidden(model, batch.ids_T, batch.positions_T, attention);
    const trainer::TokenScores tokens = trainer::score_targets(model, batch, normed_TE, head, /*keep_logits=*/false);
    const at::Tensor logprobs_R = device::to_host(tokens.logprobs_R), entropy_R = device::to_host(tokens.entropy_R);
    const float* logprobs = logprobs_R.const_data_ptr<float>();
    const float* entropy = entropy_R.const_data_ptr<float>();
    for (size_t i = 0; i < members.size(); ++i) {
      const auto index = static_cast<size_t>(micro_batch.samples[i]);
      const int64_t begin = batch.target_offsets[i], end = batch.target_offsets[i + 1];
      scores.logprobs[index].assign(logprobs + begin, logprobs + end);
      scores.entropy[index].assign(entropy + begin, entropy + end);
    }
  }
  return scores;
}

}  // namespace tandem::run
