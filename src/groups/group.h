// Follows a prompt through a rollout: it is drawn, sampled, graded, judged and taken. This is the only record of it, in
// whichever process it is. No torch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "groups/group_filter.h"
#include "reward/graders.h"
#include "rl/sample.h"
#include "session/prompt_set.h"

namespace tandem::groups {

// One sample of a group as it was sampled.
struct Member {
  // It has no reward yet. Its text comes with the grades of its group (GradedLoan::texts); a sample in pieces, or one
  // that nobody grades, has it from the start.
  rl::Sample sample;
  bool is_paused = false;       // it has used up the budget of its loan, and goes on in another one
  std::string failure;          // why it could not be made and must not be graded; empty: it could be made
  bool machine_failed = false;  // the failure is the machine's
  base::Json metadata;          // metadata for the reward, in place of the line's; null: the line's
  base::Json attributes = base::Json::object();  // what a generate function wrote into the sample, for the reward

  static void fields(auto& wire, auto& m) {
    wire(m.sample, m.is_paused, m.failure, m.machine_failed, m.metadata, m.attributes);
  }
};

// Holds what grading gave a group.
struct GroupGrades {
  std::vector<reward::Grade> grades;  // one a sample, with secrets taken out of their texts
  GroupVerdict verdict;
  bool is_judged = false;    // the filter has judged it
  double reward_sum = 0.0;   // sum over the samples with a reward, if there is a filter
  int64_t num_rewarded = 0;  // samples with a reward

  static void fields(auto& wire, auto& m) { wire(m.grades, m.verdict, m.is_judged, m.reward_sum, m.num_rewarded); }
};

struct Group {
  const session::PromptLine* line = nullptr;  // borrowed from whoever drew it
  std::vector<Member> members;                // in sample order; dropped with a group that the filter drops
  GroupGrades graded;                         // empty if the rollout is not graded
};

// A process with an engine: rank 0 itself, another rank that trains, or a rollout worker.
using SamplerId = int64_t;

// Lends some samples of a group to one sampler. `line` is borrowed until the rollout ends.
struct SampleLoan {
  uint64_t key = 0;  // no other loan of the rollout has it
  size_t group = 0;  // number in the order in which groups were drawn
  const session::PromptLine* line = nullptr;
  size_t first = 0, count = 0;             // range of members
  std::vector<rl::Completion> begun = {};  // what the members have so far, in order; empty: none has a token
  std::vector<int64_t> budgets = {};       // most tokens that each gets now; empty: as many as it may have
};
// A group whose samples are all there, lent to one sampler to be graded and judged.
struct GradeLoan {
  uint64_t key = 0;
  size_t group = 0;
  const session::PromptLine* line = nullptr;
  std::vector<Member> members;
};
// A sampler answers each loan with one of these.
struct SampledLoan {
  uint64_t key = 0;
  std::vector<Member> members;  // in order
};
struct GradedLoan {
  uint64_t key = 0;
  GroupGrades graded;
  std::vector<std::string> texts = {};  // in sample order, "" for a sample that has its text; or empty: all have it
};

}  // namespace tandem::groups
