// Messages between rank 0 and samplers come out as they went in, and nothing else is taken for a message.
#include "sampling/processes/messages.h"

#include <gtest/gtest.h>

#include <random>
#include <utility>
#include <vector>

#include "base/wire.h"
#include "tandem/error.h"
#include "tests/sampling/drawn_samples.h"

namespace tandem::sampling {
namespace {

session::PromptLine line() {
  session::PromptLine line;
  line.record = {.line = 5,
                 .prompt = base::parse_json(R"([{"role": "user", "content": "2+2"}])", "a test"),
                 .label = "4",
                 .metadata = {{"level", 3}},
                 .tools = nullptr,
                 .rm_type = "math"};
  line.prompt = rl::make_prompt({1, 2, 3}, "2+2", "4");
  return line;
}

groups::Member drawn_member(Drawn& drawn) {
  groups::Member member;
  member.sample = drawn_sample(drawn);
  member.is_paused = drawn.flag();
  member.failure = drawn.text();
  member.machine_failed = drawn.flag();
  member.metadata = drawn.json();
  member.attributes = drawn.json();
  return member;
}

SamplerNumbers numbers() {
  return {
      .stats = {.generated_tokens = 1,
                .prefill_tokens = 2,
                .shared_prompt_tokens = 3,
                .recomputed_tokens = 4,
                .resumed_tokens = 5,
                .kept_tokens = 6,
                .kept_dropped = 7,
                .wasted_rows = 8,
                .draft_tokens = 9,
                .right_drafts = 10,
                .draft_steps = 11,
                .forwards = 12,
                .preemptions = 13,
                .copies_on_write = 14,
                .peak_running = 15,
                .peak_blocks = 16,
                .num_blocks = 17},
      .losses = {.grader_restarts = 18, .repeated_grades = 19, .generator_restarts = 20, .repeated_generations = 21},
      .still_seconds = 22.5};
}

std::vector<Message> one_of_each(uint64_t seed = 1) {
  Drawn drawn(seed);
  std::vector<groups::Member> members, others;
  std::vector<reward::Grade> grades;
  for (int i = 0; i < 3; ++i) {
    members.push_back(drawn_member(drawn));
    others.push_back(drawn_member(drawn));
    grades.push_back(drawn_grade(drawn));
  }
  return {
      Hello{.facts = "facts",
            .weight_hash = "hash",
            .process = 7,
            .machine = "here",
            .door = {.place = "a place", .name = "weights-1", .address = "10.0.0.1:5"}},
      Welcome{.longest_prompt = 1,
              .eval_context_tokens = 2,
              .eval_sequences = 3,
              .line_types = {"math"},
              .eval_line_types = {"a", "b"},
              .user_output = "a file",
              .shown_trained = {std::string("\0word", 5), "another"},
              .shown_base = {"word"}},
      Refused{"why"},
      Prepared{.maps_weights = true, .copies_ahead = true},
      WeightLine{.name = "weights-1"},
      Weights{
          .is_base = true, .part = 1, .tensor = 1, .first_byte = 2, .num_bytes = 3, .checksum = "sum", .version = 4},
      Chain{.number = 5, .is_first = true, .next = {.place = "another", .name = "", .address = "10.0.0.2:6"}},
      ChainBroken{},
      CopyWeights{.is_base = true, .is_ahead = true, .version = 5},
      CopiedWeights{5},
      WeightChecksums{.is_base = true, .version = 5, .sums = {1, UINT64_MAX}},
      TookWeights{6},
      Open{.rollout = 1,
           .graded_by = GradedBy::kEvalSet,
           .eval_set = 2,
           .n_samples_per_prompt = 3,
           .first_sample_id = 4,
           .sampling = {.temperature = 0.5,
                        .top_p = 0.25,
                        .top_k = 9,
                        .min_p = 0.125,
                        .max_new_tokens = 10,
                        .max_context_tokens = 11,
                        .stop_token_ids = {1},
                        .stop = {"x", ""},
                        .ignore_eos = true,
                        .seed = 12},
           .skip_special_tokens = true,
           .generates = true,
           .is_evaluation = true,
           .is_filtered = true,
           .samples_at_once = 13,
           .state = reward::TrainingState{.global_step = 14, .max_steps = 15, .epoch = 0.75, .num_train_epochs = 16}},
      Pull{.rollout = 1, .count = 2},
      LendSamples{.rollout = 1,
                  .key = 2,
                  .group = 3,
                  .first = 4,
                  .count = 5,
                  .line = line(),
                  .begun = {{.sample_id = 9,
                             .tokens = {1, 2},
                             .logprobs = {-1.0F, -2.0F},
                             .behavior_logprobs = {-0.5F},
                             .versions = {{.begin = 0, .version = 7}, {.begin = 1, .version = 8}}}},
                  .budgets = {6, 7}},
      LendGrading{.rollout = 1, .key = 2, .group = 3, .line = line(), .members = std::move(members)},
      Sampled{.rollout = 1, .key = 2, .members = std::move(others), .numbers = numbers()},
      Graded{.rollout = 1,
             .key = 2,
             .graded = {.grades = std::move(grades),
                        .verdict = {.is_kept = false, .reason = "why", .failure = "how"},
                        .is_judged = true,
                        .reward_sum = 1.5,
                        .num_rewarded = 3},
             .texts = {"", "two"},
             .numbers = numbers()},
      Abort{.rollout = 1, .key = 2},
      Pause{.rollout = 3},
      Close{1},
      RankHello{3},
      StopAsked{4},
      Alive{},
      Leaving{},
      Failed{.why = "why", .is_users = true},
      Stop{}};
}

template <typename Kind>
const Kind& one(const std::vector<Message>& messages) {
  for (const Message& message : messages)
    if (const auto* const found = std::get_if<Kind>(&message)) return *found;
  throw std::logic_error("no such message");
}
template <typename Kind>
Kind through(const Kind& message) {
  return std::get<Kind>(message_of(to_bytes(message)));
}

TEST(Messages, ComeOutAsTheyWentIn) {
  const std::vector<Message> messages = one_of_each();
  ASSERT_EQ(messages.size(), std::variant_size_v<Message>);
  for (size_t kind = 0; kind < messages.size(); ++kind) {
    EXPECT_EQ(messages[kind].index(), kind);
    const std::string bytes = to_bytes(messages[kind]);
    const Message read = message_of(bytes);
    EXPECT_EQ(read.index(), kind);
    EXPECT_EQ(to_bytes(read), bytes) << "message " << kind;
  }
  const auto sums = through(one<WeightChecksums>(messages));
  EXPECT_TRUE(sums.is_base);
  EXPECT_EQ(sums.version, 5U);
  EXPECT_EQ(sums.sums, (std::vector<uint64_t>{1, UINT64_MAX}));
  EXPECT_EQ(through(one<Welcome>(messages)).shown_trained,
            (std::vector<std::string>{std::string("\0word", 5), "another"}));
}

TEST(Messages, OpenHasTheSamplingOfTheRun) {
  const Open open = through(one<Open>(one_of_each()));
  EXPECT_EQ(open.graded_by, GradedBy::kEvalSet);
  EXPECT_EQ(std::tie(open.eval_set, open.n_samples_per_prompt, open.first_sample_id, open.samples_at_once),
            std::tuple(2, 3, 4U, 13));
  ASSERT_TRUE(open.state);
  EXPECT_EQ(std::tie(open.state->global_step, open.state->max_steps, open.state->epoch, open.state->num_train_epochs),
            std::tuple(14, 15, 0.75, 16));
  EXPECT_TRUE(open.skip_special_tokens && open.generates && open.is_evaluation && open.is_filtered);
  const rl::SamplingParams& sampling = open.sampling;
  EXPECT_EQ(std::tie(sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p, sampling.max_new_tokens,
                     sampling.max_context_tokens, sampling.ignore_eos, sampling.seed),
            std::tuple(0.5, 0.25, 9, 0.125, 10, 11, true, 12U));
  EXPECT_EQ(sampling.stop_token_ids, std::vector<int32_t>{1});
  EXPECT_EQ(sampling.stop, (std::vector<std::string>{"x", ""}));
}

TEST(Messages, LoansHaveTheirLine) {
  const LendSamples loan = through(one<LendSamples>(one_of_each()));
  EXPECT_EQ(std::tie(loan.rollout, loan.key, loan.group, loan.first, loan.count), std::tuple(1U, 2U, 3U, 4U, 5U));
  const session::PromptLine want = line();
  EXPECT_EQ(std::tie(loan.line.record.line, loan.line.record.prompt, loan.line.record.label, loan.line.record.metadata,
                     loan.line.record.tools, loan.line.record.rm_type),
            std::tie(want.record.line, want.record.prompt, want.record.label, want.record.metadata, want.record.tools,
                     want.record.rm_type));
  EXPECT_EQ(std::tie(loan.line.prompt->tokens, loan.line.prompt->text, loan.line.prompt->label),
            std::tie(want.prompt->tokens, want.prompt->text, want.prompt->label));
  EXPECT_EQ(loan.budgets, (std::vector<int64_t>{6, 7}));
  ASSERT_EQ(loan.begun.size(), 1U);
  const rl::Completion& begun = loan.begun[0];
  EXPECT_EQ(std::tie(begun.sample_id, begun.tokens, begun.logprobs, begun.behavior_logprobs),
            std::tuple(9U, std::vector<int32_t>{1, 2}, std::vector<float>{-1.0F, -2.0F}, std::vector<float>{-0.5F}));
  ASSERT_EQ(begun.versions.size(), 2U);
  EXPECT_EQ(std::tie(begun.versions[1].begin, begun.versions[1].version), std::tuple(1, 8U));
}

TEST(Messages, BringEverySampleAndGradeBitForBit) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const std::vector<Message> messages = one_of_each(seed);
    const auto expect_same_members = [](const std::vector<groups::Member>& read,
                                        const std::vector<groups::Member>& sent) {
      ASSERT_EQ(read.size(), sent.size());
      for (size_t i = 0; i < sent.size(); ++i) {
        expect_same(read[i].sample, sent[i].sample);
        EXPECT_EQ(std::tie(read[i].is_paused, read[i].failure, read[i].machine_failed),
                  std::tie(sent[i].is_paused, sent[i].failure, sent[i].machine_failed));
        expect_same(read[i].metadata, sent[i].metadata);
        expect_same(read[i].attributes, sent[i].attributes);
      }
    };
    const auto& sampled = one<Sampled>(messages);
    expect_same_members(through(sampled).members, sampled.members);
    EXPECT_EQ(through(sampled).numbers.stats.num_blocks, 17);
    EXPECT_EQ(through(sampled).numbers.losses.repeated_generations, 21);
    const auto& lent = one<LendGrading>(messages);
    expect_same_members(through(lent).members, lent.members);
    const groups::GroupGrades &sent = one<Graded>(messages).graded, read = through(one<Graded>(messages)).graded;
    ASSERT_EQ(read.grades.size(), sent.grades.size());
    for (size_t i = 0; i < sent.grades.size(); ++i) expect_same(read.grades[i], sent.grades[i]);
    EXPECT_EQ(std::tie(read.verdict.is_kept, read.verdict.reason, read.verdict.failure, read.is_judged, read.reward_sum,
                       read.num_rewarded),
              std::tuple(false, "why", "how", true, 1.5, 3));
    EXPECT_EQ(through(one<Graded>(messages)).texts, (std::vector<std::string>{"", "two"}));
  }
}

