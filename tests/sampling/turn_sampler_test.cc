// Tests that what a generate function returns is checked against what the engine sampled for it.
#include "sampling/turn_sampler.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <set>

#include "tandem/error.h"
#include "tests/base/thrown.h"

namespace tandem::sampling {
namespace {

constexpr int64_t kVocab = 264;
const rl::SharedPrompt kPrompt = rl::make_prompt({1, 2, 3});

TurnRecord turn_of(const std::vector<int32_t>& before, const std::vector<int32_t>& tokens, float logprob,
                   rl::FinishReason reason = rl::FinishReason::kStop) {
  TurnRecord turn;
  turn.prefix = PrefixHash::of(before);
  turn.num_prefix = before.size();
  turn.is_policy = true;
  turn.completion.tokens = tokens;
  turn.completion.logprobs.assign(tokens.size(), logprob);
  turn.completion.finish_reason = reason;
  turn.completion.versions = {{.begin = 0, .version = 4}};
  return turn;
}

// Two turns of two tokens with a tool's 9 in between.
std::vector<TurnRecord> two_turns() {
  return {turn_of({1, 2, 3}, {5, 6}, -0.5F), turn_of({1, 2, 3, 5, 6, 9}, {7, 8}, -0.25F, rl::FinishReason::kLength)};
}

reward::Generated made_of(const std::vector<int32_t>& response, const std::vector<uint8_t>& mask) {
  reward::Generated made;
  made.sample_id = 11;
  made.tokens = {1, 2, 3};
  made.tokens.insert(made.tokens.end(), response.begin(), response.end());
  made.response_length = std::ssize(response);
  made.loss_mask = mask;
  return made;
}

rl::Sample sample_of(const reward::Generated& made, const std::vector<TurnRecord>& turns, int64_t max_tokens = 100) {
  return sample_of_turns(made, kPrompt, 2, turns, max_tokens, kVocab, /*has_behavior_logprobs=*/false);
}

std::string refusal_of(const reward::Generated& made, const std::vector<TurnRecord>& turns) {
  return base::thrown_by([&] { sample_of(made, turns); });
}

TEST(TurnSampler, TokensHaveTheEnginesLogProbs) {
  const rl::Sample sample = sample_of(made_of({5, 6, 9, 7, 8}, {1, 1, 0, 1, 1}), two_turns());
  EXPECT_EQ(sample.completion, (std::vector<int32_t>{5, 6, 9, 7, 8}));
  EXPECT_EQ(sample.loss_mask, (std::vector<uint8_t>{1, 1, 0, 1, 1}));
  EXPECT_EQ(sample.rollout_logprobs, (std::vector<float>{-0.5F, -0.5F, 0.0F, -0.25F, -0.25F}));
  EXPECT_EQ(sample.status, rl::SampleStatus::kTruncated) << "as the call that sampled the last token ended";
  EXPECT_EQ(sample.num_turns, 2);
  ASSERT_EQ(sample.versions.size(), 1U);
  EXPECT_EQ(sample.versions.front().version, 4U);
  EXPECT_EQ(sample.prompt, kPrompt) << "the same object for all samples of a group";
  EXPECT_TRUE(sample.behavior_logprobs.empty());
}

TEST(TurnSampler, TokensKnowTheWeightsThatSampledThem) {
  const auto sample_with = [](const std::vector<rl::VersionSpan>& first, const std::vector<rl::VersionSpan>& second) {
    std::vector<TurnRecord> turns = two_turns();
    turns[0].completion.versions = first;
    turns[1].completion.versions = second;
    return sample_of(made_of({5, 6, 9, 7, 8}, {1, 1, 0, 1, 1}), turns);
  };
  const rl::Sample newer = sample_with({{0, 4}}, {{0, 4}, {1, 5}});
  ASSERT_EQ(newer.versions.size(), 2U);
  EXPECT_EQ(newer.versions[1].begin, 4);
  EXPECT_EQ(newer.first_token_of(5), 4);
  EXPECT_EQ(newer.first_token_of(4), 5) << "the last token is of others";
  EXPECT_EQ(sample_with({{0, 4}, {1, 5}}, {{0, 6}}).first_token_of(6), 3);
  EXPECT_EQ(sample_with({{0, 4}}, {{0, 4}}).first_token_of(4), 0);
}

TEST(TurnSampler, PiecesSayWhoGaveWhichTokens) {
  const auto pieces_of = [](const std::vector<int32_t>& response, const std::vector<uint8_t>& mask,
                            const std::vector<TurnRecord>& turns) {
    std::string text;
    for (const rl::SamplePiece& piece : sample_of(made_of(response, mask), turns).pieces)
      text += std::to_string(piece.begin) + (piece.is_sampled ? " model, " : " function, ");
    return text;
  };
  EXPECT_EQ(pieces_of({5, 6, 9, 7, 8}, {1, 1, 0, 1, 1}, two_turns()), "0 model, 2 function, 3 model, ");
  EXPECT_EQ(pieces_of({9, 9}, {0, 0}, two_turns()), "0 function, ");
  // Two calls without a tool's word between them are two pieces.
  EXPECT_EQ(pieces_of({5, 6, 7}, {1, 1, 1}, {turn_of({1, 2, 3}, {5, 6}, -0.5F), turn_of({1, 2, 3, 5, 6}, {7}, -0.5F)}),
            "0 model, 2 model, ");
}

TEST(TurnSampler, WithoutAMaskAllIsTrainedOn) {
  EXPECT_EQ(sample_of(made_of({5, 6}, {}), two_turns()).loss_mask, (std::vector<uint8_t>{1, 1}));
  EXPECT_NE(refusal_of(made_of({5, 6, 9}, {}), two_turns()), "");
}

TEST(TurnSampler, APartOfATurnMayBeKept) {
  const rl::Sample sample = sample_of(made_of({5, 9, 9}, {1, 0, 0}), two_turns());
  EXPECT_EQ(sample.rollout_logprobs, (std::vector<float>{-0.5F, 0.0F, 0.0F}));
  EXPECT_EQ(sample.status, rl::SampleStatus::kCompleted);
}

TEST(TurnSampler, WhatTheEngineDidNotSampleThereIsRefused) {
  EXPECT_NE(refusal_of(made_of({5, 4}, {1, 1}), two_turns()).find("token 1 of the response (id 4) has loss_mask 1"),
            std::string::npos);
  EXPECT_NE(refusal_of(made_of({6, 5}, {1, 1}), two_turns()).find("token 0 of the response (id 6)"), std::string::npos);
  // These are the right tokens, but they were sampled after others.
  EXPECT_NE(refusal_of(made_of({5, 6, 10, 7, 8}, {1, 1, 0, 1, 1}), two_turns()).find("token 3"), std::string::npos);
  // This token follows one that was changed, though both are the engine's.
  EXPECT_NE(refusal_of(made_of({4, 6}, {0, 1}), two_turns()).find("token 1"), std::string::npos);
  std::vector<TurnRecord> colder = two_turns();
  colder[0].is_policy = false;
  EXPECT_NE(refusal_of(made_of({5, 6}, {1, 1}), colder).find("token 0"), std::string::npos);
  EXPECT_EQ(refusal_of(made_of({5, 6}, {0, 0}), colder), "") << "what is not trained on may be anything";
}

TEST(TurnSampler, ThePromptStaysWhatItWas) {
  reward::Generated made = made_of({5, 6}, {1, 1});
  made.tokens.erase(made.tokens.begin());
  EXPECT_NE(refusal_of(made, two_turns()).find("sample.tokens must be the 3 tokens of the prompt"), std::string::npos);
  made = made_of({5, 6}, {1, 1});
  made.tokens[1] = 7;
  EXPECT_NE(refusal_of(made, two_turns()).find("sample.tokens must be"), std::string::npos);
  EXPECT_NE(refusal_of(made_of({}, {}), two_turns()).find("returned no response"), std::string::npos);
}

TEST(TurnSampler, AnIdThatTheModelHasNotIsRefusedMaskedOrNot) {
  EXPECT_EQ(refusal_of(made_of({5, 6, 263}, {1, 1, 0}), two_turns()), "")
      << "a padded vocabulary has rows without text";
  for (const int32_t id : {264, 1'000'000}) {
    const std::string refusal = refusal_of(made_of({5, 6, id}, {1, 1, 0}), two_turns());
    EXPECT_NE(refusal.find(fmt::format("token 2 of the response is {}, which is no token id of this model; ids are 0 "
                                       "to 263",
                                       id)),
              std::string::npos)
        << refusal;
  }
}

TEST(TurnSampler, AResponseEndsWhereTheRoomEnds) {
  reward::Generated made = made_of({5, 6, 9, 9, 9, 9}, {1, 1, 0, 0, 0, 0});
  made.status = "completed";
  const rl::Sample sample = sample_of(made, two_turns(), /*max_tokens=*/7);
  EXPECT_EQ(sample.completion, (std::vector<int32_t>{5, 6, 9, 9}));
  EXPECT_EQ(sample.loss_mask, (std::vector<uint8_t>{1, 1, 0, 0}));
  EXPECT_EQ(sample.status, rl::SampleStatus::kTruncated);
  EXPECT_EQ(sample_of(made, two_turns()).status, rl::SampleStatus::kCompleted);
}

// A conversation of an agent: a beginning of its own, 20 21, an answer, a tool's word, another answer.
TEST(TurnSampler, AFurtherSequenceHasTheLogProbsOfItsOwnBeginning) {
  const std::vector<TurnRecord> turns = {turn_of({1, 2, 3}, {5, 6}, -0.5F), turn_of({20, 21}, {5, 6}, -0.25F),
                                         turn_of({20, 21, 5, 6, 9}, {7}, -0.125F)};
  reward::Generated made = made_of({5, 6, 20, 21, 5, 6, 9, 7}, {1, 1, 0, 0, 1, 1, 0, 1});
  made.sequence_begins = {2};
  made.endpoint_answers = 3;
  const rl::Sample sample = sample_of(made, turns);
  EXPECT_EQ(sample.rollout_logprobs, (std::vector<float>{-0.5F, -0.5F, 0.0F, 0.0F, -0.25F, -0.25F, 0.0F, -0.125F}));
  EXPECT_EQ(sample.sequence_begins, std::vector<int64_t>{2});
  EXPECT_EQ(sample.num_after_prompt(), 2U);
  EXPECT_EQ(sample.endpoint.answers, 3);
  std::string begins;
  for (const rl::SamplePiece& piece : sample.pieces) begins += std::to_string(piece.begin) + " ";
  EXPECT_EQ(begins, "0 2 4 6 7 ");
  made.sequence_begins = {};  // one sequence: these tokens were sampled after others
  EXPECT_NE(refusal_of(made, turns).find("token 4"), std::string::npos);
  made.sequence_begins = {7};
  EXPECT_NE(refusal_of(made, turns).find("sequence 1 of the sample has 1 token"), std::string::npos);
}

TEST(TurnSampler, ASequenceIsCutToTwoTokensOrNone) {
  const std::vector<TurnRecord> turns = {turn_of({20}, {5, 6}, -0.25F), turn_of({30}, {7, 8}, -0.5F)};
  reward::Generated made = made_of({20, 5, 6, 30, 7, 8}, {0, 1, 1, 0, 1, 1});
  made.sequence_begins = {0, 3};
  EXPECT_EQ(sample_of(made, turns, 8).completion.size(), 5U);
  const rl::Sample cut = sample_of(made, turns, 7);
  EXPECT_EQ(cut.completion, (std::vector<int32_t>{20, 5, 6}));
  EXPECT_EQ(cut.sequence_begins, std::vector<int64_t>{0});
  EXPECT_EQ(cut.status, rl::SampleStatus::kTruncated);
  EXPECT_THROW(sample_of(made, turns, 4), UserError) << "no room for a token that was sampled";
}

TEST(TurnSampler, PrefixesOfOneAnotherHaveHashesOfTheirOwn) {
  std::set<uint64_t> hashes;
  for (int32_t a = 0; a < 40; ++a) {
    for (int32_t b = 0; b < 40; ++b) hashes.insert(PrefixHash::of({a, b}));
    hashes.insert(PrefixHash::of({a}));
  }
  hashes.insert(PrefixHash::of({}));
  EXPECT_EQ(hashes.size(), 40U * 40U + 40U + 1U);
}

TEST(TurnSampler, ACallSaysAllOfItsSampling) {
  rl::SamplingParams sampling;
  sampling.temperature = 0.7;
  sampling.stop = {"</call>"};
  sampling.seed = 9;
  base::Json asked = sampling_json(sampling, /*skip_special_tokens=*/true);
  rl::SamplingParams read = sampling_of_call({}, asked);
  EXPECT_EQ(read.temperature, 0.7);
  EXPECT_EQ(read.stop, sampling.stop);
  EXPECT_EQ(read.seed, 0U) << "the seed is the run's";
  asked["top_k"] = 0;
  EXPECT_EQ(sampling_of_call({}, asked).top_k, -1);
  for (const char* key : {"temperature", "top_k", "stop", "ignore_eos"}) {
    base::Json wrong = asked;
    wrong[key] = base::Json::object();
    EXPECT_THROW(sampling_of_call({}, wrong), UserError) << key;
    wrong.erase(key);
    EXPECT_THROW(sampling_of_call({}, wrong), UserError) << key;
  }
}

}  // namespace
}  // namespace tandem::sampling
