// A sampler whose pool is in another process, over a channel to a rank 0 that the test plays.
#include "sampling/pool_client.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "tests/sampling/drawn_engine.h"
#include "tests/sampling/rank_parts.h"

namespace tandem::sampling {
namespace {

constexpr uint64_t kRollout = 3;

// A process that had nothing to sample and nobody's grade to wait for kept such an answer until its next loan, which at
// the end of a rollout never comes.
TEST(PoolClient, AnswersAGradingWhoseSamplesHaveAllFailedAtOnce) {
  const base::TemporaryDirectory folder;
  base::write_file_durably(folder / "reward.py", kReward);
  RankParts parts(folder / "reward.py:reward");
  for (const bool is_filtered : {false, true}) {
    std::array<int, 2> ends{};
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
    mesh::Channel rank0(mesh::OwnedDescriptor(ends[0]), 10.0), own(mesh::OwnedDescriptor(ends[1]), 10.0);
    RolloutRequest request;
    request.n_samples_per_prompt = 2;
    request.failure_reward.reward = -1.0;
    if (is_filtered) request.dynamic.emplace().filter = &parts.filter;
    DrawnEngine engine({});
    Sampler sampler(request, engine, parts.text, &parts.graders, /*most_samples=*/8, /*shares=*/false);
    PoolClient client(own, kRollout, sampler);
    LendGrading loan{.rollout = kRollout, .key = 5, .group = 0, .line = prompts(1).front(), .members = {}};
    for (uint64_t id = 0; id < 2; ++id) {
      groups::Member member;
      member.sample.sample_id = id;
      member.failure = "ValueError: no luck";
      loan.members.push_back(member);
    }
    client.take(loan);
    EXPECT_TRUE(sampler.is_busy()) << "whoever waits for work would wait in vain";
    client.work();
    std::optional<Graded> answer;
    while (const std::optional<std::string> bytes = rank0.receive(0.0)) {
      Message message = message_of(*bytes);
      if (auto* const graded = std::get_if<Graded>(&message)) answer = std::move(*graded);
    }
    ASSERT_TRUE(answer.has_value());
    EXPECT_EQ(answer->key, 5U);
    EXPECT_FALSE(answer->graded.is_judged) << "there is nothing to judge";
    EXPECT_TRUE(answer->graded.verdict.is_kept);
    ASSERT_EQ(answer->graded.grades.size(), 2U);
    for (const reward::Grade& grade : answer->graded.grades) {
      EXPECT_TRUE(grade.failed);
      EXPECT_EQ(grade.reason, "ValueError: no luck");
    }
  }
}

// What decodes text takes its time, and a run that pauses for new weights waits for all loans.
TEST(PoolClient, GivesSamplesBackWithoutTextsAndSendsThemWithTheGrades) {
  const base::TemporaryDirectory folder;
  base::write_file_durably(folder / "reward.py", kReward);
  RankParts parts(folder / "reward.py:reward");
  std::array<int, 2> ends{};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
  mesh::Channel rank0(mesh::OwnedDescriptor(ends[0]), 10.0), own(mesh::OwnedDescriptor(ends[1]), 10.0);
  RolloutRequest request;
  request.n_samples_per_prompt = 3;
  DrawnEngine engine({});
  Sampler sampler(request, engine, parts.text, &parts.graders, /*most_samples=*/8, /*shares=*/false);
  PoolClient client(own, kRollout, sampler);
  const auto next = [&]<typename Answer>(std::optional<Answer> answer) {
    while (!answer) {
      client.work();
      while (const std::optional<std::string> bytes = rank0.receive(0.0)) {
        Message message = message_of(*bytes);
        if (auto* const each = std::get_if<Answer>(&message)) answer = std::move(*each);
      }
    }
    return std::move(*answer);
  };
  LendSamples loan{.rollout = kRollout, .key = 1, .group = 0, .first = 0, .count = 3, .line = prompts(1).front()};
  client.take(loan);
  std::vector<groups::Member> members = next(std::optional<Sampled>()).members;
  ASSERT_EQ(members.size(), 3U);
  for (const groups::Member& member : members) EXPECT_EQ(member.sample.text, "");
  members[1].failure = "ValueError: no luck";

  LendGrading grading{.rollout = kRollout, .key = 2, .group = 0, .line = prompts(1).front(), .members = members};
  client.take(grading);
  const std::vector<std::string> texts = next(std::optional<Graded>()).texts;
  ASSERT_EQ(texts.size(), 3U);
  for (const size_t i : {0U, 2U}) EXPECT_EQ(texts[i], parts.text.decode({members[i].sample.completion}, false).at(0));
  EXPECT_NE(texts[0], "");
  EXPECT_EQ(texts[1], "");
}

TEST(PoolClient, SaysHowLongAPausedSamplerStoodStillUntilItsFirstLoan) {
  const base::TemporaryDirectory folder;
  base::write_file_durably(folder / "reward.py", kReward);
  RankParts parts(folder / "reward.py:reward");
  std::array<int, 2> ends{};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
  mesh::Channel rank0(mesh::OwnedDescriptor(ends[0]), 10.0), own(mesh::OwnedDescriptor(ends[1]), 10.0);
  RolloutRequest request;
  request.n_samples_per_prompt = 2;
  DrawnEngine engine({});
  Sampler sampler(request, engine, parts.text, &parts.graders, /*most_samples=*/8, /*shares=*/false);
  constexpr std::chrono::hours kStill(1);
  PoolClient client(own, kRollout, sampler, base::Clock::now() - kStill);
  for (uint64_t key = 0; key < 2; ++key) {
    LendSamples loan{.rollout = kRollout, .key = key, .group = key, .first = 0, .count = 2, .line = prompts(2).at(key)};
    client.take(loan);
    std::optional<Sampled> sampled;
    while (!sampled) {
      client.work();
      while (const std::optional<std::string> bytes = rank0.receive(0.0)) {
        Message message = message_of(*bytes);
        if (auto* const each = std::get_if<Sampled>(&message)) sampled = std::move(*each);
      }
    }
    EXPECT_NEAR(sampled->numbers.still_seconds, std::chrono::duration<double>(kStill).count(), 60.0)
        << "what comes after the first loan is no pause";
  }
}

}  // namespace
}  // namespace tandem::sampling