TEST(Messages, RefuseAnEarlyEndAndWhatWasChanged) {
  for (const Message& message : one_of_each()) {
    const std::string bytes = to_bytes(message);
    for (size_t size = 0; size < bytes.size(); ++size) {
      EXPECT_THROW(message_of(std::string_view(bytes).substr(0, size)), EnvironmentError);
      std::string changed = bytes;
      changed[size] ^= 0x20;
      EXPECT_THROW(message_of(changed), EnvironmentError);
    }
  }
}

// The checksum is right, and the payload is not: a length beyond the end, a number of another kind, bytes after the
// last.
TEST(Messages, RefuseWhatNoMessageIsMadeOf) {
  Drawn drawn(7);
  int64_t num_refused = 0;
  for (const Message& message : one_of_each()) {
    const std::string sealed = to_bytes(message);
    const std::string payload(base::unsealed(sealed, kMessageFormat));
    const auto takes = [](const std::string& changed) {
      try {
        message_of(base::sealed(changed, kMessageFormat));
        return true;
      } catch (const EnvironmentError&) {
        return false;
      }
    };
    EXPECT_TRUE(takes(payload));
    EXPECT_FALSE(takes(payload + '\0'));
    EXPECT_FALSE(takes(payload.substr(0, payload.size() - 1)));
    EXPECT_FALSE(takes("\xff" + payload.substr(1))) << "no such kind";
    for (int i = 0; i < 300; ++i) num_refused += takes(drawn.changed(payload)) ? 0 : 1;
  }
  EXPECT_GT(num_refused, 1000);
}

TEST(Messages, RefusePiecesThatAreOutOfOrder) {
  groups::Member member;
  member.sample.completion = {1, 2, 3};
  for (const auto& [first, second] : {std::pair<int64_t, int64_t>{0, 0}, {1, 0}, {-1, 1}, {0, 3}}) {
    member.sample.pieces = {{.begin = first, .is_sampled = true, .text = ""},
                            {.begin = second, .is_sampled = true, .text = ""}};
    EXPECT_THROW(message_of(to_bytes(Sampled{.rollout = 1, .key = 2, .members = {member}, .numbers = {}})),
                 EnvironmentError)
        << first << " " << second;
  }
}

}  // namespace
}  // namespace tandem::sampling
