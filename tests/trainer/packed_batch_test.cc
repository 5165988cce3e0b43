// Tests of packing, read back through its block tables: the tokens that each row sees and from which each target is
// predicted.
#include "trainer/packed_batch.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <random>
#include <set>

#include "tandem/error.h"

namespace tandem::trainer {
namespace {

std::vector<int32_t> values(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.flatten();
  return {flat.const_data_ptr<int32_t>(), flat.const_data_ptr<int32_t>() + flat.numel()};
}

struct Groups {
  std::vector<rl::Sample> samples;
  std::vector<const rl::Sample*> pointers;
  int64_t rows = 0, targets = 0;  // sizes that the batch must have
};

// Returns groups of 1-4 samples, prompts of 1-40 tokens, completions of 0-40; ids are unique, so a misplaced one shows.
Groups random_groups(uint32_t seed) {
  std::mt19937 random(seed);
  const auto draw = [&](int32_t low, int32_t high) { return low + static_cast<int32_t>(random() % (high - low + 1)); };
  Groups groups;
  int32_t id = 0;
  const int32_t num_groups = draw(1, 5);
  for (int32_t g = 0; g < num_groups; ++g) {
    std::vector<int32_t> tokens(draw(1, 40));
    for (int32_t& token : tokens) token = id++;
    const rl::SharedPrompt prompt = rl::make_prompt(std::move(tokens));
    int64_t group_targets = 0;
    const int32_t num_samples = draw(1, 4);
    for (int32_t s = 0; s < num_samples; ++s) {
      rl::Sample sample;
      sample.group_id = static_cast<uint64_t>(g);
      sample.prompt = prompt;
      sample.completion.resize(draw(0, 3) == 0 ? draw(0, 2) : draw(1, 40));
      for (int32_t& token : sample.completion) token = id++;
      const auto length = static_cast<int64_t>(sample.completion.size());
      groups.rows += std::max<int64_t>(length - 1, 0);
      group_targets += length;
      groups.samples.push_back(std::move(sample));
    }
    groups.targets += group_targets;
    if (group_targets > 0) groups.rows += static_cast<int64_t>(prompt->tokens.size());
  }
  for (const rl::Sample& sample : groups.samples) groups.pointers.push_back(&sample);
  return groups;
}

// Returns the ids that row t sees at positions 0..position, read through its sequence's block table.
std::vector<int32_t> visible_ids(const PackedBatch& batch, int64_t row) {
  const std::vector<int32_t> ids = values(batch.ids_T), tokens = values(batch.kv_tokens),
                             slots = values(batch.kv_slots);
  std::map<int32_t, int32_t> id_at;
  for (size_t i = 0; i < slots.size(); ++i) id_at[slots[i]] = ids[tokens[i]];
  const int32_t sequence = values(batch.attention.sequence_of_row)[row];
  const std::vector<int32_t> table = values(batch.attention.block_table.select(0, sequence));
  std::vector<int32_t> seen;
  for (int32_t p = 0; p <= values(batch.attention.row_position)[row]; ++p) {
    const auto found = id_at.find(table[p / device::kBlockTokens] * device::kBlockTokens + p % device::kBlockTokens);
    seen.push_back(found == id_at.end() ? -1 : found->second);
  }
  return seen;
}

TEST(PackedBatch, EveryTargetIsPredictedFromItsOwnPrefix) {
  for (uint32_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const Groups groups = random_groups(seed);
    const PackedBatch batch = pack_batch(groups.pointers);
    const std::vector<int32_t> logit_rows = values(batch.logit_rows_R), targets = values(batch.targets_R);
    ASSERT_EQ(batch.target_offsets.size(), groups.samples.size() + 1);
    for (size_t s = 0; s < groups.samples.size(); ++s) {
      const rl::Sample& sample = groups.samples[s];
      std::vector<int32_t> prefix = sample.prompt->tokens;
      ASSERT_EQ(batch.target_offsets[s + 1] - batch.target_offsets[s], static_cast<int64_t>(sample.completion.size()));
      for (size_t i = 0; i < sample.completion.size(); ++i) {
        const int64_t r = batch.target_offsets[s] + static_cast<int64_t>(i);
        ASSERT_EQ(targets[r], sample.completion[i]);
        ASSERT_EQ(visible_ids(batch, logit_rows[r]), prefix) << "sample " << s << " token " << i;
        prefix.push_back(sample.completion[i]);
      }
    }
  }
}

TEST(PackedBatch, RunsAPromptOnceAndNoLastToken) {
  for (uint32_t seed = 100; seed < 140; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const Groups groups = random_groups(seed);
    const PackedBatch batch = pack_batch(groups.pointers);
    EXPECT_EQ(batch.num_tokens(), groups.rows);
    EXPECT_EQ(batch.num_targets(), groups.targets);
    const std::vector<int32_t> ids = values(batch.ids_T);
    EXPECT_EQ(std::set<int32_t>(ids.begin(), ids.end()).size(), ids.size()) << "a token has two rows";
  }
}

TEST(PackedBatch, UnitsShareNoBlockAndSlotsAreWrittenOnce) {
  for (uint32_t seed = 200; seed < 240; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const Groups groups = random_groups(seed);
    const PackedBatch batch = pack_batch(groups.pointers);
    const std::vector<int32_t> units = values(batch.attention.group_offsets), tokens = values(batch.kv_tokens),
                               slots = values(batch.kv_slots);
    ASSERT_EQ(units.back(), batch.num_tokens());
    EXPECT_EQ(std::set<int32_t>(slots.begin(), slots.end()).size(), slots.size());
    std::map<int32_t, size_t> unit_of_block;
    for (size_t i = 0; i < slots.size(); ++i) {
      const size_t unit = std::upper_bound(units.begin(), units.end(), tokens[i]) - units.begin();
      const int32_t block = slots[i] / static_cast<int32_t>(device::kBlockTokens);
      ASSERT_LT(block, batch.num_kv_blocks);
      EXPECT_EQ(unit_of_block.emplace(block, unit).first->second, unit);
    }
  }
}

// Two samples of one prompt of 3 tokens: one continues it and has a further sequence, the other has two of its own.
TEST(PackedBatch, AFurtherSequenceSeesItselfAlone) {
  const rl::SharedPrompt prompt = rl::make_prompt({0, 1, 2});
  std::vector<rl::Sample> samples(2);
  for (rl::Sample& sample : samples) sample.prompt = prompt;
  samples[0].completion = {3, 4, 5, 6, 7};
  samples[0].sequence_begins = {2};
  samples[1].completion.resize(20);
  for (int32_t i = 0; i < 20; ++i) samples[1].completion[i] = 10 + i;
  samples[1].sequence_begins = {0, 18};
  const PackedBatch batch = pack_batch(std::vector<const rl::Sample*>{&samples[0], &samples[1]});
  EXPECT_EQ(batch.num_tokens(), 3 + (1 + 2) + (17 + 1)) << "the last token of each sequence has no row";
  EXPECT_EQ(batch.target_offsets, (std::vector<int64_t>{0, 5, 25}));
  const std::vector<int32_t> rows = values(batch.logit_rows_R), targets = values(batch.targets_R);
  const auto expect_prefixes = [&](int64_t first, std::vector<int32_t> prefix, std::vector<int32_t> tokens) {
    for (size_t i = 0; i < tokens.size(); ++i) {
      const int64_t r = first + static_cast<int64_t>(i);
      EXPECT_EQ(targets[r], tokens[i]);
      EXPECT_EQ(visible_ids(batch, rows[r]), prefix) << "target " << r;
      prefix.push_back(tokens[i]);
    }
  };
  expect_prefixes(0, {0, 1, 2}, {3, 4});
  expect_prefixes(3, {5}, {6, 7});
  expect_prefixes(6, {10}, {11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27});
  expect_prefixes(24, {28}, {29});
  // A prompt that no sample continues has no rows.
  const PackedBatch alone = pack_batch(std::vector<const rl::Sample*>{&samples[1]});
  EXPECT_EQ(alone.num_tokens(), 18);
  EXPECT_EQ(alone.prompt_rows.front().count(), 0);
  samples[1].sequence_begins = {0, 19};
  EXPECT_THROW(pack_batch(std::vector<const rl::Sample*>{&samples[1]}), BugError);
}

TEST(PackedBatch, SharesFullPromptBlocksWithinAGroup) {
  // The prompt has 35 tokens: two full blocks, shared; the third, partial one is each sample's own and holds its
  // completion too.
  rl::Sample sample;
  sample.prompt = rl::make_prompt(std::vector<int32_t>(35, 1));
  sample.completion.assign(5, 2);
  const std::vector<const rl::Sample*> samples(8, &sample);
  const PackedBatch batch = pack_batch(samples);
  EXPECT_EQ(batch.num_kv_blocks, 2 + 8);
  EXPECT_EQ(batch.num_tokens(), 35 + 8 * 4);
  EXPECT_EQ(batch.kv_slots.size(0), 35 + 7 * 3 + 8 * 4);
}

// Kernels of a GPU do not check: such an id would read beyond the logits, or be a row of zeros.
TEST(PackedBatch, AnIdOutsideTheVocabularyReachesNoDevice) {
  const std::unique_ptr<device::Ops> ops = device::make_cpu_ops("auto", 1);
  rl::Sample sample;
  const std::vector<const rl::Sample*> samples = {&sample};
  const auto pack = [&](std::vector<int32_t> prompt, std::vector<int32_t> completion) {
    sample.prompt = rl::make_prompt(std::move(prompt));
    sample.completion = std::move(completion);
    return pack_micro_batch(samples, {.samples = {0}, .num_tokens = 4}, /*vocab=*/8, *ops).num_targets();
  };
  EXPECT_EQ(pack({0, 7}, {7, 0}), 2);
  for (const int32_t id : {8, 1'000'000, -1}) {
    EXPECT_THROW(pack({0, id}, {1, 2}), BugError) << id;
    EXPECT_THROW(pack({0, 1}, {id, 2}), BugError) << id;
    EXPECT_THROW(pack({0, 1}, {2, id}), BugError) << id << ": the last token has no row, but is a target";
  }
}

}  // namespace
}  // namespace tandem::trainer
