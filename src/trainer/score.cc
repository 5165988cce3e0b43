#include "trainer/score.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <span>

#include "device/communicator.h"
#include "device/transfer.h"
#include "memory/arena_allocator.h"
#include "rl/packing.h"
#include "trainer/varlen_attention.h"

namespace tandem::trainer {

TokenScores score_batch(const model::Model& model, const PackedBatch& batch, const HeadOptions& head) {
  if (batch.num_targets() == 0) return {};
  const at::NoGradGuard without_graph;
  const memory::TagScope blocks(memory::Tag::kBlockScratch);
  VarlenAttention attention(model.ops(), batch);
  const at::Tensor normed_TE = model::forward_hidden(model, batch.ids_T, batch.positions_T, attention);
  const memory::TagScope head_tag(memory::Tag::kHead);
  return score_targets(model, batch, normed_TE, head, /*keep_logits=*/false);
}

namespace {

// Calls f for the samples of the micro-batches of a rank, in their order.
template <typename F>
void for_each_sample(std::span<const rl::MicroBatch> micro_batches, int rank, int num_ranks, F f) {
  for (size_t m = static_cast<size_t>(rank); m < micro_batches.size(); m += static_cast<size_t>(num_ranks)) {
    for (const int64_t sample : micro_batches[m].samples) f(static_cast<size_t>(sample));
  }
}

// Completes the scores of all ranks, each of which has its samples' log-probs and entropies, one after the other.
void gather(const std::vector<const rl::Sample*>& samples, std::span<const rl::MicroBatch> micro_batches,
            const Ranks& ranks, Scores& scores) {
  if (ranks.is_alone()) return;
  const memory::BypassArena messages;
  device::TensorLists parts(static_cast<size_t>(ranks.size()));
  const auto for_each_part = [&](int rank, auto f) {
    for_each_sample(micro_batches, rank, ranks.size(), [&](size_t s) {
      for (std::vector<std::vector<float>>* all : {&scores.logprobs, &scores.entropy}) {
        (*all)[s].resize(samples[s]->completion.size());
        f((*all)[s]);
      }
    });
  };
  for (int r = 0; r < ranks.size(); ++r) {
    int64_t count = 0;
    for_each_part(r, [&](const std::vector<float>& part) { count += std::ssize(part); });
    if (count == 0) continue;
    parts[static_cast<size_t>(r)].push_back(at::empty({count}, at::kFloat));
    float* next = parts[static_cast<size_t>(r)][0].mutable_data_ptr<float>();
    if (r != ranks.rank()) continue;
    for_each_part(r, [&](const std::vector<float>& part) { next = std::ranges::copy(part, next).out; });
  }
  device::all_gather(ranks.host, parts);
  for (int r = 0; r < ranks.size(); ++r) {
    if (r == ranks.rank() || parts[static_cast<size_t>(r)].empty()) continue;
    const float* next = parts[static_cast<size_t>(r)][0].const_data_ptr<float>();
    for_each_part(r, [&](std::vector<float>& part) {
      std::copy_n(next, part.size(), part.begin());
      next += part.size();
    });
  }
}

}  // namespace

Scores score(const model::Model& model, const std::vector<const rl::Sample*>& samples, const BatchConfig& batch,
             double temperature, const Ranks& ranks) {
  const HeadOptions head = {.temperature = temperature, .chunk_rows = batch.logprob_chunk_rows};
  Scores scores{.logprobs = std::vector<std::vector<float>>(samples.size()),
                .entropy = std::vector<std::vector<float>>(samples.size())};
  const std::vector<rl::MicroBatch> micro_batches = rl::split_into_micro_batches(samples, batch.split());
  for (auto m = static_cast<size_t>(ranks.rank()); m < micro_batches.size(); m += static_cast<size_t>(ranks.size())) {
    const rl::MicroBatch& micro_batch = micro_batches[m];
    const PackedBatch packed = pack_micro_batch(samples, micro_batch, model.config().vocab, model.ops());
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
  gather(samples, micro_batches, ranks, scores);
  return scores;
}

}  // namespace tandem::trainer
