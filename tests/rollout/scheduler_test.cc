// Tests of the scheduler against a fake forward whose KV is a hash of the history: wrong sharing or copying shows.
#include "rollout/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tandem/error.h"
#include "tests/rollout/fake_forward.h"

namespace tandem::rollout {
namespace {

constexpr int32_t kVocab = 150;
constexpr int32_t kEos = 0;

int32_t draw_token(uint64_t hash, uint64_t sample) { return static_cast<int32_t>(mix(hash, sample) % kVocab); }

// Returns the whole sequence, computed without a scheduler.
std::vector<int32_t> reference_sequence(std::vector<int32_t> tokens, uint64_t sample, size_t max_tokens) {
  uint64_t hash = kEmptyHistory;
  for (const int32_t token : tokens) hash = mix(hash, static_cast<uint64_t>(token));
  while (tokens.size() < max_tokens) {
    tokens.push_back(draw_token(hash, sample));
    if (tokens.back() == kEos) break;
    hash = mix(hash, static_cast<uint64_t>(tokens.back()));
  }
  return tokens;
}

std::vector<int32_t> iota_prompt(int32_t length) {
  std::vector<int32_t> prompt(static_cast<size_t>(length));
  std::iota(prompt.begin(), prompt.end(), 1);
  return prompt;
}

std::vector<NewSequence> alike(size_t count, int64_t max_tokens) {
  return std::vector<NewSequence>(count, {.max_tokens = max_tokens});
}

// A scheduler, the fake forward and the true history of every sequence.
class Workload {
 public:
  explicit Workload(const SchedulerConfig& config) : config_(config), scheduler_(config), forward_(config.num_blocks) {}

  // A sample to add: how many tokens it has already, unless it ends before, and how many it may get.
  struct Added {
    int64_t num_begun = 0, budget = 0;
  };
  std::vector<SequenceId> add(const std::vector<int32_t>& prompt, const std::vector<Added>& samples) {
    std::vector<NewSequence> sequences;
    for (size_t i = 0; i < samples.size(); ++i) {
      std::vector<int32_t> begun =
          reference_sequence(prompt, next_sample_ + i, prompt.size() + static_cast<size_t>(samples[i].num_begun));
      begun.erase(begun.begin(), begun.begin() + std::ssize(prompt));
      if (!begun.empty() && begun.back() == kEos) begun.pop_back();
      sequences.push_back(
          {.max_tokens = std::ssize(prompt) + std::ssize(begun) + samples[i].budget, .generated = std::move(begun)});
    }
    const std::vector<SequenceId> ids = scheduler_.add_group(rl::make_prompt(prompt), sequences);
    for (size_t i = 0; i < ids.size(); ++i) {
      std::vector<int32_t>& history = histories_[ids[i]];
      EXPECT_TRUE(history.empty());
      history = prompt;
      history.insert(history.end(), sequences[i].generated.begin(), sequences[i].generated.end());
      num_begun_ += std::ssize(sequences[i].generated);
      origins_[ids[i]] = {.prompt = prompt,
                          .sample = next_sample_++,
                          .max_tokens = static_cast<size_t>(sequences[i].max_tokens),
                          .group = ids};
    }
    return ids;
  }
  std::vector<SequenceId> add(const std::vector<int32_t>& prompt, int64_t num_samples, int64_t max_new) {
    return add(prompt, std::vector<Added>(static_cast<size_t>(num_samples), {.budget = max_new}));
  }

  SequenceId add_turn(const std::vector<int32_t>& prompt, const PrefixOwner& owner, int64_t max_new) {
    const auto max_tokens = static_cast<int64_t>(prompt.size()) + max_new;
    const SequenceId id = scheduler_.add_owned(rl::make_prompt(prompt), owner, {.max_tokens = max_tokens});
    EXPECT_FALSE(histories_.contains(id));
    histories_[id] = prompt;
    origins_[id] = {.prompt = prompt,
                    .sample = next_sample_++,
                    .max_tokens = static_cast<size_t>(max_tokens),
                    .group = {id},
                    .owner = owner};
    return id;
  }

  // A turn that has ended and was not taken: its owner, and all its tokens.
  using Turn = std::pair<PrefixOwner, std::vector<int32_t>>;
  std::vector<Turn> take_turns() { return std::exchange(turns_, {}); }

