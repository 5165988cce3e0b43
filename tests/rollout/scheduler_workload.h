// A scheduler at work on a fake forward, whose KV is a hash of the history: wrong sharing or copying shows. Every
// sequence that ends is compared with the one that no scheduler had a part in.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <optional>
#include <random>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "rollout/scheduler.h"
#include "tests/rollout/fake_forward.h"

namespace tandem::rollout {

constexpr int32_t kVocab = 150;
constexpr int32_t kEos = 0;

inline int32_t draw_token(uint64_t hash, uint64_t sample) { return static_cast<int32_t>(mix(hash, sample) % kVocab); }

// Returns the whole sequence, computed without a scheduler.
inline std::vector<int32_t> reference_sequence(std::vector<int32_t> tokens, uint64_t sample, size_t max_tokens) {
  uint64_t hash = kEmptyHistory;
  for (const int32_t token : tokens) hash = mix(hash, static_cast<uint64_t>(token));
  while (tokens.size() < max_tokens) {
    tokens.push_back(draw_token(hash, sample));
    if (tokens.back() == kEos) break;
    hash = mix(hash, static_cast<uint64_t>(tokens.back()));
  }
  return tokens;
}

// A scheduler, the fake forward and the true history of every sequence.
class Workload {
 public:
  explicit Workload(const SchedulerConfig& config)
      : config_(config), scheduler_(config), forward_(config.num_blocks, config.kinds) {}

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

  // From now on sequences get drafts in some steps, of which so many in a hundred are right.
  void draft(uint32_t seed, uint32_t percent_right) {
    random_.emplace(seed);
    percent_right_ = percent_right;
  }

  // A turn that has ended and was not taken: its owner, and all its tokens.
  using Turn = std::pair<PrefixOwner, std::vector<int32_t>>;
  std::vector<Turn> take_turns() { return std::exchange(turns_, {}); }

  // Runs one forward, whose draws are answered after it, or after the next one with lookahead. Returns false when
  // nothing was left.
  bool step() {
    const bool drafts = random_ && (*random_)() % 2 == 0;
    if (drafts) answer_all();
    forward_.poison_free_blocks(scheduler_.pool());
    const ScheduledBatch& plan = drafts ? scheduler_.plan(draw_drafts()) : scheduler_.plan();
    scheduler_.check_invariants();
    if (plan.empty()) return answer_all();
    EXPECT_LE(plan.num_rows(), config_.max_batch_tokens);
    const std::vector<uint64_t> hashes = forward_.run(plan, last_drawn_, histories_);
    last_drawn_.clear();
    std::vector<Answer> answers;
    for (const ScheduledBatch::SampleSlot& draw : plan.sample_slots) {
      const Origin& origin = origins_.at(draw.sequence);
      std::vector<int32_t>& history = histories_.at(draw.sequence);
      const int32_t token = draw_token(hashes[static_cast<size_t>(draw.logits_index)], origin.sample);
      const int32_t row = plan.logits_rows[static_cast<size_t>(draw.logits_index)];
      num_drafts_ += draw.is_after_draft ? 1 : 0;
      // A draw counts if the draft before it counts and is what was drawn there.
      const bool is_dropped = draw.is_after_draft && (answers.back().is_dropped ||
                                                      answers.back().token != plan.token_ids[static_cast<size_t>(row)]);
      if (!is_dropped) {
        EXPECT_EQ(history.size(), origin.prompt.size() + static_cast<size_t>(draw.position));
        history.push_back(token);
        num_right_ += draw.is_after_draft ? 1 : 0;
      }
      last_drawn_.push_back(token);
      answers.push_back({.sequence = draw.sequence,
                         .token = token,
                         .length = history.size(),
                         .is_after_draft = draw.is_after_draft,
                         .is_dropped = is_dropped});
    }
    in_flight_.push_back(std::move(answers));
    while (drafts ? !in_flight_.empty() : static_cast<int64_t>(in_flight_.size()) > config_.lookahead) answer();
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
    for (size_t i = 0; i < answers.size(); ++i) {
      const Answer& answer = answers[i];
      const Origin origin = origins_.at(answer.sequence);
      const bool ended_before = ended_.contains(answer.sequence);
      EXPECT_EQ(scheduler_.append(answer.sequence, answer.token), !ended_before && !answer.is_dropped);
      const bool is_last = i + 1 == answers.size() || answers[i + 1].sequence != answer.sequence;
      if (ended_before) {
        num_dropped_ += answer.is_after_draft ? 0 : 1;
        if (is_last) forget(answer.sequence);
        continue;
      }
      if (answer.is_dropped) continue;
      if (answer.token != kEos && answer.length < origin.max_tokens) continue;
      std::vector<int32_t> history = histories_.at(answer.sequence);
      history.resize(answer.length);  // drops tokens drawn before anybody knew the end
      EXPECT_EQ(history, reference_sequence(origin.prompt, origin.sample, origin.max_tokens));
      if (origin.owner) turns_.emplace_back(*origin.owner, history);
      scheduler_.finish(answer.sequence);
      ++num_finished_;
      if (!is_last || is_in_flight(answer.sequence)) {
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
  int64_t num_dropped() const { return num_dropped_; }  // draws of sequences that had ended, without drafts
  int64_t num_drafts() const { return num_drafts_; }    // drafts that were planned
  int64_t num_right() const { return num_right_; }      // drafts that were drawn
  int64_t num_begun() const { return num_begun_; }      // tokens that sequences were added with

 private:
  struct Answer {
    SequenceId sequence = 0;
    int32_t token = 0;
    size_t length = 0;  // length of the sequence, with this token
    bool is_after_draft = false;
    bool is_dropped = false;  // drawn after a wrong draft
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

  // Guesses up to eight tokens of most running sequences. All draws are answered.
  Drafts draw_drafts() {
    Drafts drafts;
    for (const SequenceId id : scheduler_.running()) {
      std::vector<int32_t> tokens = histories_.at(id);
      const auto known = std::ssize(tokens);
      uint64_t hash = kEmptyHistory;
      for (const int32_t token : tokens) hash = mix(hash, static_cast<uint64_t>(token));
      for (uint32_t n = (*random_)() % 9; n > 0; --n) {
        const bool is_right = (*random_)() % 100 < percent_right_;
        tokens.push_back(is_right ? draw_token(hash, origins_.at(id).sample)
                                  : static_cast<int32_t>((*random_)() % kVocab));
        hash = mix(hash, static_cast<uint64_t>(tokens.back()));
      }
      drafts[id].assign(tokens.begin() + known, tokens.end());
    }
    return drafts;
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
  std::optional<std::mt19937> random_;  // for drafts; unset: none
  uint32_t percent_right_ = 0;
  int64_t num_drafts_ = 0, num_right_ = 0;
};

}  // namespace tandem::rollout
