// The groups in flight are in a checkpoint as they are: those that a generate function made too, and those of
// checkpoints from before such functions could make them.
#include "groups/in_flight.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "base/wire_fields.h"
#include "tandem/error.h"
#include "tests/base/thrown.h"
#include "tests/groups/simulated_samplers.h"

namespace tandem::groups {
namespace {

constexpr int64_t kSamples = 4;

InFlightLimits limits() {
  return {.file = "state",
          .num_prompts = 1,
          .num_begun = 8,
          .rollout = 2,
          .n_samples_per_prompt = kSamples,
          .vocab = 100,
          .max_new_tokens = 8};
}

InFlight empty() { return {{.wanted = 1, .at_once = 2, .max_staleness = 2}, kSamples, /*rollout=*/2}; }

Member member_of(uint64_t id, const std::vector<int32_t>& tokens) {
  Member member;
  rl::Sample& sample = member.sample;
  sample.group_id = 5;
  sample.sample_id = id;
  sample.completion = tokens;
  sample.rollout_logprobs.assign(tokens.size(), -0.5F);
  sample.loss_mask.assign(tokens.size(), 1);
  sample.versions = {{.begin = 0, .version = 3}};
  return member;
}

// What a generate function makes: a sample of two sequences with pieces, one that failed before anything was sampled,
// one that has not begun, and one of a single turn.
std::vector<Member> members_of_a_function() {
  std::vector<Member> members = {member_of(20, {1, 2, 3, 4, 5}), member_of(21, {9}), {}, member_of(23, {7})};
  rl::Sample& first = members[0].sample;
  first.num_turns = 2;
  first.loss_mask = {1, 1, 0, 0, 1};
  first.sequence_begins = {2};
  first.endpoint = {.answers = 2, .restarts = 1, .untrained = 0, .refused = 3};
  first.pieces = {{.begin = 0, .is_sampled = true, .text = "a"}, {.begin = 2, .is_sampled = false, .text = "b"}};
  members[0].metadata = {{"seen", 1}};
  members[0].attributes = {{"tools", 2}};
  members[1].failure = "agent.py:run: KeyError";
  members[1].sample.versions.clear();
  members[1].sample.loss_mask = {0};
  members[1].sample.remove = true;
  members[2].is_paused = true;
  return members;
}

std::string bytes_of(std::vector<Member> members) {
  InFlight in_flight = empty();
  in_flight.weights_are(3);
  in_flight.schedule.put_back(5, /*begun_in=*/2, /*is_kept=*/false);
  in_flight.pool.put_back(5, {.line = &line(), .members = std::move(members), .graded = {}});
  return to_bytes(in_flight, [](const session::PromptLine&) { return 0; });
}

void put_back(const std::string& bytes, InFlight& in_flight) {
  groups::put_back(
      bytes, limits(), [](int64_t) -> const session::PromptLine& { return line(); }, in_flight);
}

TEST(InFlight, SamplesOfAFunctionComeBackAsTheyWere) {
  const std::string bytes = bytes_of(members_of_a_function());
  InFlight in_flight = empty();
  put_back(bytes, in_flight);
  const std::vector<Member>& members = in_flight.pool.group(5).members;
  ASSERT_EQ(members.size(), 4U);
  EXPECT_EQ(members[0].sample.sequence_begins, std::vector<int64_t>{2});
  EXPECT_EQ(members[0].sample.endpoint.refused, 3);
  EXPECT_EQ(members[0].sample.pieces.size(), 2U);
  EXPECT_EQ(members[0].attributes, (base::Json{{"tools", 2}}));
  EXPECT_EQ(members[1].failure, "agent.py:run: KeyError");
  EXPECT_TRUE(members[2].is_paused);
  EXPECT_EQ(to_bytes(in_flight, [](const session::PromptLine&) { return 0; }), bytes);
  // The sample that has not begun is lent from its beginning.
  in_flight.pool.join(1);
  in_flight.pool.begin_phase();
  const SampleLoan loan = in_flight.pool.lend(1, kSamples).value();
  EXPECT_EQ(loan.first, 2U);
  EXPECT_EQ(loan.count, 1U);
  EXPECT_TRUE(loan.begun.empty() && loan.budgets.empty());
}

TEST(InFlight, ATrainedTokenWithoutWeightsIsRefused) {
  std::vector<Member> members = members_of_a_function();
  members[3].sample.versions.clear();
  InFlight in_flight = empty();
  EXPECT_THROW(put_back(bytes_of(members), in_flight), UserError);
}

std::string refusal(const std::string& bytes, const InFlightLimits& limits, InFlight in_flight) {
  return base::thrown_by([&] {
    groups::put_back(
        bytes, limits, [](int64_t) -> const session::PromptLine& { return line(); }, in_flight);
  });
}

TEST(InFlight, AnotherTruncationIsNamed) {
  std::vector<Member> members = members_of_a_function();
  InFlightLimits truncating = limits();
  truncating.has_behavior_logprobs = true;
  EXPECT_NE(refusal(bytes_of(members), truncating, empty()).find("were sampled without --rollout-top-p, "),
            std::string::npos);
  for (Member& member : members) member.sample.behavior_logprobs = member.sample.rollout_logprobs;
  EXPECT_EQ(refusal(bytes_of(members), truncating, empty()), "");
  EXPECT_NE(refusal(bytes_of(members), limits(), empty()).find("were sampled with --rollout-top-p, "),
            std::string::npos);
  members[3].sample.behavior_logprobs.push_back(0.0F);
  EXPECT_NE(refusal(bytes_of(members), truncating, empty()).find("do not fit this run"), std::string::npos);
}

TEST(InFlight, OtherFlagsAreNamed) {
  InFlightLimits shorter = limits(), fewer = limits();
  shorter.max_new_tokens = 4;
  fewer.n_samples_per_prompt = 2;
  const std::string bytes = bytes_of(members_of_a_function());
  EXPECT_EQ(refusal(bytes, shorter, empty()),
            "state: a completion in flight has 5 tokens, and --rollout-max-response-len is 4; give the same "
            "values as before, or leave out --partial-rollout and --max-weight-staleness, which drops these groups");
  EXPECT_NE(refusal(bytes, fewer, empty()).find("has 4 samples, and --n-samples-per-prompt is 2; give the same values"),
            std::string::npos);
}

// They count for the next rollout, whose record would lack them.
TEST(InFlight, GroupsThatWereDroppedSinceARolloutComeBackToo) {
  const auto bytes = [](size_t number, bool is_kept) {
    InFlight in_flight = empty();
    in_flight.weights_are(3);
    in_flight.schedule.put_back(5, /*begun_in=*/2, /*is_kept=*/false);
    in_flight.pool.put_back(5, {.line = &line(), .members = members_of_a_function(), .graded = {}});
    in_flight.dropped[number] = {.grades = {},
                                 .verdict = {.is_kept = is_kept, .reason = "zero_std_1", .failure = {}},
                                 .is_judged = true,
                                 .reward_sum = 4.0,
                                 .num_rewarded = 4};
    return to_bytes(in_flight, [](const session::PromptLine&) { return 0; });
  };
  InFlight in_flight = empty();
  put_back(bytes(7, false), in_flight);
  ASSERT_EQ(in_flight.dropped.size(), 1U);
  EXPECT_EQ(in_flight.dropped.at(7).verdict.reason, "zero_std_1");
  EXPECT_EQ(in_flight.dropped.at(7).reward_sum, 4.0);
  EXPECT_EQ(to_bytes(in_flight, [](const session::PromptLine&) { return 0; }), bytes(7, false));
  EXPECT_NE(refusal(bytes(5, false), limits(), empty()), "") << "it is in flight";
  EXPECT_NE(refusal(bytes(8, false), limits(), empty()), "") << "it has not begun";
  EXPECT_NE(refusal(bytes(7, true), limits(), empty()), "") << "it is kept";
}

// A rollout that waits for groups that can't be taken in time would never end.
TEST(InFlight, GroupsThatNoRolloutTakesInTimeAreRefused) {
  const auto bytes = [](int64_t num_groups) {
    InFlight in_flight = {{.wanted = 4, .at_once = 8}, kSamples, /*rollout=*/2};
    in_flight.weights_are(3);
    for (int64_t number = 0; number < num_groups; ++number) {
      std::vector<Member> members(kSamples);
      for (Member& member : members) member.is_paused = true;
      in_flight.schedule.put_back(static_cast<size_t>(number), /*begun_in=*/1, /*is_kept=*/false);
      in_flight.pool.put_back(static_cast<size_t>(number),
                              {.line = &line(), .members = std::move(members), .graded = {}});
    }
    return to_bytes(in_flight, [](const session::PromptLine&) { return 0; });
  };
  const auto taking = [](int64_t wanted, std::optional<int64_t> staleness) {
    return InFlight({.wanted = wanted, .at_once = wanted, .max_staleness = staleness}, kSamples, /*rollout=*/2);
  };
  // They began a rollout ago: the first `wanted` of them are one rollout old when they are taken, the next ones two.
  EXPECT_EQ(refusal(bytes(4), limits(), taking(2, 2)), "");
  EXPECT_NE(refusal(bytes(5), limits(), taking(2, 2)).find("--max-weight-staleness 3 is needed, and 2 given"),
            std::string::npos);
  EXPECT_EQ(refusal(bytes(5), limits(), taking(2, 3)), "");
  EXPECT_EQ(refusal(bytes(5), limits(), taking(2, {})), "");
}

// The bytes as they were written when all samples in flight were an engine's. OlderMember is their member, and Member
// that of the format after it, which lacked the groups that were dropped.
struct OlderMember : Member {
  static void fields(auto& wire, auto& m) {
    rl::Sample::fields_of_one_sequence(wire, m.sample);
    wire(m.is_paused, m.failure, m.machine_failed, m.metadata, m.attributes);
  }
};
template <typename Saved>
struct OlderGroup {
  uint64_t number = 5;
  int64_t record = 0, begun_in = 1;
  bool is_kept = false;
  std::vector<Saved> members;
  GroupGrades graded;
  static void fields(auto& wire, auto& m) { wire(m.number, m.record, m.begun_in, m.is_kept, m.members, m.graded); }
};
template <typename Saved>
struct Older {
  std::vector<OlderGroup<Saved>> groups;
  std::vector<uint64_t> versions;
  static void fields(auto& wire, auto& m) { wire(m.groups, m.versions); }
};

TEST(InFlight, CheckpointsOfOneSequenceASampleAreRead) {
  constexpr uint32_t kOlderFormat = 0x494E0001;
  Older<OlderMember> older = {.groups = {OlderGroup<OlderMember>()}, .versions = {2, 3}};
  for (uint64_t id = 20; id < 24; ++id) {
    Member member = member_of(id, {1, 2, 3});
    member.is_paused = id == 22;
    older.groups[0].members.push_back({member});
  }
  InFlight in_flight = empty();
  put_back(base::packed(older, kOlderFormat), in_flight);
  EXPECT_EQ(in_flight.versions, (std::vector<uint64_t>{2, 3}));
  EXPECT_EQ(in_flight.schedule.begun_in(5), 1);
  const std::vector<Member>& members = in_flight.pool.group(5).members;
  ASSERT_EQ(members.size(), 4U);
  EXPECT_TRUE(members[2].is_paused);
  EXPECT_EQ(members[3].sample.completion, (std::vector<int32_t>{1, 2, 3}));
  EXPECT_EQ(members[3].sample.prompt, line().prompt);
  older.groups[0].members.pop_back();
  InFlight other = empty();
  EXPECT_THROW(put_back(base::packed(older, kOlderFormat), other), UserError) << "a sample is missing";
}

TEST(InFlight, CheckpointsWithoutDroppedGroupsAreRead) {
  constexpr uint32_t kOlderFormat = 0x494E0002;
  Older<Member> older = {.groups = {OlderGroup<Member>()}, .versions = {3}};
  older.groups[0].members = members_of_a_function();
  InFlight in_flight = empty();
  put_back(base::packed(older, kOlderFormat), in_flight);
  EXPECT_EQ(in_flight.pool.group(5).members[0].attributes, (base::Json{{"tools", 2}}));
  EXPECT_TRUE(in_flight.dropped.empty());
}

}  // namespace
}  // namespace tandem::groups
