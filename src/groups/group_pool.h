// Groups from draw to taken. Samples wait in the pool until a sampler asks for some, are then on loan to it, and come
// back; a group whose samples are all there is lent once more, to be graded. Each sample is used once, whoever is lost
// or slow: what a lost sampler had waits again. With a token budget for each loan a sample may come back unfinished: it
// then rests until the next phase begins. A pool may outlive a rollout. One thread, no torch, no sockets.
//
// Loans are of samples, not of groups: the samples of a group are alike in length, so an engine with all of a long
// group has many long tails. Among S samplers each gets at most ceil(n / S) of a group's n samples, as long as others
// wait, and fewer have a part of it where its prompt is long, since each of them prefills it. A group whose length is
// certain is lent whole, so that one sampler prefills its prompt: such groups are dealt so that the samplers have about
// as many tokens to sample. Whoever samples or grades changes no bit of a sample.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "groups/group.h"

namespace tandem::groups {

// Lengths that are known of a group before it is sampled, in tokens.
struct GroupLength {
  int64_t completion = 0;   // the prompt's longest completion when it was sampled last; else that of an average group
  int64_t prompt = 0;       // the prompt's own
  bool is_certain = false;  // completions will most likely have about that length
};

class GroupPool {
 public:
  // Each group has `samples_per_group` samples. Unless `is_graded`, a group is done when it is sampled.
  GroupPool(int64_t samples_per_group, bool is_graded);

  // Adds a group that was drawn, whose samples then wait. No other group has its number. The line is borrowed.
  void open(size_t number, const session::PromptLine& line, const GroupLength& length = {});
  // Adds a group that was drawn, whose samples rest until the next phase.
  void open_resting(size_t number, const session::PromptLine& line, const GroupLength& length = {});
  // Adds a group with what its members have. Those that are paused rest, others have ended; if all have, it is done or,
  // without grades, waits to be graded.
  void put_back(size_t number, Group group, const GroupLength& length = {});
  // Begins a phase: samples that rest wait again. `budget_of` says how many more tokens a sample gets at most in this
  // phase, or 0: it goes on resting. Without the function a sample gets as many as it may have.
  using BudgetOf = std::function<int64_t(size_t group, size_t member)>;
  void begin_phase(const BudgetOf& budget_of = {});
  // Ends a phase early: samples that wait rest, and those that are on loan may come back unfinished.
  void end_phase();
  // Returns whether nothing waits or is on loan, so that a phase is over.
  bool has_loans() const { return !loans_.empty(); }
  bool is_idle() const { return loans_.empty() && waiting_.empty() && waits_for_grading_.empty(); }

  // Adds a sampler, or takes one away for good: what it had on loan waits again. lost() returns how many loans it had.
  void join(SamplerId sampler);
  int64_t lost(SamplerId sampler);

  // Lends up to `num_samples` waiting samples of one group: the group that is expected to take longest among those that
  // this sampler does not have its share of yet. Groups of certain length are dealt by their tokens: the longest are
  // left to samplers that had fewer, one for each, as long as others wait. Returns nullopt if none waits, or if this
  // sampler would have more than an even share while others are behind.
  std::optional<SampleLoan> lend(SamplerId sampler, int64_t num_samples);
  // Lends every group whose samples are all there to the sampler that sampled most of it.
  std::vector<std::pair<SamplerId, GradeLoan>> lend_grading();

  // Takes back what a sampler has made of a loan. Returns false if the loan is not wanted any more, or was never lent
  // to this sampler. Throws EnvironmentError if the result does not fit the loan, which then stays on loan.
  bool take_back(SamplerId sampler, SampledLoan loan);
  bool take_back(SamplerId sampler, GradedLoan loan);

  // Drops a group that is not wanted any more. Returns the loans to end, each with its sampler.
  std::vector<std::pair<SamplerId, uint64_t>> abort(size_t group);
  void abort_all();

  // Returns groups that are done (graded, or sampled if nothing is graded), each once, in the order in which they
  // became so.
  std::vector<size_t> take_done() { return std::exchange(done_, {}); }
  Group& group(size_t number) { return groups_.at(number).group; }
  const Group& group(size_t number) const { return groups_.at(number).group; }
  // Takes a group out of the pool that is done.
  Group take(size_t number);
  // Removes a group that rests.
  void forget(size_t number);

  size_t num_groups() const { return groups_.size(); }
  int64_t num_samplers() const { return static_cast<int64_t>(samplers_.size()); }
  int64_t num_loans(SamplerId sampler) const;
  int64_t num_sampled() const { return num_sampled_; }  // groups, so far
  int64_t num_graded() const { return num_graded_; }    // samples, so far
  int64_t num_cut() const { return num_cut_; }          // aborted groups that had begun and not ended

 private:
  enum class State : uint8_t { kSampling, kWaitsForGrading, kGrading, kDone, kAborted };
  struct Pooled {
    Group group;
    GroupLength length;
    State state = State::kSampling;
    std::vector<size_t> waiting;                          // members, the last one is lent first
    std::vector<int64_t> budgets;                         // in this phase, one for each member, or empty
    size_t num_there = 0;                                 // members that have ended
    std::vector<std::pair<SamplerId, int64_t>> samplers;  // its members' in this phase, and how many each has or had
  };
  struct Loan {
    SamplerId sampler = 0;
    size_t group = 0;
    std::vector<size_t> members;  // empty: the loan is a grading
    bool has_budgets = false;
    int64_t num_tokens = 0;  // expected of its completions
  };
  struct Sampler {
    std::set<uint64_t> loans;                  // keys
    int64_t tokens_lent = 0, tokens_back = 0;  // expected of all its loans so far, and of those that have ended
  };
  // Says which part a sampler may have in the groups of certain length.
  struct Deal {
    int64_t num_behind = 0;                                     // samplers that have fewer tokens
    int64_t most_tokens = std::numeric_limits<int64_t>::max();  // up to an even share of all, if anybody is behind
  };
  // The group that is expected to take longest comes first.
  struct Order {
    GroupLength length;
    size_t group;
    bool operator<(const Order& other) const;
  };

  Order order_of(size_t group) const;
  int64_t share(const GroupLength& length) const;
  Deal deal_for(const Sampler& sampler) const;
  int64_t expected_tokens(size_t group, size_t num_samples) const;
  void wait_again(size_t group, std::span<const size_t> members);
  const Loan* loan_of(SamplerId sampler, uint64_t key) const;
  Loan end_loan(uint64_t key);
  void members_are_there(size_t group);
  SamplerId grader_of(const Pooled& pooled) const;

  const size_t samples_per_group_;
  const bool is_graded_;
  std::map<size_t, Pooled> groups_;        // by number
  std::set<Order> waiting_;                // groups with waiting members
  std::vector<size_t> waits_for_grading_;  // groups
  std::map<uint64_t, Loan> loans_;         // by key
  std::map<SamplerId, Sampler> samplers_;
  std::vector<size_t> done_;
  uint64_t last_key_ = 0;
  bool is_ending_ = false;          // the phase ends before its budgets are used up
  int64_t num_waiting_tokens_ = 0;  // expected of what waits
  int64_t num_sampled_ = 0, num_graded_ = 0, num_cut_ = 0;
};

}  // namespace tandem::groups
