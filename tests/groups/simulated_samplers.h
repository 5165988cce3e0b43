// Samplers of a pool that compute nothing: draws decide what they make of a loan, and the test decides when. The
// samples of group g have the ids from g * n on, and say so in their texts.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "groups/group_pool.h"

namespace tandem::groups {

// The numbers of the stream that a seed names.
class Numbers {
 public:
  explicit Numbers(uint64_t seed) : seed_(seed) {}
  int64_t below(int64_t end) {
    return static_cast<int64_t>(base::uniform(seed_, 0, next_++) * static_cast<double>(end));
  }
  bool chance(int64_t percent) { return below(100) < percent; }

 private:
  uint64_t seed_, next_ = 0;
};

inline const session::PromptLine& line() {
  static const session::PromptLine one = {.record = {}, .prompt = rl::make_prompt({1, 2, 3})};
  return one;
}

// Returns the answer to a loan whose members are as they were lent.
inline SampledLoan sampled(const SampleLoan& loan, int64_t n) {
  SampledLoan result = {.key = loan.key, .members = {}};
  for (size_t i = 0; i < loan.count; ++i) {
    Member& member = result.members.emplace_back();
    member.sample.sample_id = loan.group * static_cast<uint64_t>(n) + loan.first + i;
    member.sample.text = "sample " + std::to_string(member.sample.sample_id);
    if (loan.begun.empty()) continue;
    member.sample.completion = loan.begun[i].tokens;
    member.sample.versions = loan.begun[i].versions;
  }
  return result;
}
inline SampledLoan sampled(const std::optional<SampleLoan>& loan, int64_t n) { return sampled(loan.value(), n); }

inline GradedLoan graded(const GradeLoan& loan, bool is_kept = true) {
  GradedLoan result = {.key = loan.key, .graded = {}};
  result.graded.verdict.is_kept = is_kept;
  result.graded.is_judged = true;
  if (!is_kept) return result;
  for (const Member& member : loan.members) {
    reward::Grade& grade = result.graded.grades.emplace_back();
    grade.sample_id = member.sample.sample_id;
    grade.reason = "grade of " + member.sample.text;
  }
  return result;
}

// A loan that is not answered yet: samples, or the grading of a group.
struct Work {
  SamplerId sampler = 0;
  std::optional<SampleLoan> samples = {};
  std::optional<GradeLoan> grading = {};
  std::vector<int64_t> num_tokens = {};  // of each sample so far
  int64_t due = 0;                       // for the test's clock
};

class SimulatedSamplers {
 public:
  struct Draws {
    int64_t n = 1;                                               // samples of a group
    std::function<int64_t(size_t group, size_t member)> length;  // tokens that a sample ends with
    std::function<bool(size_t group)> is_kept;
  };
  // The pool is borrowed.
  SimulatedSamplers(GroupPool& pool, Draws draws) : pool_(pool), draws_(std::move(draws)) {}

  const std::set<SamplerId>& ids() const { return ids_; }
  // Adds a sampler, numbered from 0.
  SamplerId join() {
    pool_.join(next_);
    return *ids_.insert(next_++).first;
  }
  // Gives a sampler up. Returns its work, which it may still answer and which nobody wants.
  std::vector<Work> lose(SamplerId sampler) {
    ids_.erase(sampler);
    const int64_t num_loans = pool_.num_loans(sampler);
    EXPECT_EQ(pool_.lost(sampler), num_loans);
    EXPECT_EQ(pool_.num_loans(sampler), 0);
    return take_if([sampler](const Work& work) { return work.sampler == sampler; });
  }

  // Borrows up to so many samples for one sampler. Returns the work, until the next call, or null if it got none.
  Work* borrow(SamplerId sampler, int64_t num_samples) {
    std::optional<SampleLoan> loan = pool_.lend(sampler, num_samples);
    if (!loan) return nullptr;
    Work& work = work_.emplace_back(Work{.sampler = sampler, .samples = std::move(loan)});
    for (size_t i = 0; i < work.samples->count; ++i)
      work.num_tokens.push_back(work.samples->begun.empty() ? 0 : std::ssize(work.samples->begun[i].tokens));
    return &work;
  }
  // Borrows all gradings, each for the sampler that the pool chooses. Returns them until the next call.
  std::span<Work> borrow_gradings() {
    const size_t before = work_.size();
    for (auto& [sampler, loan] : pool_.lend_grading()) {
      EXPECT_TRUE(ids_.contains(sampler)) << "a grading for nobody";
      work_.push_back({.sampler = sampler, .grading = std::move(loan)});
    }
    return std::span(work_).subspan(before);
  }

  int64_t num_borrowed_samples(SamplerId sampler) const {
    int64_t sum = 0;
    for (const Work& work : work_) sum += work.sampler == sampler ? std::ssize(work.num_tokens) : 0;
    return sum;
  }

  // Asks about all work, oldest first. Removes and returns what `is_done`, which may change it before.
  template <typename IsDone>
  std::vector<Work> take_if(IsDone is_done) {
    const auto first = std::ranges::stable_partition(work_, [&](Work& work) { return !is_done(work); }).begin();
    std::vector<Work> done(std::make_move_iterator(first), std::make_move_iterator(work_.end()));
    work_.erase(first, work_.end());
    return done;
  }

  // Answers for a sampler: samples have the tokens that the work says, the new ones by the weights of `version`, and
  // are paused if they have not ended. Returns whether the pool wanted the answer.
  bool answer(SamplerId sampler, const Work& work, int64_t version = 0) {
    if (work.grading) return pool_.take_back(sampler, graded(*work.grading, draws_.is_kept(work.grading->group)));
    SampledLoan loan = sampled(*work.samples, draws_.n);
    const auto newest = static_cast<uint64_t>(version);
    for (size_t i = 0; i < loan.members.size(); ++i) {
      Member& member = loan.members[i];
      std::vector<rl::VersionSpan>& versions = member.sample.versions;
      const int64_t begin = std::ssize(member.sample.completion), end = work.num_tokens[i];
      if (end > begin && (versions.empty() || versions.back().version != newest))
        versions.push_back({.begin = begin, .version = newest});
      member.sample.completion.resize(static_cast<size_t>(end));
      member.is_paused = end < draws_.length(work.samples->group, work.samples->first + i);
    }
    return pool_.take_back(sampler, std::move(loan));
  }

 private:
  GroupPool& pool_;
  const Draws draws_;
  std::set<SamplerId> ids_;
  std::vector<Work> work_;
  SamplerId next_ = 0;
};

}  // namespace tandem::groups
