#include "trainer/sequence_scores.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>

#include <algorithm>
#include <memory>
#include <span>

#include "base/check.h"
#include "device/communicator.h"
#include "device/transfer.h"
#include "memory/arena_allocator.h"
#include "rl/packing.h"
#include "trainer/packed_batch.h"
#include "trainer/varlen_attention.h"

namespace tandem::trainer {

namespace {

// Returns the sequence as a sample whose only target is predicted by the sequence's last token. The target itself is
// not looked at.
rl::Sample sample_of(std::span<const int32_t> sequence, int64_t length, uint64_t number) {
  rl::Sample sample;
  sample.group_id = sample.sample_id = number;
  sample.prompt = rl::make_prompt({sequence.begin(), sequence.begin() + length});
  sample.completion = {0};
  return sample;
}

// Calls f(sample, hidden) with the last hidden state, in float32 on the host, of each sample of the micro-batch.
template <typename F>
void for_each_last_state(const model::Model& model, const PackedBatch& packed, int64_t chunk_rows, F f) {
  const at::NoGradGuard without_graph;
  const memory::TagScope blocks(memory::Tag::kBlockScratch);
  VarlenAttention attention(model.ops(), packed);
  const at::Tensor normed_TE = model::forward_hidden(model, packed.ids_T, packed.positions_T, attention);
  const memory::TagScope head(memory::Tag::kHead);
  for (int64_t begin = 0; begin < packed.num_targets(); begin += chunk_rows) {
    const int64_t count = std::min(chunk_rows, packed.num_targets() - begin);
    const at::Tensor rows_RE =
        device::to_host(at::index_select(normed_TE, 0, packed.logit_rows_R.narrow(0, begin, count)));
    const memory::BypassArena on_the_host;
    const at::Tensor states_RE = rows_RE.to(at::kFloat);
    const auto width = static_cast<size_t>(states_RE.size(1));
    for (int64_t i = 0; i < count; ++i) {
      f(static_cast<size_t>(begin + i),
        std::span(states_RE.const_data_ptr<float>() + static_cast<size_t>(i) * width, width));
    }
  }
}

// Completes the scores of all ranks, each of which has those of its micro-batches.
void gather(std::span<const rl::MicroBatch> micro_batches, const Ranks& ranks, std::vector<double>& scores) {
  if (ranks.is_alone()) return;
  const memory::BypassArena messages;
  const auto num_ranks = static_cast<size_t>(ranks.size());
  std::vector<std::vector<size_t>> of_rank(num_ranks);
  for (size_t m = 0; m < micro_batches.size(); ++m) {
    for (const int64_t sample : micro_batches[m].samples) of_rank[m % num_ranks].push_back(static_cast<size_t>(sample));
  }
  device::TensorLists parts(num_ranks);
  for (size_t r = 0; r < num_ranks; ++r) {
    if (of_rank[r].empty()) continue;
    parts[r].push_back(at::empty({std::ssize(of_rank[r])}, at::kDouble));
    if (r != static_cast<size_t>(ranks.rank())) continue;
    std::ranges::transform(of_rank[r], parts[r][0].mutable_data_ptr<double>(), [&](size_t s) { return scores[s]; });
  }
  device::all_gather(ranks.host, parts);
  for (size_t r = 0; r < num_ranks; ++r) {
    for (size_t i = 0; i < of_rank[r].size(); ++i) scores[of_rank[r][i]] = parts[r][0].const_data_ptr<double>()[i];
  }
}

}  // namespace

std::vector<double> score_sequences(const model::Model& model, const model::RewardHead& head,
                                    const std::vector<std::vector<int32_t>>& sequences, const BatchConfig& batch,
                                    const Ranks& ranks) {
  std::vector<rl::Sample> samples;
  for (const std::vector<int32_t>& sequence : sequences) {
    TANDEM_CHECK(!sequence.empty(), "a sequence without tokens");
    const int64_t length = model::scored_length(sequence, model.config().pad_token_id);
    samples.push_back(sample_of(sequence, length, samples.size()));
  }
  std::vector<const rl::Sample*> views;
  for (const rl::Sample& sample : samples) views.push_back(&sample);
  const std::vector<rl::MicroBatch> micro_batches = rl::split_into_micro_batches(views, batch.split());
  std::vector<double> scores(samples.size());
  for (auto m = static_cast<size_t>(ranks.rank()); m < micro_batches.size(); m += static_cast<size_t>(ranks.size())) {
    const rl::MicroBatch& micro_batch = micro_batches[m];
    const PackedBatch packed = pack_micro_batch(views, micro_batch, model.config().vocab, model.ops());
    for_each_last_state(model, packed, batch.logprob_chunk_rows, [&](size_t i, std::span<const float> hidden) {
      scores[static_cast<size_t>(micro_batch.samples[i])] = head.score(hidden);
    });
  }
  gather(micro_batches, ranks, scores);
  return scores;
}

}  // namespace tandem::trainer
