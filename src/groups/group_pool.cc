#include "groups/group_pool.h"

#include <algorithm>
#include <numeric>
#include <tuple>

#include "base/check.h"

namespace tandem::groups {

namespace {

// Returns what a sample has so far, from which it goes on.
rl::Completion begun(const Member& member) {
  const rl::Sample& sample = member.sample;
  return {.sample_id = sample.sample_id,
          .tokens = sample.completion,
          .logprobs = sample.rollout_logprobs,
          .behavior_logprobs = sample.behavior_logprobs,
          .versions = sample.versions};
}

}  // namespace

bool GroupPool::Order::operator<(const Order& other) const {
  return std::tuple(-length.completion, -length.prompt, group) <
         std::tuple(-other.length.completion, -other.length.prompt, other.group);
}

GroupPool::GroupPool(int64_t samples_per_group, bool is_graded)
    : samples_per_group_(static_cast<size_t>(samples_per_group)), is_graded_(is_graded) {
  TANDEM_CHECK(samples_per_group > 0, samples_per_group);
}

GroupPool::Order GroupPool::order_of(size_t group) const {
  return {.length = groups_.at(group).length, .group = group};
}

void GroupPool::open(size_t number, const session::PromptLine& line, const GroupLength& length) {
  const auto [added, is_new] = groups_.try_emplace(number);
  TANDEM_CHECK(is_new, "a group with this number is in the pool already", number);
  Pooled& pooled = added->second;
  pooled.group.line = &line;
  pooled.group.members.resize(samples_per_group_);
  pooled.length = length;
  std::vector<size_t> members(samples_per_group_);
  std::iota(members.begin(), members.end(), size_t{0});
  wait_again(number, members);
}

void GroupPool::open_resting(size_t number, const session::PromptLine& line, const GroupLength& length) {
  Group group = {.line = &line, .members = std::vector<Member>(samples_per_group_), .graded = {}};
  for (Member& member : group.members) member.is_paused = true;
  put_back(number, std::move(group), length);
}

void GroupPool::put_back(size_t number, Group group, const GroupLength& length) {
  const auto [added, is_new] = groups_.try_emplace(number);
  TANDEM_CHECK(is_new && group.members.size() == samples_per_group_, number, group.members.size());
  Pooled& pooled = added->second;
  pooled.group = std::move(group);
  pooled.length = length;
  pooled.num_there =
      samples_per_group_ - static_cast<size_t>(std::ranges::count(pooled.group.members, true, &Member::is_paused));
  if (pooled.num_there < samples_per_group_) return;
  if (pooled.group.graded.grades.empty()) {
    members_are_there(number);
  } else {
    pooled.state = State::kDone;
  }
}

void GroupPool::begin_phase(const BudgetOf& budget_of) {
  TANDEM_CHECK(loans_.empty() && waiting_.empty(), "the phase before is not over");
  is_ending_ = false;
  for (auto& [number, pooled] : groups_) {
    pooled.budgets.clear();
    if (pooled.state != State::kSampling) continue;
    std::vector<size_t> woken;
    int64_t longest = 0;
    if (budget_of) pooled.budgets.resize(samples_per_group_);
    for (size_t i = 0; i < samples_per_group_; ++i) {
      if (!pooled.group.members[i].is_paused) continue;
      const int64_t budget = budget_of ? pooled.budgets[i] = budget_of(number, i) : 0;
      if (budget_of && budget == 0) continue;
      woken.push_back(i);
      longest = std::max(longest, budget);
    }
    if (woken.empty()) continue;
    pooled.samplers.clear();
    if (budget_of) pooled.length.completion = longest;
    wait_again(number, woken);
  }
}

void GroupPool::end_phase() {
  is_ending_ = true;
  for (const Order& order : std::exchange(waiting_, {})) {
    Pooled& pooled = groups_.at(order.group);
    for (const size_t member : std::exchange(pooled.waiting, {})) pooled.group.members[member].is_paused = true;
  }
  num_waiting_tokens_ = 0;
}

void GroupPool::forget(size_t number) {
  TANDEM_CHECK(abort(number).empty(), "a group that is on loan", number);
  groups_.erase(number);
}

Group GroupPool::take(size_t number) {
  const auto found = groups_.find(number);
  TANDEM_CHECK(found != groups_.end() && found->second.state == State::kDone, "no such group is done", number);
  return std::move(groups_.extract(found).mapped().group);
}

void GroupPool::join(SamplerId sampler) { samplers_.try_emplace(sampler); }

int64_t GroupPool::num_loans(SamplerId sampler) const {
  const auto found = samplers_.find(sampler);
  return found == samplers_.end() ? 0 : std::ssize(found->second.loans);
}

int64_t GroupPool::expected_tokens(size_t group, size_t num_samples) const {
  return static_cast<int64_t>(num_samples) * groups_.at(group).length.completion;
}

// Every sampler but the first that has a part of a group prefills its prompt once more. Those tokens are at most a
// tenth of the tokens that the group decodes, which is about what spreading a group gains (bench/results/loans.md).
int64_t GroupPool::share(const GroupLength& length) const {
  constexpr int64_t kDecodedPerPrefilled = 10;
  const auto n = static_cast<int64_t>(samples_per_group_);
  if (length.is_certain) return n;
  int64_t num_parts = std::max<int64_t>(num_samplers(), 1);
  if (length.prompt > 0)
    num_parts = std::min(num_parts, 1 + n * length.completion / (kDecodedPerPrefilled * length.prompt));
  return (n + num_parts - 1) / num_parts;
}

// A sampler that was lent fewer tokens than another has given back is slow or has just come. It counts as if it had as
// many, so that nobody waits for it. So no sampler has fewer than one with nothing on loan, which may always have more.
GroupPool::Deal GroupPool::deal_for(const Sampler& sampler) const {
  int64_t most_back = 0;
  for (const auto& [id, other] : samplers_) most_back = std::max(most_back, other.tokens_back);
  const int64_t own = std::max(sampler.tokens_lent, most_back);
  Deal deal;
  int64_t all = num_waiting_tokens_;
  for (const auto& [id, other] : samplers_) {
    const int64_t tokens = std::max(other.tokens_lent, most_back);
    deal.num_behind += tokens < own ? 1 : 0;
    all += tokens;
  }
  if (deal.num_behind > 0) deal.most_tokens = all / num_samplers() - own;
  return deal;
}

void GroupPool::wait_again(size_t group, std::span<const size_t> members) {
  Pooled& pooled = groups_.at(group);
  pooled.waiting.insert(pooled.waiting.end(), members.begin(), members.end());
  std::ranges::sort(pooled.waiting, std::greater());
  num_waiting_tokens_ += expected_tokens(group, members.size());
  waiting_.insert(order_of(group));
  if (is_ending_) end_phase();
}

int64_t GroupPool::lost(SamplerId sampler) {
  const auto found = samplers_.find(sampler);
  if (found == samplers_.end()) return 0;
  const std::set<uint64_t> keys = std::move(found->second.loans);
  for (const uint64_t key : keys) {
    const Loan loan = std::move(loans_.extract(key).mapped());
    if (loan.members.empty()) {
      groups_.at(loan.group).state = State::kWaitsForGrading;
      waits_for_grading_.push_back(loan.group);
    } else {
      wait_again(loan.group, loan.members);
    }
  }
  samplers_.erase(found);
  return std::ssize(keys);
}

std::optional<SampleLoan> GroupPool::lend(SamplerId sampler, int64_t num_samples) {
  const auto of_sampler = samplers_.find(sampler);
  if (of_sampler == samplers_.end() || waiting_.empty() || num_samples <= 0) return std::nullopt;
  const auto has_of = [&](size_t group) -> int64_t* {
    auto& samplers = groups_.at(group).samplers;
    const auto found = std::ranges::find(samplers, sampler, [](const auto& entry) { return entry.first; });
    return found == samplers.end() ? nullptr : &found->second;
  };
  // The loan is of the first group that this sampler has less than its share of, or else of the first that waits.
  size_t group = waiting_.begin()->group;
  int64_t most = static_cast<int64_t>(samples_per_group_);
  std::optional<Deal> deal;
  for (const Order& order : waiting_) {
    if (order.length.is_certain) {
      if (!deal) deal = deal_for(of_sampler->second);
      group = order.group;
      if (deal->num_behind-- == 0) break;
      continue;
    }
    const int64_t* const has = has_of(order.group);
    const int64_t left = share(order.length) - (has == nullptr ? 0 : *has);
    if (left <= 0) continue;
    group = order.group;
    most = left;
    break;
  }
  Pooled& pooled = groups_.at(group);
  const auto count = static_cast<size_t>(std::min({num_samples, most, std::ssize(pooled.waiting)}));
  // A loan has one range of members, so it takes neighbours.
  size_t taken = 1;
  while (taken < count && pooled.waiting[pooled.waiting.size() - 1 - taken] == pooled.waiting.back() + taken) ++taken;
  const int64_t num_tokens = expected_tokens(group, taken);
  if (pooled.length.is_certain && num_tokens > deal.value().most_tokens) return std::nullopt;
  SampleLoan loan = {
      .key = ++last_key_, .group = group, .line = pooled.group.line, .first = pooled.waiting.back(), .count = taken};
  for (size_t i = 0; i < taken; ++i) {
    loan.begun.push_back(begun(pooled.group.members[loan.first + i]));
    if (!pooled.budgets.empty()) loan.budgets.push_back(pooled.budgets[loan.first + i]);
  }
  if (std::ranges::all_of(loan.begun, [](const rl::Completion& c) { return c.tokens.empty(); })) loan.begun.clear();
  Loan record = {.sampler = sampler,
                 .group = group,
                 .members = {},
                 .has_budgets = !loan.budgets.empty(),
                 .num_tokens = num_tokens};
  for (size_t i = 0; i < taken; ++i) record.members.push_back(loan.first + i);
  pooled.waiting.resize(pooled.waiting.size() - taken);
  if (pooled.waiting.empty()) waiting_.erase(order_of(group));
  num_waiting_tokens_ -= num_tokens;
  if (int64_t* const has = has_of(group)) {
    *has += static_cast<int64_t>(taken);
  } else {
    pooled.samplers.emplace_back(sampler, static_cast<int64_t>(taken));
  }
  of_sampler->second.tokens_lent += num_tokens;
  of_sampler->second.loans.insert(loan.key);
  loans_.emplace(loan.key, std::move(record));
  return loan;
}

// Returns the sampler that grades a group: the one that sampled most of it, because it has most of it in its memory.
// Among equal ones, and if all of them are gone, it is the one with the fewest loans.
SamplerId GroupPool::grader_of(const Pooled& pooled) const {
  std::optional<std::tuple<int64_t, int64_t, SamplerId>> best;
  for (const auto& [sampler, count] : pooled.samplers) {
    if (!samplers_.contains(sampler)) continue;
    const auto candidate = std::tuple(-count, num_loans(sampler), sampler);
    if (!best || candidate < *best) best = candidate;
  }
  if (best) return std::get<2>(*best);
  return std::ranges::min_element(samplers_, {}, [](const auto& entry) { return entry.second.loans.size(); })->first;
}

std::vector<std::pair<SamplerId, GradeLoan>> GroupPool::lend_grading() {
  std::vector<std::pair<SamplerId, GradeLoan>> loans;
  if (samplers_.empty()) return loans;
  for (const size_t group : std::exchange(waits_for_grading_, {})) {
    Pooled& pooled = groups_.at(group);
    pooled.state = State::kGrading;
    const SamplerId sampler = grader_of(pooled);
    const auto is_it = [&](const auto& entry) { return entry.first == sampler; };
    if (std::ranges::none_of(pooled.samplers, is_it)) pooled.samplers.emplace_back(sampler, 0);
    const uint64_t key = ++last_key_;
    loans_.emplace(key, Loan{.sampler = sampler, .group = group, .members = {}});
    samplers_.at(sampler).loans.insert(key);
    loans.emplace_back(
        sampler, GradeLoan{.key = key, .group = group, .line = pooled.group.line, .members = pooled.group.members});
  }
  return loans;
}

const GroupPool::Loan* GroupPool::loan_of(SamplerId sampler, uint64_t key) const {
  const auto found = loans_.find(key);
  return found == loans_.end() || found->second.sampler != sampler ? nullptr : &found->second;
}

GroupPool::Loan GroupPool::end_loan(uint64_t key) {
  Loan loan = std::move(loans_.extract(key).mapped());
  Sampler& sampler = samplers_.at(loan.sampler);
  sampler.loans.erase(key);
  sampler.tokens_back += loan.num_tokens;
  return loan;
}

bool GroupPool::take_back(SamplerId sampler, SampledLoan returned) {
  const Loan* const lent = loan_of(sampler, returned.key);
  if (lent == nullptr) return false;
  TANDEM_ENV_CHECK(!lent->members.empty() && returned.members.size() == lent->members.size(),
                   "it gave back other samples than it was lent");
  TANDEM_ENV_CHECK(lent->has_budgets || is_ending_ || std::ranges::none_of(returned.members, &Member::is_paused),
                   "it gave back a sample that has not ended, without a budget");
  const Loan loan = end_loan(returned.key);
  Pooled& pooled = groups_.at(loan.group);
  for (size_t i = 0; i < returned.members.size(); ++i) {
    Member& member = pooled.group.members[loan.members[i]];
    member = std::move(returned.members[i]);
    member.sample.prompt = pooled.group.line->prompt;
    pooled.num_there += member.is_paused ? 0 : 1;
  }
  if (pooled.num_there == samples_per_group_) members_are_there(loan.group);
  return true;
}

void GroupPool::members_are_there(size_t group) {
  ++num_sampled_;
  Pooled& pooled = groups_.at(group);
  if (is_graded_) {
    pooled.state = State::kWaitsForGrading;
    waits_for_grading_.push_back(group);
  } else {
    pooled.state = State::kDone;
    done_.push_back(group);
  }
}

bool GroupPool::take_back(SamplerId sampler, GradedLoan returned) {
  const Loan* const lent = loan_of(sampler, returned.key);
  if (lent == nullptr) return false;
  const bool is_whole = !returned.graded.verdict.is_kept || returned.graded.grades.size() == samples_per_group_;
  const bool has_all_texts = returned.texts.empty() || returned.texts.size() == samples_per_group_;
  TANDEM_ENV_CHECK(lent->members.empty() && is_whole && has_all_texts,
                   "it gave back other grades than it was asked for");
  const size_t group = end_loan(returned.key).group;
  Pooled& pooled = groups_.at(group);
  pooled.group.graded = std::move(returned.graded);
  for (size_t i = 0; i < returned.texts.size(); ++i) {
    if (!returned.texts[i].empty()) pooled.group.members[i].sample.text = std::move(returned.texts[i]);
  }
  if (!pooled.group.graded.verdict.is_kept) {
    pooled.group.members.clear();
    pooled.group.graded.grades.clear();
  }
  pooled.state = State::kDone;
  num_graded_ += static_cast<int64_t>(samples_per_group_);
  done_.push_back(group);
  return true;
}

std::vector<std::pair<SamplerId, uint64_t>> GroupPool::abort(size_t group) {
  Pooled& pooled = groups_.at(group);
  std::vector<std::pair<SamplerId, uint64_t>> ended;
  if (pooled.state == State::kDone || pooled.state == State::kAborted) return ended;
  if (!pooled.waiting.empty()) waiting_.erase(order_of(group));
  if (pooled.state == State::kWaitsForGrading) std::erase(waits_for_grading_, group);
  num_waiting_tokens_ -= expected_tokens(group, pooled.waiting.size());
  pooled.waiting.clear();
  pooled.state = State::kAborted;
  bool is_cut = false;
  for (const auto& [sampler, count] : pooled.samplers) {
    const auto found = samplers_.find(sampler);
    if (found == samplers_.end()) continue;
    for (const uint64_t key : std::vector<uint64_t>(found->second.loans.begin(), found->second.loans.end())) {
      if (loans_.at(key).group != group) continue;
      is_cut |= !loans_.at(key).members.empty();
      end_loan(key);
      ended.emplace_back(sampler, key);
    }
  }
  num_cut_ += is_cut ? 1 : 0;
  return ended;
}

void GroupPool::abort_all() {
  for (const auto& [number, pooled] : groups_) abort(number);
}

}  // namespace tandem::groups
