#include "sampling/group_sampler.h"

#include <utility>

#include "base/check.h"

namespace tandem::sampling {

namespace {

groups::Member make_member(rl::SharedPrompt prompt, uint64_t group_id, rl::Completion completion) {
  groups::Member member;
  rl::Sample& sample = member.sample;
  sample.group_id = group_id;
  sample.sample_id = completion.sample_id;
  sample.prompt = std::move(prompt);
  sample.loss_mask.assign(completion.tokens.size(), 1);
  sample.completion = std::move(completion.tokens);
  sample.rollout_logprobs = std::move(completion.logprobs);
  sample.behavior_logprobs = std::move(completion.behavior_logprobs);
  sample.versions = std::move(completion.versions);
  // The engine ends a loan that is still wanted only if it is to be paused.
  member.is_paused =
      completion.finish_reason == rl::FinishReason::kPaused || completion.finish_reason == rl::FinishReason::kAbort;
  if (!member.is_paused) sample.status = status_of(completion.finish_reason);
  return member;
}

}  // namespace

rl::SampleStatus status_of(rl::FinishReason reason) {
  TANDEM_CHECK(reason != rl::FinishReason::kPaused, "a paused completion is not a sample yet");
  if (reason == rl::FinishReason::kStop) return rl::SampleStatus::kCompleted;
  if (reason == rl::FinishReason::kLength) return rl::SampleStatus::kTruncated;
  return rl::SampleStatus::kAborted;
}

// The engine knows a loan by its key: it may have two of one group.
void EngineSampler::add(uint64_t key, rollout::GroupRequest request, const data::PromptRecord& /*record*/) {
  const uint64_t group_id = std::exchange(request.group_id, key);
  engine_.add(std::move(request));
  group_ids_[key] = group_id;
  ++num_added_;
}

void EngineSampler::step() {
  if (engine_.shares_steps()) {
    engine_.step();
    return;
  }
  if (engine_.num_unfinished_groups() > 0) TANDEM_CHECK(engine_.step(), "the engine has unfinished groups and no work");
}

std::vector<groups::SampledLoan> EngineSampler::take_finished() {
  std::vector<groups::SampledLoan> loans;
  for (; num_added_ > engine_.num_unfinished_groups(); --num_added_) {
    rl::Group group = engine_.next_finished().value();
    const auto found = group_ids_.find(group.group_id);
    if (found == group_ids_.end()) continue;  // it was aborted
    groups::SampledLoan& loan = loans.emplace_back();
    loan.key = group.group_id;
    for (rl::Completion& completion : group.completions)
      loan.members.push_back(make_member(group.prompt, found->second, std::move(completion)));
    group_ids_.erase(found);
  }
  return loans;
}

void EngineSampler::abort(uint64_t key) {
  if (group_ids_.erase(key) > 0) engine_.abort(key);
}

void EngineSampler::abort_all() {
  group_ids_.clear();
  engine_.abort_all();
}

}  // namespace tandem::sampling
