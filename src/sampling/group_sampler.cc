#include "sampling/group_sampler.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace tandem::sampling {

namespace {

rl::Sample make_sample(rl::SharedPrompt prompt, uint64_t group_id, rl::Completion completion) {
  rl::Sample sample;
  sample.group_id = group_id;
  sample.sample_id = completion.sample_id;
  sample.prompt = std::move(prompt);
  sample.loss_mask.assign(completion.tokens.size(), 1);
  sample.completion = std::move(completion.tokens);
  sample.rollout_logprobs = std::move(completion.logprobs);
  sample.behavior_logprobs = std::move(completion.behavior_logprobs);
  sample.status = status_of(completion.finish_reason);
  sample.versions = std::move(completion.versions);
  return sample;
}

SampledGroup sampled_group(rl::Group group) {
  SampledGroup result;
  result.group_id = group.group_id;
  for (rl::Completion& completion : group.completions) {
    result.is_cut |= completion.finish_reason == rl::FinishReason::kAbort;
    SampledGroup::Member member;
    member.sample = make_sample(group.prompt, group.group_id, std::move(completion));
    result.members.push_back(std::move(member));
  }
  return result;
}

}  // namespace

rl::SampleStatus status_of(rl::FinishReason reason) {
  if (reason == rl::FinishReason::kStop) return rl::SampleStatus::kCompleted;
  if (reason == rl::FinishReason::kLength) return rl::SampleStatus::kTruncated;
  return rl::SampleStatus::kAborted;
}

void EngineSampler::add(rollout::GroupRequest request, const rl::PromptRecord& /*record*/) {
  engine_.add(std::move(request));
  ++num_added_;
}

void EngineSampler::step() {
  if (engine_.num_unfinished_groups() > 0) TANDEM_CHECK(engine_.step(), "the engine has unfinished groups and no work");
}

std::vector<SampledGroup> EngineSampler::take_finished() {
  std::vector<SampledGroup> groups;
  for (; num_added_ > engine_.num_unfinished_groups(); --num_added_)
    groups.push_back(sampled_group(engine_.next_finished().value()));
  return groups;
}

}  // namespace tandem::sampling