  // Runs one forward, whose draws are answered after it, or after the next one with lookahead. Returns false when
  // nothing was left.
  bool step() {
    forward_.poison_free_blocks(scheduler_.pool());
    const ScheduledBatch& plan = scheduler_.plan();
    scheduler_.check_invariants();
    if (plan.empty()) return answer_all();
    EXPECT_LE(plan.num_rows(), config_.max_batch_tokens);
    const std::vector<uint64_t> hashes = forward_.run(plan, last_drawn_, histories_);
    last_drawn_.clear();
    std::vector<Answer> answers;
    for (const ScheduledBatch::SampleSlot& draw : plan.sample_slots) {
      const Origin& origin = origins_.at(draw.sequence);
      std::vector<int32_t>& history = histories_.at(draw.sequence);
      EXPECT_EQ(history.size(), origin.prompt.size() + static_cast<size_t>(draw.position));
      const int32_t token = draw_token(hashes[static_cast<size_t>(draw.logits_index)], origin.sample);
      history.push_back(token);
      last_drawn_.push_back(token);
      answers.push_back({.sequence = draw.sequence, .token = token, .length = history.size()});
    }
    in_flight_.push_back(std::move(answers));
    while (static_cast<int64_t>(in_flight_.size()) > config_.lookahead) answer();
    return true;
  }

  // Returns false when everything was answered.
  bool answer_all() {
    if (in_flight_.empty()) return false;
    while (!in_flight_.empty()) answer();
    return true;
  }

  // Answers the draws of the oldest forward.
  void answer() {
    const std::vector<Answer> answers = std::move(in_flight_.front());
    in_flight_.pop_front();
    for (const Answer& answer : answers) {
      const Origin origin = origins_.at(answer.sequence);
      const bool ended_before = ended_.contains(answer.sequence);
      EXPECT_EQ(scheduler_.append(answer.sequence, answer.token), !ended_before);
      if (ended_before) {
        ++num_dropped_;
        forget(answer.sequence);
        continue;
      }
      if (answer.token != kEos && answer.length < origin.max_tokens) continue;
      std::vector<int32_t> history = histories_.at(answer.sequence);
      history.resize(answer.length);  // drops tokens drawn before anybody knew the end
      EXPECT_EQ(history, reference_sequence(origin.prompt, origin.sample, origin.max_tokens));
      if (origin.owner) turns_.emplace_back(*origin.owner, history);
      scheduler_.finish(answer.sequence);
      ++num_finished_;
      if (is_in_flight(answer.sequence)) {
        ended_.insert(answer.sequence);
      } else {
        forget(answer.sequence);
      }
    }
    scheduler_.check_invariants();
  }

  void run_to_end() {
    while (step()) {
    }
    EXPECT_TRUE(scheduler_.idle());
    EXPECT_TRUE(ended_.empty());
    EXPECT_EQ(scheduler_.pool().num_used(), 0);
    EXPECT_TRUE(histories_.empty());
  }

  void abort_group_of(SequenceId id) {
    answer_all();
    if (!origins_.contains(id)) return;  // the sequence has ended already
    const std::vector<SequenceId> group = origins_.at(id).group;
    scheduler_.finish_group(id);
    for (const SequenceId member : group) forget(member);
    scheduler_.check_invariants();
  }

  std::optional<SequenceId> any_sequence(std::mt19937& random) const {
    if (histories_.empty()) return std::nullopt;
    std::vector<SequenceId> ids;
    for (const auto& [id, history] : histories_) ids.push_back(id);
    std::sort(ids.begin(), ids.end());
    return ids[random() % ids.size()];
  }

  const Scheduler& scheduler() const { return scheduler_; }
  Scheduler& scheduler() { return scheduler_; }
  int64_t num_finished() const { return num_finished_; }
  int64_t num_dropped() const { return num_dropped_; }  // draws of sequences that had ended
  int64_t num_begun() const { return num_begun_; }      // tokens that sequences were added with

 private:
  struct Answer {
    SequenceId sequence = 0;
    int32_t token = 0;
    size_t length = 0;  // length of the sequence, with this token
  };
  struct Origin {
    std::vector<int32_t> prompt;
    uint64_t sample = 0;
    size_t max_tokens = 0;
    std::vector<SequenceId> group;
    std::optional<PrefixOwner> owner = std::nullopt;
  };

