// A sampler whose pool is in another process, over a channel to a rank 0 that the test plays.
#include "sampling/processes/pool_client.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "tests/sampling/drawn_engine.h"
#include "tests/sampling/rank_parts.h"

namespace tandem::sampling {
namespace {

constexpr uint64_t kRollout = 3;

class PoolClientTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new base::TemporaryDirectory();
    base::write_file_durably(*folder_ / "reward.py", kReward);
    parts_ = new RankParts(*folder_ / "reward.py:reward");
  }
  static void TearDownTestSuite() {
    delete parts_;
    delete folder_;
  }
  void SetUp() override {
    std::array<int, 2> ends{};
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
    rank0_ = std::make_unique<mesh::Channel>(mesh::OwnedDescriptor(ends[0]), 10.0);
    own_ = std::make_unique<mesh::Channel>(mesh::OwnedDescriptor(ends[1]), 10.0);
  }

  // The sampler has the request as it is now.
  PoolClient& begin(std::optional<base::Clock::time_point> still_since = std::nullopt) {
    sampler_.emplace(request_, engine_, parts_->text, &parts_->graders, /*most_samples=*/8, /*shares=*/false);
    return client_.emplace(*own_, kRollout, *sampler_, still_since);
  }
  // Returns the last answer of this kind that has come.
  template <typename Answer>
  std::optional<Answer> heard() {
    std::optional<Answer> answer;
    while (const std::optional<std::string> bytes = rank0_->receive(0.0)) {
      Message message = message_of(*bytes);
      if (auto* const each = std::get_if<Answer>(&message)) answer = std::move(*each);
    }
    return answer;
  }
  // Works until there is one.
  template <typename Answer>
  Answer next() {
    while (true) {
      client_->work();
      if (std::optional<Answer> answer = heard<Answer>()) return std::move(*answer);
    }
  }
  static LendSamples samples(uint64_t key, uint64_t group, uint64_t count) {
    return {.rollout = kRollout, .key = key, .group = group, .first = 0, .count = count, .line = prompts(2).at(group)};
  }

  // All tests share these, because they start processes.
  static inline base::TemporaryDirectory* folder_ = nullptr;
  static inline RankParts* parts_ = nullptr;
  std::unique_ptr<mesh::Channel> rank0_, own_;
  RolloutRequest request_;
  DrawnEngine engine_{{}};
  std::optional<Sampler> sampler_;
  std::optional<PoolClient> client_;
};

// A process that had nothing to sample and nobody's grade to wait for kept such an answer until its next loan, which at
// the end of a rollout never comes.
TEST_F(PoolClientTest, AnswersAGradingWhoseSamplesHaveAllFailedAtOnce) {
  for (const bool is_filtered : {false, true}) {
    request_.n_samples_per_prompt = 2;
    request_.failure_reward.reward = -1.0;
    if (is_filtered) request_.dynamic.emplace().filter = &parts_->filter;
    PoolClient& client = begin();
    LendGrading loan{.rollout = kRollout, .key = 5, .group = 0, .line = prompts(1).front(), .members = {}};
    for (uint64_t id = 0; id < 2; ++id) {
      groups::Member member;
      member.sample.sample_id = id;
      member.failure = "ValueError: no luck";
      loan.members.push_back(member);
    }
    client.take(loan);
    EXPECT_TRUE(sampler_->is_busy()) << "whoever waits for work would wait in vain";
    client.work();
    const std::optional<Graded> answer = heard<Graded>();
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

// A run that pauses for new weights waits until all loans are given back, and the tokenizer's process needs some
// milliseconds for the texts of long completions. So these are decoded later, when the group is graded.
TEST_F(PoolClientTest, GivesSamplesBackWithoutTextsAndSendsThemWithTheGrades) {
  request_.n_samples_per_prompt = 3;
  PoolClient& client = begin();
  LendSamples loan = samples(/*key=*/1, /*group=*/0, /*count=*/3);
  client.take(loan);
  std::vector<groups::Member> members = next<Sampled>().members;
  ASSERT_EQ(members.size(), 3U);
  for (const groups::Member& member : members) EXPECT_EQ(member.sample.text, "");
  members[1].failure = "ValueError: no luck";

  LendGrading grading{.rollout = kRollout, .key = 2, .group = 0, .line = prompts(1).front(), .members = members};
  client.take(grading);
  const std::vector<std::string> texts = next<Graded>().texts;
  ASSERT_EQ(texts.size(), 3U);
  for (const size_t i : {0U, 2U}) EXPECT_EQ(texts[i], parts_->text.decode({members[i].sample.completion}, false).at(0));
  EXPECT_NE(texts[0], "");
  EXPECT_EQ(texts[1], "");
}

TEST_F(PoolClientTest, SaysHowLongAPausedSamplerStoodStillUntilItsFirstLoan) {
  request_.n_samples_per_prompt = 2;
  constexpr std::chrono::hours kStill(1);
  PoolClient& client = begin(base::Clock::now() - kStill);
  for (uint64_t key = 0; key < 2; ++key) {
    LendSamples loan = samples(key, /*group=*/key, /*count=*/2);
    client.take(loan);
    EXPECT_NEAR(next<Sampled>().numbers.still_seconds, std::chrono::duration<double>(kStill).count(), 60.0)
        << "what comes after the first loan is no pause";
  }
}

}  // namespace
}  // namespace tandem::sampling
