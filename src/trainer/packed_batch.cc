#include "trainer/packed_batch.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "device/transfer.h"
#include "memory/arena_allocator.h"

namespace tandem::trainer {
namespace {

constexpr int64_t kBlock = device::kBlockTokens;

at::Tensor int32_tensor(const std::vector<int32_t>& values) {
  at::Tensor tensor = at::empty({static_cast<int64_t>(values.size())}, at::kInt);
  if (!values.empty()) std::memcpy(tensor.mutable_data_ptr(), values.data(), values.size() * sizeof(int32_t));
  return tensor;
}

// Appends group after group to host arrays, and turns them into tensors at the end. The sequences of a sample are
// adjacent.
class Packer {
 public:
  void add_group(std::span<const rl::Sample* const> group) {
    const std::vector<int32_t>& prompt = group.front()->prompt->tokens;
    TANDEM_CHECK(!prompt.empty(), "a prompt without tokens");
    const bool continues = std::any_of(group.begin(), group.end(), [](auto* s) { return s->num_after_prompt() > 0; });
    prompt_begin_ = num_rows();
    full_blocks_.clear();
    if (continues) add_prompt(prompt);  // where nothing continues it, the prompt need not run either
    const RowRange prompt_rows = {prompt_begin_, num_rows()};
    for (size_t s = 0; s < group.size(); ++s) {
      const rl::Sample& sample = *group[s];
      tables_.emplace_back();
      const int64_t own_begin = num_rows();
      if (continues) add_continuation(sample, /*is_first=*/s == 0);
      add_further_sequences(sample);
      batch_.prompt_rows.push_back(prompt_rows);
      batch_.own_rows.push_back({own_begin, num_rows()});
      batch_.target_offsets.push_back(static_cast<int64_t>(targets_.size()));
      batch_.samples.push_back(&sample);
    }
    if (num_rows() > prompt_begin_) unit_offsets_.push_back(static_cast<int32_t>(num_rows()));
  }

  PackedBatch finish() && {
    batch_.ids_T = int32_tensor(ids_);
    batch_.positions_T = int32_tensor(row_position_);
    batch_.kv_tokens = int32_tensor(kv_tokens_);
    batch_.kv_slots = int32_tensor(kv_slots_);
    batch_.attention.sequence_of_row = int32_tensor(row_sequence_);
    batch_.attention.row_position = batch_.positions_T;
    batch_.attention.block_table = block_table();
    batch_.attention.group_offsets = int32_tensor(unit_offsets_);
    batch_.attention.kv_tokens = batch_.kv_tokens;
    batch_.attention.kv_slots = batch_.kv_slots;
    batch_.logit_rows_R = int32_tensor(predictors_);
    batch_.targets_R = int32_tensor(targets_);
    return std::move(batch_);
  }

 private:
  int64_t num_rows() const { return static_cast<int64_t>(ids_.size()); }

  // The prompt's rows run in the sequence of the group's first sample, which is the next one.
  void add_prompt(const std::vector<int32_t>& prompt) {
    const auto length = static_cast<int64_t>(prompt.size());
    for (int64_t block = 0; block < length / kBlock; ++block) full_blocks_.push_back(new_block());
    for (int64_t p = 0; p < length; ++p) add_row(static_cast<int64_t>(tables_.size()), prompt[p], p);
  }

  // Adds blocks of the newest sequence, its rows, the slots of their keys, and the targets. The first of a group also
  // fills the shared blocks.
  void add_continuation(const rl::Sample& sample, bool is_first) {
    std::vector<int32_t>& blocks = tables_.back();
    const auto prompt = static_cast<int64_t>(sample.prompt->tokens.size());
    const auto length = static_cast<int64_t>(sample.num_after_prompt());
    const int64_t rows = std::max<int64_t>(length - 1, 0);
    const int64_t shared = static_cast<int64_t>(full_blocks_.size()) * kBlock;
    blocks = full_blocks_;
    while (static_cast<int64_t>(blocks.size()) * kBlock < prompt + rows) blocks.push_back(new_block());
    for (int64_t p = is_first ? 0 : shared; p < prompt; ++p) add_kv(prompt_begin_ + p, blocks, p);
    for (int64_t i = 0; i < length; ++i) {
      add_target(i == 0 ? prompt_begin_ + prompt - 1 : num_rows() - 1, sample.completion[i]);
      if (i < rows) add_own_row(sample.completion[i], prompt + i);
    }
  }