  bool is_in_flight(SequenceId id) const {
    return std::any_of(in_flight_.begin(), in_flight_.end(), [id](const std::vector<Answer>& answers) {
      return std::any_of(answers.begin(), answers.end(), [id](const Answer& a) { return a.sequence == id; });
    });
  }

  void forget(SequenceId id) {
    histories_.erase(id);
    origins_.erase(id);
    ended_.erase(id);
  }

  SchedulerConfig config_;
  Scheduler scheduler_;
  FakeForward forward_;
  std::unordered_map<SequenceId, std::vector<int32_t>> histories_;
  std::unordered_map<SequenceId, Origin> origins_;
  std::deque<std::vector<Answer>> in_flight_;  // answers of each forward in flight
  std::vector<int32_t> last_drawn_;            // tokens of the last forward
  std::set<SequenceId> ended_;                 // ended sequences with a draw in flight
  std::vector<Turn> turns_;
  uint64_t next_sample_ = 0;
  int64_t num_finished_ = 0, num_dropped_ = 0, num_begun_ = 0;
};

class SchedulerLookahead : public testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(Lookahead, SchedulerLookahead, testing::Values(0, 1), testing::PrintToStringParamName());

TEST_P(SchedulerLookahead, KeepsEveryHistoryUnderRandomWorkloads) {
  SchedulerStats total;
  int64_t num_dropped = 0;
  for (uint32_t seed = 1; seed <= 120; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const auto up_to = [&random](int64_t n) { return 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
    const int64_t num_blocks = 12 + up_to(12);
    Workload workload(
        {.num_blocks = num_blocks, .max_batch_tokens = up_to(60), .max_running = up_to(24), .lookahead = GetParam()});
    const int64_t num_groups = up_to(12);
    int64_t num_added = 0;
    while (num_added < num_groups || !workload.scheduler().idle()) {
      const uint64_t action = random() % 400;
      if (num_added < num_groups && action < 40) {
        std::vector<int32_t> prompt(static_cast<size_t>(up_to(60)));
        for (int32_t& token : prompt) token = static_cast<int32_t>(random() % kVocab);
        workload.add(prompt, up_to(6), up_to(132));  // at most 192 tokens: 12 blocks
        ++num_added;
      } else if (action == 40) {
        if (const auto id = workload.any_sequence(random)) workload.abort_group_of(*id);
      } else {
        workload.step();
      }
      if (testing::Test::HasFailure()) return;
    }
    workload.run_to_end();
    const SchedulerStats& stats = workload.scheduler().stats();
    num_dropped += workload.num_dropped();
    total.preemptions += stats.preemptions;
    total.copies_on_write += stats.copies_on_write;
    total.recomputed_tokens += stats.recomputed_tokens;
    total.shared_prompt_tokens += stats.shared_prompt_tokens;
  }
  // The workloads reach the cases that they are meant to test.
  EXPECT_GT(total.preemptions, 100);
  EXPECT_GT(total.copies_on_write, 500);
  EXPECT_GT(total.recomputed_tokens, 1000);
  EXPECT_GT(total.shared_prompt_tokens, 1000);
  EXPECT_EQ(num_dropped > 100, GetParam() > 0) << num_dropped;
}

// Groups of samples with tokens already and without, each with a budget of its own, in a cache that is too small for
// all of them: every history is right, and a begun token is prefilled once, unless its blocks are given up.
TEST_P(SchedulerLookahead, KeepsEveryHistoryOfBegunSequences) {
  SchedulerStats total;
  int64_t num_begun = 0, num_begun_preempted = 0;
  for (uint32_t seed = 1; seed <= 120; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const auto below = [&random](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
    Workload workload({.num_blocks = 12 + below(8),
                       .max_batch_tokens = 8 + below(60),
                       .max_running = 4 + below(20),
                       .lookahead = GetParam()});
    const bool all_begun = seed % 2 == 1;
    int64_t num_left = 1 + below(12);
    while (num_left > 0 || !workload.scheduler().idle()) {
      if (num_left > 0 && below(10) == 0) {
        std::vector<int32_t> prompt(static_cast<size_t>(1 + below(24)));
        for (int32_t& token : prompt) token = static_cast<int32_t>(below(kVocab));
        std::vector<Workload::Added> samples;  // at most 192 tokens each: 12 blocks
        for (int64_t n = 1 + below(6); n > 0; --n)
          samples.push_back({.num_begun = !all_begun && below(2) == 0 ? 0 : 1 + below(31),
                             .budget = below(4) == 0 ? 1 + below(4) : 64 + below(73)});
        workload.add(prompt, samples);
        --num_left;
      } else {
        workload.step();
      }
      if (testing::Test::HasFailure()) return;
    }
    workload.run_to_end();
    const SchedulerStats& stats = workload.scheduler().stats();
    EXPECT_EQ(stats.resumed_tokens, workload.num_begun());
    num_begun += workload.num_begun();
    total.preemptions += stats.preemptions;
    if (all_begun) num_begun_preempted += stats.preemptions;
    total.recomputed_tokens += stats.recomputed_tokens;
    total.shared_prompt_tokens += stats.shared_prompt_tokens;
  }
  EXPECT_GT(num_begun, 10000);
  EXPECT_GT(total.preemptions, 60);
  EXPECT_GT(num_begun_preempted, 30);
  EXPECT_GT(total.recomputed_tokens, 1000);
  EXPECT_GT(total.shared_prompt_tokens, 1000);
}

// There are conversations of groups that begin alike, with tools of any length between the turns, now and then a turn
// that goes back, and a cache that is too small for all of them. Every history is right, whatever was kept.
TEST_P(SchedulerLookahead, KeepsEveryHistoryOverTurns) {
  int64_t num_kept = 0, num_dropped = 0, num_shared = 0;
  for (uint32_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const int64_t num_blocks = 14 + static_cast<int64_t>(random() % 60);
    Workload workload({.num_blocks = num_blocks,
                       .max_batch_tokens = 1 + static_cast<int64_t>(random() % 90),
                       .max_running = 1 + static_cast<int64_t>(random() % 8),
                       .lookahead = GetParam()});
    const auto random_tokens = [&](size_t count) {
      std::vector<int32_t> tokens(count);
      for (int32_t& token : tokens) token = 1 + static_cast<int32_t>(random() % (kVocab - 1));
      return tokens;
    };
    std::map<uint64_t, int> turns_left;
    for (uint64_t group = 0; group < 3; ++group) {
      const std::vector<int32_t> prompt = random_tokens(1 + random() % 60);
      for (uint64_t i = 0; i < 3; ++i) {
        turns_left[group * 3 + i] = 1 + static_cast<int>(random() % 4);
        workload.add_turn(prompt, {.group_id = group, .sample_id = group * 3 + i},
                          1 + static_cast<int64_t>(random() % 20));
      }
      workload.add(random_tokens(1 + random() % 30), 2, 5);  // adds a group in one go beside them
    }
    while (workload.step()) {
      for (auto& [owner, history] : workload.take_turns()) {
        const size_t room = 200 - std::min<size_t>(history.size(), 200);
        if (--turns_left.at(owner.sample_id) == 0 || room < 2) {
          workload.scheduler().release_prefix(owner.sample_id);
          continue;
        }
        std::vector<int32_t> next = history;
        if (random() % 4 == 0) next.resize(1 + random() % history.size());
        const std::vector<int32_t> tool = random_tokens(random() % std::min<size_t>(room - 1, 40));
        next.insert(next.end(), tool.begin(), tool.end());
        workload.add_turn(next, owner, 1 + static_cast<int64_t>(random() % (200 - next.size() > 20 ? 20 : 1)));
      }
      if (std::optional<SequenceId> id = workload.any_sequence(random); id && random() % 60 == 0)
        workload.abort_group_of(*id);
    }
    workload.scheduler().release_prefixes();
    workload.run_to_end();
    num_kept += workload.scheduler().stats().kept_tokens;
    num_dropped += workload.scheduler().stats().kept_dropped;
    num_shared += workload.scheduler().stats().shared_prompt_tokens;
  }
  EXPECT_GT(num_kept, 1000);
  EXPECT_GT(num_dropped, 10);
  EXPECT_GT(num_shared, 100);
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

}  // namespace
}  // namespace tandem::rollout
