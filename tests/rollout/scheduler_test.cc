// Tests of what the scheduler plans: who is prefilled, shares blocks, decodes and is preempted.
#include "rollout/scheduler.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <vector>

#include "tandem/error.h"
#include "tests/rollout/scheduler_workload.h"

namespace tandem::rollout {
namespace {

std::vector<int32_t> iota_prompt(int32_t length) {
  std::vector<int32_t> prompt(static_cast<size_t>(length));
  std::iota(prompt.begin(), prompt.end(), 1);
  return prompt;
}

std::vector<NewSequence> alike(size_t count, int64_t max_tokens) {
  return std::vector<NewSequence>(count, {.max_tokens = max_tokens});
}

TEST(Scheduler, ComputesOnlyWhatATurnAdds) {
  Workload workload({.num_blocks = 32, .max_batch_tokens = 64, .max_running = 4});
  const PrefixOwner owner{.group_id = 7, .sample_id = 70};
  workload.add_turn(iota_prompt(40), owner, 10);
  while (workload.step()) {
  }
  auto turns = workload.take_turns();
  ASSERT_EQ(turns.size(), 1U);
  std::vector<int32_t> next = turns.front().second;
  const auto num_before = static_cast<int64_t>(next.size());
  next.insert(next.end(), {5, 6, 7});
  workload.scheduler().reset_stats();
  workload.add_turn(next, owner, 2);
  while (workload.step()) {
  }
  const SchedulerStats& stats = workload.scheduler().stats();
  EXPECT_EQ(stats.kept_tokens, num_before - 1) << "the last token of a turn has no keys and values yet";
  EXPECT_EQ(stats.prefill_tokens, 4);
  EXPECT_EQ(stats.recomputed_tokens, 0);
  // Another sample of the group shares the full blocks of the prompt, also of a sample that has ended.
  workload.scheduler().reset_stats();
  workload.add_turn(iota_prompt(40), {.group_id = 7, .sample_id = 71}, 2);
  while (workload.step()) {
  }
  EXPECT_EQ(stats.shared_prompt_tokens, 32);
  EXPECT_EQ(stats.prefill_tokens, 8);
  EXPECT_GT(workload.scheduler().pool().num_used(), 0) << "kept for a next turn";
  workload.scheduler().release_prefix(70);
  workload.scheduler().release_prefix(71);
  workload.run_to_end();
}

// A turn that begins otherwise than the previous one of its owner cannot use what was kept, and may need its blocks.
TEST(Scheduler, GivesUpAnOwnersPrefixThatItsNextTurnCannotUse) {
  Workload workload({.num_blocks = 8, .max_batch_tokens = 64, .max_running = 4});
  const PrefixOwner owner{.group_id = 7, .sample_id = 70};
  workload.add_turn(iota_prompt(40), owner, 10);
  while (workload.step()) {
  }
  ASSERT_EQ(workload.take_turns().size(), 1U);
  ASSERT_GT(workload.scheduler().pool().num_used(), 0);
  std::vector<int32_t> other = iota_prompt(100);
  other.front() = 140;
  workload.add_turn(other, owner, 20);
  while (workload.step()) {
  }
  EXPECT_EQ(workload.take_turns().size(), 1U);
  EXPECT_EQ(workload.scheduler().stats().kept_dropped, 1);
  workload.scheduler().release_prefix(70);
  workload.run_to_end();
}

// A prompt and completions that the cache does not hold as a whole, where no token sees more than 20.
TEST(Scheduler, GivesUpBlocksBeforeTheWindow) {
  SchedulerConfig config = {.num_blocks = 5, .max_batch_tokens = 16, .max_running = 4, .kinds = {{.window = 20}}};
  Workload workload(config);
  EXPECT_TRUE(workload.scheduler().fits(1000));
  workload.add(iota_prompt(140), 1, 300);
  workload.run_to_end();
  EXPECT_LE(workload.scheduler().stats().peak_blocks, 4) << "19 tokens before the first of 16, and ends of blocks";
  EXPECT_EQ(workload.scheduler().stats().recomputed_tokens, 0);
  config.kinds[0].window = 0;
  EXPECT_FALSE(Scheduler(config).fits(1000));
}

// A forward takes a whole prompt where it has room. Of a sequence that will give its blocks up it takes a part, so that
// a larger forward asks for no larger cache.
TEST(Scheduler, TakesPartsOfAPromptWhereThereIsAWindow) {
  SchedulerConfig config = {.num_blocks = 600, .max_batch_tokens = 8192, .max_running = 4};
  Workload whole(config);
  whole.add(iota_prompt(8000), 1, 10);
  whole.step();
  EXPECT_EQ(whole.scheduler().pool().num_used(), 500);
  config.num_blocks = 132;
  config.kinds = {{.window = 20}};
  Workload parts(config);
  EXPECT_TRUE(parts.scheduler().fits(100'000));
  parts.add(iota_prompt(8000), 1, 10);
  parts.step();
  EXPECT_EQ(parts.scheduler().pool().num_used(), 128) << "2,048 tokens";
  parts.run_to_end();
  EXPECT_EQ(parts.scheduler().stats().recomputed_tokens, 0);
}

// Samples share the prompt's blocks until each has gone past them.
TEST(Scheduler, SamplesGiveUpASharedPromptOneByOne) {
  Workload workload({.num_blocks = 64, .max_batch_tokens = 64, .max_running = 4, .kinds = {{.window = 33}}});
  workload.add(iota_prompt(64), 4, 100);
  workload.step();
  EXPECT_EQ(workload.scheduler().pool().num_used(), 4);
  workload.step();
  EXPECT_EQ(workload.scheduler().pool().num_used(), 2 + 4) << "the last 32 tokens of the prompt, and a token each";
  workload.run_to_end();
}

// Layers of two kinds: of those without a window a block holds 48 tokens, and nothing is given up.
TEST(Scheduler, GivesUpTheBlocksOfLayersThatHaveAWindow) {
  const SchedulerConfig config = {
      .num_blocks = 14, .max_batch_tokens = 16, .max_running = 4, .kinds = {{.tokens = 48}, {.window = 20}}};
  Workload workload(config);
  EXPECT_TRUE(workload.scheduler().fits(481)) << "ten blocks, and four of the window";
  EXPECT_FALSE(workload.scheduler().fits(482));
  workload.add(iota_prompt(140), 1, 300);
  workload.run_to_end();
  EXPECT_LE(workload.scheduler().stats().peak_blocks, 14);
  EXPECT_EQ(workload.scheduler().stats().recomputed_tokens, 0);
}

// A block of either kind that two samples hold is copied before one of them writes into it.
TEST(Scheduler, CopiesBlocksOfEveryKind) {
  Workload workload(
      {.num_blocks = 64, .max_batch_tokens = 64, .max_running = 4, .kinds = {{.tokens = 48}, {.window = 20}}});
  workload.add(iota_prompt(40), 2, 3);
  workload.step();
  EXPECT_EQ(workload.scheduler().pool().num_used(), 1 + 3) << "40 tokens";
  workload.step();
  EXPECT_EQ(workload.scheduler().stats().copies_on_write, 2) << "the second sample keeps what was shared";
  EXPECT_EQ(workload.scheduler().pool().num_used(), 2 + 1 + 2)
      << "48 tokens each; of the window a block that is shared, and one each";
  workload.run_to_end();
}

TEST(Scheduler, PrefillsAPromptOnceForItsGroup) {
  Workload workload({.num_blocks = 64, .max_batch_tokens = 16, .max_running = 8});
  workload.add(iota_prompt(40), 5, 20);
  workload.run_to_end();
  EXPECT_EQ(workload.num_finished(), 5);
  EXPECT_EQ(workload.scheduler().stats().prefill_tokens, 40);
  EXPECT_EQ(workload.scheduler().stats().shared_prompt_tokens, 4 * 40);
  EXPECT_EQ(workload.scheduler().stats().recomputed_tokens, 0);
  EXPECT_EQ(workload.scheduler().stats().preemptions, 0);
}

// Samples without tokens are served first, from one prefill of the prompt; begun ones share its full blocks.
TEST(Scheduler, PrefillsAPromptOnceForBegunSamplesToo) {
  Workload workload({.num_blocks = 64, .max_batch_tokens = 16, .max_running = 8});
  workload.add(iota_prompt(40), {{.num_begun = 20, .budget = 20}, {.budget = 20}, {.num_begun = 7, .budget = 20}});
  workload.run_to_end();
  EXPECT_EQ(workload.num_finished(), 3);
  const SchedulerStats& stats = workload.scheduler().stats();
  EXPECT_EQ(stats.prefill_tokens, 40 + 2 * 8) << "the partial block is each begun sample's own";
  EXPECT_EQ(stats.shared_prompt_tokens, 2 * 32);
  EXPECT_EQ(stats.resumed_tokens, workload.num_begun());
  EXPECT_EQ(stats.recomputed_tokens, 0);
}

// A begun sample begins where there is room for the prompt and its own tokens, and for what it may grow to.
TEST(Scheduler, AdmitsABegunSampleForWhatItNeeds) {
  const auto begins_beside_another = [](int64_t budget) {
    Scheduler scheduler({.num_blocks = 12, .max_batch_tokens = 200, .max_running = 8});
    scheduler.add_group(rl::make_prompt(iota_prompt(30)), {{.max_tokens = 64}});  // grows to 4 blocks
    scheduler.add_group(rl::make_prompt(iota_prompt(30)),
                        {{.max_tokens = 96 + budget, .generated = std::vector<int32_t>(66, 1)}});
    scheduler.plan();
    return scheduler.num_running() == 2;
  };
  EXPECT_TRUE(begins_beside_another(32)) << "6 blocks, and 2 to grow";
  EXPECT_FALSE(begins_beside_another(34)) << "6 blocks, and 3 to grow";
}

// The last sample that refers to a block writes into it without a copy.
TEST(Scheduler, CopiesOnlyThePartialPromptBlock) {
  Workload partial({.num_blocks = 64, .max_batch_tokens = 64, .max_running = 8});
  partial.add(iota_prompt(40), 4, 3);
  ASSERT_TRUE(partial.step());
  EXPECT_EQ(partial.scheduler().pool().num_used(), 3);
  ASSERT_TRUE(partial.step());
  EXPECT_EQ(partial.scheduler().stats().copies_on_write, 3);
  EXPECT_EQ(partial.scheduler().pool().num_used(), 2 + 4);

  Workload full({.num_blocks = 64, .max_batch_tokens = 64, .max_running = 8});
  full.add(iota_prompt(32), 4, 3);
  full.run_to_end();
  EXPECT_EQ(full.scheduler().stats().copies_on_write, 0);
}

TEST(Scheduler, PlansDecodesBeforePrefillChunks) {
  Scheduler scheduler({.num_blocks = 64, .max_batch_tokens = 10, .max_running = 8});
  const std::vector<SequenceId> first = scheduler.add_group(rl::make_prompt(iota_prompt(4)), alike(2, 30));
  const std::vector<SequenceId> second = scheduler.add_group(rl::make_prompt(iota_prompt(20)), alike(1, 30));
  const ScheduledBatch& plan = scheduler.plan();
  EXPECT_EQ(plan.num_rows(), 10);  // 4 of the first prompt, 6 of the second
  EXPECT_EQ(plan.sequences, (std::vector<SequenceId>{first[0], second[0]}));
  EXPECT_EQ(plan.logits_rows, (std::vector<int32_t>{3}));
  ASSERT_EQ(plan.sample_slots.size(), 2U);
  EXPECT_EQ(plan.sample_slots[1].sequence, first[1]);
  EXPECT_EQ(plan.sample_slots[1].logits_index, 0);
  for (const SequenceId id : first) scheduler.append(id, 7);

  scheduler.plan();
  EXPECT_EQ(plan.sequences, (std::vector<SequenceId>{first[0], first[1], second[0]}));
  EXPECT_EQ(plan.positions, (std::vector<int32_t>{4, 4, 6, 7, 8, 9, 10, 11, 12, 13}));
  EXPECT_EQ(plan.token_ids, (std::vector<int32_t>{7, 7, 7, 8, 9, 10, 11, 12, 13, 14}));
}

TEST(Scheduler, DecodesNoMoreThanMaxRunning) {
  Workload workload({.num_blocks = 64, .max_batch_tokens = 64, .max_running = 3});
  workload.add(iota_prompt(8), 7, 10);
  workload.run_to_end();
  EXPECT_EQ(workload.num_finished(), 7);
  EXPECT_EQ(workload.scheduler().stats().peak_running, 3);
}

TEST(Scheduler, HasRoomWhileWhatIsAddedBeginsWithTheNextForward) {
  Workload work({.num_blocks = 32, .max_batch_tokens = 32, .max_running = 2});
  EXPECT_TRUE(work.scheduler().has_room());
  work.add(iota_prompt(20), 1, 40);
  EXPECT_TRUE(work.scheduler().has_room());
  work.add(iota_prompt(20), 1, 40);
  EXPECT_FALSE(work.scheduler().has_room()) << "more than the rows of a forward wait";
  work.step();
  EXPECT_FALSE(work.scheduler().has_room()) << "half a prompt waits still";
  work.step();
  EXPECT_TRUE(work.scheduler().has_room());
  work.add(iota_prompt(5), 1, 4);
  EXPECT_TRUE(work.scheduler().has_room());
  work.step();
  EXPECT_FALSE(work.scheduler().has_room()) << "no more than two run";
  while (work.step()) {
  }
  EXPECT_TRUE(work.scheduler().has_room()) << "idle";
}

TEST(Scheduler, PreemptsWhatWasAddedLastAndTakesUpItsPromptAgain) {
  // Two samples of 2 + 2 blocks and a third one do not fit into 7 blocks.
  Scheduler scheduler({.num_blocks = 7, .max_batch_tokens = 64, .max_running = 8});
  const std::vector<SequenceId> ids = scheduler.add_group(rl::make_prompt(iota_prompt(32)), alike(3, 65));
  scheduler.plan();
  for (const SequenceId id : ids) scheduler.append(id, 1);
  for (int i = 0; i < 16; ++i) {  // one block of completion each: 2 + 3
    ASSERT_EQ(scheduler.plan().sample_slots.size(), 3U);
    for (const SequenceId id : ids) scheduler.append(id, 1);
  }
  const ScheduledBatch& plan = scheduler.plan();  // wants 2 + 6
  EXPECT_EQ(plan.sequences, (std::vector<SequenceId>{ids[0], ids[1]}));
  EXPECT_EQ(scheduler.stats().preemptions, 1);
  EXPECT_EQ(scheduler.num_waiting(), 1);
  for (const ScheduledBatch::SampleSlot& draw : plan.sample_slots) scheduler.append(draw.sequence, 1);
  scheduler.finish(ids[0]);

  scheduler.plan();  // the third one needs 2 blocks besides the prompt's; it will not grow
  ASSERT_EQ(plan.sequences, (std::vector<SequenceId>{ids[1], ids[2]}));
  EXPECT_EQ(plan.num_rows(), 1 + 17);
  EXPECT_EQ(plan.positions[1], 32);
  EXPECT_EQ(scheduler.stats().recomputed_tokens, 16);
  EXPECT_EQ(scheduler.pool().reference_count(0), 2);
  scheduler.check_invariants();
}

TEST(Scheduler, PlansAheadOfTheTokens) {
  Scheduler scheduler({.num_blocks = 64, .max_batch_tokens = 64, .max_running = 8, .lookahead = 1});
  const std::vector<SequenceId> ids = scheduler.add_group(rl::make_prompt(iota_prompt(4)), alike(2, 7));
  const ScheduledBatch& plan = scheduler.plan();
  EXPECT_EQ(plan.sample_slots[1].position, 0);
  scheduler.plan();
  EXPECT_EQ(plan.token_ids, (std::vector<int32_t>{-1, -2}));
  EXPECT_EQ(plan.positions, (std::vector<int32_t>{4, 4}));
  EXPECT_EQ(plan.sample_slots[1].position, 1);
  EXPECT_THROW(scheduler.plan(), BugError) << "two plans ahead";
}

TEST(Scheduler, DropsWhatIsDrawnForASequenceThatHasEnded) {
  Scheduler scheduler({.num_blocks = 64, .max_batch_tokens = 64, .max_running = 8, .lookahead = 1});
  const std::vector<SequenceId> ids = scheduler.add_group(rl::make_prompt(iota_prompt(4)), alike(2, 7));
  const ScheduledBatch& plan = scheduler.plan();
  scheduler.plan();
  EXPECT_TRUE(scheduler.append(ids[0], 7));
  EXPECT_TRUE(scheduler.append(ids[1], 8));
  scheduler.finish(ids[0]);

  scheduler.plan();  // its draws are the third tokens; the second ones are not there
  EXPECT_EQ(plan.sequences, (std::vector<SequenceId>{ids[1]}));
  EXPECT_EQ(plan.token_ids, (std::vector<int32_t>{-2}));
  EXPECT_FALSE(scheduler.append(ids[0], 7));
  EXPECT_TRUE(scheduler.append(ids[1], 8));
  scheduler.check_invariants();

  scheduler.plan();  // with the third token the sequence is full
  EXPECT_TRUE(plan.empty());
  EXPECT_FALSE(scheduler.idle());
  EXPECT_TRUE(scheduler.append(ids[1], 8));
  scheduler.finish(ids[1]);
  EXPECT_TRUE(scheduler.idle());
  scheduler.check_invariants();
}

// A sequence's id is not given out again while its last draw is in flight.
TEST(Scheduler, KeepsTheIdsOfDrawsThatAreNotAnswered) {
  Scheduler scheduler({.num_blocks = 64, .max_batch_tokens = 64, .max_running = 8, .lookahead = 1});
  const SequenceId first = scheduler.add_group(rl::make_prompt(iota_prompt(4)), alike(1, 9))[0];
  scheduler.plan();
  scheduler.plan();
  scheduler.append(first, 7);
  scheduler.finish(first);
  const SequenceId second = scheduler.add_group(rl::make_prompt(iota_prompt(4)), alike(1, 9))[0];
  EXPECT_NE(second, first);
  EXPECT_FALSE(scheduler.append(first, 7));
  EXPECT_EQ(scheduler.add_group(rl::make_prompt(iota_prompt(4)), alike(1, 9))[0], first);
  scheduler.check_invariants();
}

TEST(Scheduler, AnswersOnlyForWhatItPlanned) {
  Scheduler scheduler({.num_blocks = 4, .max_batch_tokens = 8, .max_running = 8});
  EXPECT_TRUE(scheduler.fits(4 * 16 + 1));  // the last token needs no KV
  EXPECT_FALSE(scheduler.fits(4 * 16 + 2));
  const SequenceId id = scheduler.add_group(rl::make_prompt(iota_prompt(8)), alike(1, 10))[0];
  EXPECT_THROW(scheduler.append(id, 1), BugError);
  EXPECT_THROW(scheduler.finish(id), BugError);
  scheduler.plan();
  EXPECT_THROW(scheduler.plan(), BugError);
  scheduler.append(id, 1);
  EXPECT_THROW(scheduler.append(id, 1), BugError);
}

// A scheduler with one sequence that decodes: its prompt of `prompt_tokens` and a first token, 7.
struct OneSequence {
  OneSequence(const SchedulerConfig& config, int32_t prompt_tokens, int64_t max_tokens) : scheduler(config) {
    id = scheduler.add_group(rl::make_prompt(iota_prompt(prompt_tokens)), alike(1, max_tokens))[0];
    scheduler.plan();
    scheduler.append(id, 7);
  }
  // Answers the last plan's draws until one is dropped, and expects that the rest is dropped too. Returns how many were
  // taken.
  int64_t answer(const std::vector<int32_t>& tokens) {
    int64_t num_taken = 0;
    for (size_t i = 0; i < tokens.size(); ++i) {
      const bool is_taken = scheduler.append(id, tokens[i]);
      EXPECT_TRUE(!is_taken || num_taken == static_cast<int64_t>(i));
      num_taken += is_taken ? 1 : 0;
      scheduler.check_invariants();
    }
    return num_taken;
  }

  Scheduler scheduler;
  SequenceId id = 0;
};

TEST(Scheduler, DrawsAfterEachDraftAndTakesThemAsFarAsDraftsAreRight) {
  OneSequence one({.num_blocks = 8, .max_batch_tokens = 16, .max_running = 4, .lookahead = 1}, 4, 60);
  const ScheduledBatch& plan = one.scheduler.plan({{one.id, {20, 21, 22}}});
  EXPECT_EQ(plan.token_ids, (std::vector<int32_t>{7, 20, 21, 22}));
  EXPECT_EQ(plan.positions, (std::vector<int32_t>{4, 5, 6, 7}));
  EXPECT_EQ(plan.sequences, std::vector<SequenceId>{one.id});
  EXPECT_EQ(plan.logits_rows, (std::vector<int32_t>{0, 1, 2, 3}));
  ASSERT_EQ(plan.sample_slots.size(), 4U);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(plan.sample_slots[i].position, 1 + static_cast<int32_t>(i));
    EXPECT_EQ(plan.sample_slots[i].is_after_draft, i > 0);
  }
  EXPECT_THROW(one.scheduler.plan(), BugError) << "draws of drafts are answered before the next plan";
  EXPECT_EQ(one.answer({20, 99, 22, 23}), 2) << "21 was wrong, so what was drawn after it is nothing";
  one.scheduler.plan({{one.id, {30, 31}}});
  EXPECT_EQ(plan.token_ids, (std::vector<int32_t>{99, 30, 31}));
  EXPECT_EQ(plan.positions, (std::vector<int32_t>{6, 7, 8}));
  EXPECT_EQ(one.answer({30, 31, 32}), 3);
  one.scheduler.plan();
  EXPECT_EQ(plan.token_ids, std::vector<int32_t>{32});
  EXPECT_EQ(plan.positions, std::vector<int32_t>{9});
  EXPECT_THROW(one.scheduler.plan({{one.id, {1}}}), BugError) << "a draft follows a token that is known";
}

TEST(Scheduler, DropsDraftsOfASequenceThatEndsAmongThem) {
  OneSequence one({.num_blocks = 8, .max_batch_tokens = 16, .max_running = 4}, 14, 60);
  one.scheduler.plan({{one.id, {20, 21, 22, 23}}});
  EXPECT_TRUE(one.scheduler.append(one.id, 20));
  EXPECT_TRUE(one.scheduler.append(one.id, 21));
  one.scheduler.finish(one.id);
  one.scheduler.check_invariants();
  EXPECT_EQ(one.scheduler.pool().num_used(), 0);
  const SequenceId other = one.scheduler.add_group(rl::make_prompt(iota_prompt(4)), alike(1, 9))[0];
  EXPECT_NE(other, one.id) << "an id is not given out while draws of its sequence are not answered";
  EXPECT_EQ(one.answer({22, 23, 24}), 0);
  EXPECT_EQ(one.scheduler.add_group(rl::make_prompt(iota_prompt(4)), alike(1, 9))[0], one.id);
}

TEST(Scheduler, CutsDraftsAtLengthRowsAndFreeBlocks) {
  const std::vector<int32_t> ten(10, 20);
  OneSequence full({.num_blocks = 8, .max_batch_tokens = 64, .max_running = 4}, 4, 9);
  EXPECT_EQ(full.scheduler.plan({{full.id, ten}}).num_rows(), 4) << "the ninth token is drawn from the eighth row";
  OneSequence narrow({.num_blocks = 8, .max_batch_tokens = 3, .max_running = 1}, 3, 60);
  EXPECT_EQ(narrow.scheduler.plan({{narrow.id, ten}}).num_rows(), 3);
  // The 13th token lies in the first of two blocks; the second stays free for a sequence that may need it.
  OneSequence tight({.num_blocks = 2, .max_batch_tokens = 64, .max_running = 4}, 12, 30);
  EXPECT_EQ(tight.scheduler.plan({{tight.id, ten}}).num_rows(), 4);
  EXPECT_EQ(tight.answer({20, 20, 20, 20}), 4);
  EXPECT_EQ(tight.scheduler.pool().num_used(), 1);
  EXPECT_EQ(tight.scheduler.plan({{tight.id, ten}}).num_rows(), 11) << "it has the second block now";
  // Blocks that only wrong drafts have are free again.
  OneSequence roomy({.num_blocks = 8, .max_batch_tokens = 64, .max_running = 4}, 12, 60);
  roomy.scheduler.plan({{roomy.id, ten}});
  EXPECT_EQ(roomy.scheduler.pool().num_used(), 2);
  EXPECT_EQ(roomy.answer(std::vector<int32_t>(11, 21)), 1);
  EXPECT_EQ(roomy.scheduler.pool().num_used(), 1);
}

}  // namespace
}  // namespace tandem::rollout