  void add_further_sequences(const rl::Sample& sample) {
    for (size_t q = 0; q < sample.sequence_begins.size(); ++q) {
      const int64_t begin = sample.sequence_begins[q];
      const int64_t end =
          q + 1 < sample.sequence_begins.size() ? sample.sequence_begins[q + 1] : std::ssize(sample.completion);
      TANDEM_CHECK(end - begin >= 2, "sample", sample.sample_id, "has a sequence of", end - begin, "tokens");
      tables_.emplace_back();
      const int64_t rows = end - begin - 1;
      while (static_cast<int64_t>(tables_.back().size()) * kBlock < rows) tables_.back().push_back(new_block());
      for (int64_t i = 0; i <= rows; ++i) {
        add_target(i == 0 ? num_rows() : num_rows() - 1, sample.completion[begin + i]);
        if (i < rows) add_own_row(sample.completion[begin + i], i);
      }
    }
  }

  void add_target(int64_t predictor, int32_t id) {
    predictors_.push_back(static_cast<int32_t>(predictor));
    targets_.push_back(id);
  }

  // Adds a row of the newest sequence, and the slot of its key.
  void add_own_row(int32_t id, int64_t position) {
    add_kv(num_rows(), tables_.back(), position);
    add_row(static_cast<int64_t>(tables_.size()) - 1, id, position);
  }

  void add_row(int64_t sequence, int32_t id, int64_t position) {
    ids_.push_back(id);
    row_sequence_.push_back(static_cast<int32_t>(sequence));
    row_position_.push_back(static_cast<int32_t>(position));
  }

  void add_kv(int64_t row, const std::vector<int32_t>& blocks, int64_t position) {
    kv_tokens_.push_back(static_cast<int32_t>(row));
    kv_slots_.push_back(static_cast<int32_t>(blocks[position / kBlock] * kBlock + position % kBlock));
  }

  int32_t new_block() { return static_cast<int32_t>(batch_.num_kv_blocks++); }

  at::Tensor block_table() const {
    size_t width = 0;
    for (const std::vector<int32_t>& blocks : tables_) width = std::max(width, blocks.size());
    std::vector<int32_t> flat;
    for (const std::vector<int32_t>& blocks : tables_) {
      flat.insert(flat.end(), blocks.begin(), blocks.end());
      flat.resize(flat.size() + width - blocks.size(), 0);
    }
    return int32_tensor(flat).view({static_cast<int64_t>(tables_.size()), static_cast<int64_t>(width)});
  }

  PackedBatch batch_;
  std::vector<int32_t> ids_, row_position_, row_sequence_, kv_tokens_, kv_slots_, predictors_, targets_;
  std::vector<int32_t> unit_offsets_ = {0};
  std::vector<std::vector<int32_t>> tables_;  // blocks of each sequence
  int64_t prompt_begin_ = 0;                  // first row of the current group's prompt
  std::vector<int32_t> full_blocks_;          // blocks that this prompt fills
};

// The maker of the sample has refused such ids already, with an error for the user.
void check_ids(const rl::Sample& sample, int64_t vocab) {
  for (const std::vector<int32_t>* tokens : {&sample.prompt->tokens, &sample.completion}) {
    for (const int32_t id : *tokens) {
      TANDEM_CHECK(id >= 0 && id < vocab, "sample", sample.sample_id, "has token", id, "outside the vocabulary of",
                   vocab);
    }
  }
}

}  // namespace

PackedBatch pack_batch(std::span<const rl::Sample* const> samples) {
  Packer packer;
  for (size_t begin = 0; begin < samples.size();) {
    size_t end = begin + 1;
    while (end < samples.size() && rl::share_prompt(*samples[begin], *samples[end])) ++end;
    packer.add_group(samples.subspan(begin, end - begin));
    begin = end;
  }
  return std::move(packer).finish();
}

PackedBatch pack_micro_batch(std::span<const rl::Sample* const> samples, const rl::MicroBatch& members, int64_t vocab,
                             const device::Ops& ops) {
  std::vector<const rl::Sample*> chosen;
  for (const int64_t index : members.samples) chosen.push_back(samples[static_cast<size_t>(index)]);
  for (const rl::Sample* sample : chosen) check_ids(*sample, vocab);
  const memory::TagScope tag(memory::Tag::kBatch);
  PackedBatch batch = pack_batch(chosen);
  batch.attention = ops.prepare(batch.attention);
  for (at::Tensor* tensor :
       {&batch.ids_T, &batch.positions_T, &batch.kv_tokens, &batch.kv_slots, &batch.logit_rows_R, &batch.targets_R}) {
    *tensor = device::to_device(*tensor, ops.device());
  }
  return batch;
}

}  // namespace tandem::trainer
