#include "rollout/step_input.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.h"
#include "device/block.h"
#include "model/tensor_ranks_plan.h"

namespace tandem::rollout {

int64_t bucket_rows(int64_t num_rows) {
  TANDEM_CHECK(num_rows > 0, num_rows);
  const auto multiple_of = [num_rows](int64_t step) { return (num_rows + step - 1) / step * step; };
  if (num_rows <= 16) return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(num_rows)));
  if (num_rows <= 32) return multiple_of(8);
  if (num_rows <= 64) return multiple_of(16);
  return num_rows <= kLargestBucket ? multiple_of(32) : 0;
}

bool is_decode(const ScheduledBatch& plan) {
  const size_t rows = plan.token_ids.size();
  return plan.logits_rows.size() == rows && plan.sample_slots.size() == rows;
}

std::map<int64_t, BucketPlace> lay_out_buckets(int64_t max_rows, int64_t max_blocks, int64_t num_kinds,
                                               const std::function<int64_t(const StepShape&)>& prepared_bytes) {
  constexpr int64_t kAlignment = 512;
  std::map<int64_t, BucketPlace> places;
  int64_t end = 0;
  const auto take = [&end](int64_t bytes) {
    const int64_t begin = end;
    end = (end + bytes + kAlignment - 1) / kAlignment * kAlignment;
    return begin;
  };
  for (int64_t rows = 1;; rows = bucket_rows(rows + 1)) {
    const StepShape shape = bucket_shape(rows, max_blocks, num_kinds);
    BucketPlace place;
    place.input = take(shape.num_words() * static_cast<int64_t>(sizeof(int32_t)));
    place.results = take(3 * shape.num_draws * static_cast<int64_t>(sizeof(int32_t)));
    for (int64_t kind = 0; kind < num_kinds; ++kind) place.rows.push_back(take(prepared_bytes(shape)));
    place.end = end;
    places[rows] = place;
    if (rows >= max_rows) return places;
  }
}

int64_t bucket_blocks(int64_t context_tokens) {
  constexpr int64_t kTokensStep = 16 * device::kBlockTokens;
  return (context_tokens + kTokensStep - 1) / kTokensStep * 16;
}

StepShape exact_shape(const ScheduledBatch& plan) {
  const auto num_logits_rows = static_cast<int64_t>(plan.logits_rows.size());
  return {.num_rows = plan.num_rows(),
          .num_draws = static_cast<int64_t>(plan.sample_slots.size()),
          .num_logits_rows = num_logits_rows == plan.num_rows() ? 0 : num_logits_rows,
          .num_sequences = static_cast<int64_t>(plan.sequences.size()),
          .max_blocks = plan.max_blocks,
          .num_kinds = std::ssize(plan.places)};
}

StepShape bucket_shape(int64_t num_rows, int64_t max_blocks, int64_t num_kinds) {
  return {.num_rows = num_rows,
          .num_draws = num_rows,
          .num_logits_rows = 0,
          .num_sequences = num_rows,
          .max_blocks = max_blocks,
          .num_kinds = num_kinds};
}

void StepInput::fill(const ScheduledBatch& plan, std::span<const device::Draw> draws, const StepShape& shape,
                     int64_t window_rows, const Drawer& drawer) {
  TANDEM_CHECK_EQ(draws.size(), plan.sample_slots.size());
  TANDEM_CHECK(plan.num_rows() <= shape.num_rows && plan.max_blocks <= shape.max_blocks, shape.num_rows,
               shape.max_blocks);
  TANDEM_CHECK_EQ(std::ssize(plan.places), shape.num_kinds);
  shape_ = shape;
  words_.assign(static_cast<size_t>(shape.num_words()), 0);
  fill_rows(plan);
  fill_block_tables(plan);
  cut_windows(plan, window_rows);
  fill_draws(draws, drawer);
}

void StepInput::fill_rows(const ScheduledBatch& plan) {
  const auto rows = static_cast<size_t>(shape_.num_rows);
  const auto at = [this](int64_t begin) { return words_.begin() + begin; };
  std::copy(plan.token_ids.begin(), plan.token_ids.end(), at(shape_.ids_begin()));
  std::copy(plan.positions.begin(), plan.positions.end(), at(shape_.positions_begin()));
  for (int64_t kind = 0; kind < shape_.num_kinds; ++kind) {
    const std::vector<int32_t>& slots = plan.places[static_cast<size_t>(kind)].slot_mapping;
    std::fill_n(at(shape_.slots_begin(kind)), rows, -1);
    std::copy(slots.begin(), slots.end(), at(shape_.slots_begin(kind)));
  }
  if (shape_.num_logits_rows > 0) {
    std::copy(plan.logits_rows.begin(), plan.logits_rows.end(), at(shape_.logits_rows_begin()));
  }
  sequence_of_row_.assign(rows, -1);
  std::copy(plan.sequence_of_row.begin(), plan.sequence_of_row.end(), sequence_of_row_.begin());
  takes_drawn_ = std::any_of(plan.token_ids.begin(), plan.token_ids.end(), [](int32_t id) { return id < 0; });
}

void StepInput::fill_block_tables(const ScheduledBatch& plan) {
  block_tables_.resize(plan.places.size());
  for (size_t kind = 0; kind < plan.places.size(); ++kind) {
    std::vector<int32_t>& table = block_tables_[kind];
    table.assign(static_cast<size_t>(shape_.num_sequences * shape_.max_blocks), 0);
    for (int64_t row = 0; row < std::ssize(plan.sequences); ++row) {
      std::copy_n(plan.places[kind].block_table.begin() + row * plan.max_blocks, plan.max_blocks,
                  table.begin() + row * shape_.max_blocks);
    }
  }
}

void StepInput::cut_windows(const ScheduledBatch& plan, int64_t window_rows) {
  windows_.clear();
  const auto num_slots = static_cast<int64_t>(plan.sample_slots.size());
  // Draws that fill up have a row of their own, like each draw of a decode step.
  const auto row_of = [&](int64_t draw) {
    return draw < num_slots ? int64_t{plan.sample_slots[static_cast<size_t>(draw)].logits_index} : draw;
  };
  for (int64_t first = 0; first < shape_.num_draws; first += window_rows) {
    const int64_t count = std::min(window_rows, shape_.num_draws - first);
    windows_.push_back({.first_draw = first,
                        .num_draws = count,
                        .first_row = row_of(first),
                        .num_rows = row_of(first + count - 1) - row_of(first) + 1});
  }
}

void StepInput::fill_draws(std::span<const device::Draw> draws, const Drawer& drawer) {
  const auto num_draws = static_cast<int64_t>(draws.size());
  for (const DrawWindow& window : windows_) {
    const model::OwnRows own = model::own_rows(window.num_rows, drawer.rank, drawer.num_ranks);
    for (int64_t i = window.first_draw; i < window.first_draw + window.num_draws; ++i) {
      device::Draw draw;  // this draw draws nothing
      if (i < num_draws) {
        draw = draws[static_cast<size_t>(i)];
        const int64_t row = draw.row - window.first_row;
        draw.row = own.begin <= row && row < own.end ? static_cast<int32_t>(row - own.begin) : -1;
      }
      std::memcpy(words_.data() + i * StepShape::kDrawWords, &draw, sizeof draw);
    }
  }
}

}  // namespace tandem::rollout
