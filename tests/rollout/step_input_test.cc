// Tests of a plan in the form that is sent to the device.
#include "rollout/step_input.h"

#include <gtest/gtest.h>

#include <cstring>

namespace tandem::rollout {
namespace {

TEST(Buckets, AreFewAndNearTheRowsTheyHold) {
  std::vector<int64_t> buckets;
  for (int64_t rows = 1; rows <= kLargestBucket; ++rows) {
    const int64_t bucket = bucket_rows(rows);
    EXPECT_GE(bucket, rows);
    EXPECT_EQ(bucket_rows(bucket), bucket);
    if (buckets.empty() || buckets.back() != bucket) buckets.push_back(bucket);
  }
  EXPECT_EQ(std::vector<int64_t>(buckets.begin(), buckets.begin() + 12),
            (std::vector<int64_t>{1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160}));
  EXPECT_EQ(buckets.back(), kLargestBucket);
  EXPECT_EQ(buckets.size(), 23U);
  EXPECT_EQ(bucket_rows(kLargestBucket + 1), 0);
}

device::Draw draw_at(const StepInput& input, int64_t index) {
  device::Draw draw;
  std::memcpy(static_cast<void*>(&draw), input.words().data() + index * StepShape::kDrawWords, sizeof draw);
  return draw;
}

std::vector<int32_t> words(const StepInput& input, int64_t begin, int64_t count) {
  return {input.words().begin() + begin, input.words().begin() + begin + count};
}

std::vector<device::Draw> draws_of(const ScheduledBatch& plan) {
  std::vector<device::Draw> draws(plan.sample_slots.size());
  for (size_t i = 0; i < draws.size(); ++i) {
    draws[i].sample_id = 100 + i;
    draws[i].row = plan.sample_slots[i].logits_index;
  }
  return draws;
}

TEST(StepInput, FillsADecodeStepUp) {
  ScheduledBatch plan;
  plan.token_ids = {5, -1, 7};
  plan.positions = {20, 3, 40};
  plan.sequence_of_row = {0, 1, 2};
  plan.sequences = {4, 2, 9};
  plan.max_blocks = 2;
  plan.places = {{.slot_mapping = {100, 200, 300}, .block_table = {1, 2, 3, 0, 5, 6}},
                 {.slot_mapping = {7, 8, 9}, .block_table = {9, 8, 7, 0, 6, 4}}};
  plan.logits_rows = {0, 1, 2};
  plan.sample_slots = {
      {.sequence = 4, .logits_index = 0}, {.sequence = 2, .logits_index = 1}, {.sequence = 9, .logits_index = 2}};
  ASSERT_TRUE(is_decode(plan));
  StepInput input;
  input.fill(plan, draws_of(plan), bucket_shape(4, 3, 2), /*window_rows=*/2, {});
  const StepShape& shape = input.shape();
  EXPECT_EQ(words(input, shape.ids_begin(), 4), (std::vector<int32_t>{5, -1, 7, 0}));
  EXPECT_EQ(words(input, shape.positions_begin(), 4), (std::vector<int32_t>{20, 3, 40, 0}));
  EXPECT_EQ(words(input, shape.slots_begin(0), 4), (std::vector<int32_t>{100, 200, 300, -1}));
  EXPECT_EQ(words(input, shape.slots_begin(1), 4), (std::vector<int32_t>{7, 8, 9, -1}));
  EXPECT_EQ(shape.num_words(), 4 * 16 + 4 * 4);
  EXPECT_EQ(input.sequence_of_row(), (std::vector<int32_t>{0, 1, 2, -1}));
  EXPECT_EQ(input.block_table(0), (std::vector<int32_t>{1, 2, 0, 3, 0, 0, 5, 6, 0, 0, 0, 0}));
  EXPECT_EQ(input.block_table(1), (std::vector<int32_t>{9, 8, 0, 7, 0, 0, 6, 4, 0, 0, 0, 0}));
  EXPECT_TRUE(input.takes_drawn());
  ASSERT_EQ(input.windows().size(), 2U);
  EXPECT_EQ(input.windows()[1].first_row, 2);
  EXPECT_EQ(input.windows()[1].num_rows, 2);
  EXPECT_EQ(draw_at(input, 1).row, 1);
  EXPECT_EQ(draw_at(input, 2).row, 0) << "counts from its window";
  EXPECT_EQ(draw_at(input, 2).sample_id, 102U);
  EXPECT_EQ(draw_at(input, 3).row, -1);
}

TEST(StepInput, HasRowsOfOneSequenceInADecodeStep) {
  ScheduledBatch plan;
  plan.token_ids = {5, 6, 7};  // the last token of one sequence and two drafts
  plan.positions = {20, 21, 22};
  plan.sequence_of_row = {0, 0, 0};
  plan.sequences = {4};
  plan.max_blocks = 2;
  plan.places = {{.slot_mapping = {100, 101, 102}, .block_table = {1, 2}}};
  plan.logits_rows = {0, 1, 2};
  for (int32_t i = 0; i < 3; ++i)
    plan.sample_slots.push_back({.sequence = 4, .logits_index = i, .position = 9 + i, .is_after_draft = i > 0});
  ASSERT_TRUE(is_decode(plan));
  StepInput input;
  input.fill(plan, draws_of(plan), bucket_shape(4, 2, 1), /*window_rows=*/8, {});
  EXPECT_EQ(input.sequence_of_row(), (std::vector<int32_t>{0, 0, 0, -1}));
  EXPECT_EQ(input.block_table(0), (std::vector<int32_t>{1, 2, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(draw_at(input, 2).row, 2);
  EXPECT_EQ(draw_at(input, 3).row, -1);
}

// Each row is drawn from by one of the ranks, which counts from its first row.
TEST(StepInput, RanksDrawFromTheirOwnRows) {
  ScheduledBatch plan;
  plan.token_ids = plan.positions = plan.sequence_of_row = plan.sequences = {0, 1, 2, 3, 4};
  plan.places = {{.slot_mapping = plan.token_ids, .block_table = plan.token_ids}};
  plan.max_blocks = 1;
  plan.logits_rows = {0, 1, 2, 3, 4};
  for (int32_t i = 0; i < 5; ++i) plan.sample_slots.push_back({.sequence = i, .logits_index = i});
  // The windows have the rows 0 to 2 and 3 to 4.
  const std::vector<std::vector<int32_t>> rows_of_ranks = {{0, -1, -1, 0, -1}, {-1, 0, 1, -1, 0}};
  for (int rank = 0; rank < 2; ++rank) {
    StepInput input;
    input.fill(plan, draws_of(plan), exact_shape(plan), /*window_rows=*/3, {.rank = rank, .num_ranks = 2});
    std::vector<int32_t> rows;
    for (int64_t i = 0; i < 5; ++i) rows.push_back(draw_at(input, i).row);
    EXPECT_EQ(rows, rows_of_ranks[static_cast<size_t>(rank)]) << "rank " << rank;
  }
}

TEST(StepInput, TakesSeveralDrawsFromOneRow) {
  ScheduledBatch plan;
  plan.token_ids = {5, 6, 7, 8};
  plan.positions = {9, 0, 1, 2};
  plan.sequence_of_row = {0, 1, 1, 1};
  plan.sequences = {0, 1};
  plan.max_blocks = 1;
  plan.places = {{.slot_mapping = {100, 200, 201, 202}, .block_table = {6, 12}}};
  plan.logits_rows = {0, 3};
  plan.sample_slots = {{.sequence = 0, .logits_index = 0},
                       {.sequence = 1, .logits_index = 1},
                       {.sequence = 2, .logits_index = 1},
                       {.sequence = 3, .logits_index = 1}};
  ASSERT_FALSE(is_decode(plan));
  StepInput input;
  input.fill(plan, draws_of(plan), exact_shape(plan), /*window_rows=*/2, {});
  const StepShape& shape = input.shape();
  EXPECT_EQ(words(input, shape.logits_rows_begin(), 2), (std::vector<int32_t>{0, 3}));
  EXPECT_FALSE(input.takes_drawn());
  ASSERT_EQ(input.windows().size(), 2U);
  EXPECT_EQ(input.windows()[0].num_rows, 2);
  EXPECT_EQ(input.windows()[1].first_row, 1);
  EXPECT_EQ(input.windows()[1].num_rows, 1);
  EXPECT_EQ(draw_at(input, 1).row, 1);
  EXPECT_EQ(draw_at(input, 2).row, 0);
  EXPECT_EQ(draw_at(input, 3).row, 0);
}

}  // namespace
}  // namespace tandem::rollout
