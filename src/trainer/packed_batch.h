// A micro-batch of samples as the tensors that one forward takes: every group's prompt once, then its completions.
//
// The row of prompt token p has position p. The row of completion token i of a sample has position prompt + i; it
// attends to the shared prompt rows and to its own completion. The last token of a completion predicts nothing that is
// trained on and no other row attends to it, so it has no row. Further sequences of a sample (rl/sample.h) follow its
// own rows: each has positions from 0, attends to itself alone, and its last token has no row either.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "device/ops.h"
#include "rl/packing.h"
#include "rl/sample.h"

namespace tandem::trainer {

// Rows [begin, end) of a packed batch.
struct RowRange {
  int64_t begin = 0, end = 0;
  int64_t count() const { return end - begin; }
  bool operator==(const RowRange&) const = default;
};

struct PackedBatch {
  std::vector<const rl::Sample*> samples;
  at::Tensor ids_T, positions_T;  // int32
  // The rows of each sample: those of its prompt, which it may share, and its own, with those of its further sequences.
  // A prompt has no rows if no sample of its group continues it.
  std::vector<RowRange> prompt_rows, own_rows;

  // Keys and values of kv_tokens go to kv_slots of a scratch cache of num_kv_blocks blocks. Full prompt blocks are
  // shared by a group's samples through the block tables; the block in which the prompt ends is copied into each
  // sample's own one, by listing its tokens once per sample.
  at::Tensor kv_tokens, kv_slots;  // int32 [n]
  int64_t num_kv_blocks = 0;
  device::AttentionRows attention;  // unit = group: groups share no block

  // Targets of all samples lie one after the other: sample s has [target_offsets[s], target_offsets[s + 1]), one per
  // completion token. logit_rows_R is the row whose hidden state predicts the target; the last prompt token's row
  // occurs once for each sample of its group. Nothing predicts the first token of a further sequence, which is not
  // trained on: its own row stands there.
  at::Tensor logit_rows_R, targets_R;  // int32
  std::vector<int64_t> target_offsets = {0};

  int64_t num_tokens() const { return ids_T.size(0); }
  int64_t num_targets() const { return targets_R.size(0); }
};

// Packs samples. Neighbours that rl::share_prompt() share its rows (rl/packing.h makes them neighbours). A sample
// without completion tokens has no targets. Prompts have at least one token. All tensors lie on the host.
PackedBatch pack_batch(std::span<const rl::Sample* const> samples);
// Packs the samples that `members` names, where `ops` computes, with the attention prepared and under the tag of
// batches. Every token id is below `vocab`, the model's: kernels do not check again (device/ops.h).
PackedBatch pack_micro_batch(std::span<const rl::Sample* const> samples, const rl::MicroBatch& members, int64_t vocab,
                             const device::Ops& ops);

}  // namespace tandem::trainer
