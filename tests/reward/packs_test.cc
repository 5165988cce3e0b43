// Calls of built-in rewards, which go to a process several at a time once they are known to be short.
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <random>
#include <string>
#include <vector>

#include "tests/reward/grader_fixture.h"

namespace tandem::reward {
namespace {

GraderConfig built_in(int num_processes) {
  GraderConfig config = rule("math");
  config.rm_types.emplace_back("exact");
  config.limits.num_processes = num_processes;
  return config;
}

GradeRequest asked(std::mt19937& random, uint64_t id) {
  const std::string label = std::to_string(random() % 10), said = std::to_string(random() % 10);
  const bool is_exact = random() % 2 == 0;
  GradeRequest request;
  request.group_id = request.sample_id = id;
  request.label = label;
  request.rm_type = is_exact ? "exact" : "math";
  request.response = is_exact ? said : "\\boxed{" + said + "}";
  return request;
}

double right(const GradeRequest& request) {
  const bool is_right = request.response.find(request.label.get<std::string>()) != std::string::npos;
  return is_right ? 1.0 : 0.0;
}

std::vector<GradeRequest> requests(uint32_t seed, uint64_t count) {
  std::mt19937 random(seed);
  std::vector<GradeRequest> result;
  for (uint64_t id = 0; id < count; ++id) result.push_back(asked(random, id));
  return result;
}

void expect_right(const std::vector<GradeRequest>& asked, const std::vector<Grade>& grades) {
  ASSERT_EQ(grades.size(), asked.size());
  for (const Grade& grade : grades) {
    const GradeRequest& request = asked[grade.sample_id];
    EXPECT_FALSE(grade.failed) << grade.reason;
    EXPECT_EQ(grade.reward, right(request)) << request.rm_type << ": " << request.response << ", " << request.label;
  }
}

TEST(Packs, GiveEachSampleItsOwnGrade) {
  for (const int num_processes : {1, 3}) {
    Graders graders(built_in(num_processes));
    for (const uint32_t seed : {1U, 2U, 3U}) {
      SCOPED_TRACE(testing::Message() << "seed " << seed << ", " << num_processes << " processes");
      const std::vector<GradeRequest> all = requests(seed, 400);
      for (const GradeRequest& one : all) graders.submit({one});
      expect_right(all, take_all(graders));
    }
    EXPECT_EQ(graders.repeated(), 0);
    EXPECT_EQ(graders.restarts(), 0);
  }
}

// A process is killed again and again: what it had is graded by another. Where a machine is so busy that a call of
// microseconds takes milliseconds, there are no packs for a while.
TEST(Packs, OfALostProcessAreGradedAlone) {
  constexpr int kLeastKills = 5, kMostKills = 40;
  constexpr size_t kOfARound = 600;
  Graders graders(built_in(1));
  std::mt19937 random(4);
  int64_t num_failed = 0;
  int num_kills = 0;
  while (num_kills < kLeastKills || (graders.repeated() <= 1 && num_kills < kMostKills)) {
    std::vector<GradeRequest> all;
    for (uint64_t id = 0; id < kOfARound; ++id) all.push_back(asked(random, id));
    for (const GradeRequest& one : all) graders.submit({one});
    const size_t kill_after = 100 + random() % 300;
    bool is_killed = false;
    for (size_t num_graded = 0; num_graded < kOfARound;) {
      const std::vector<Grade> some = graders.take_finished(10.0);
      ASSERT_FALSE(some.empty());
      num_graded += some.size();
      for (const Grade& grade : some) {
        EXPECT_TRUE(grade.failed || grade.reward == right(all[grade.sample_id])) << grade.sample_id << grade.reason;
      }
      num_failed += std::ranges::count(some, true, &Grade::failed);
      const std::vector<int64_t> ids = graders.process_ids();
      if (is_killed || num_graded < kill_after || ids.empty() || ids[0] <= 0) continue;
      ::kill(static_cast<pid_t>(ids[0]), SIGKILL);
      is_killed = true;
      ++num_kills;
    }
  }
  // A signal that comes while one call is made alone fails that one; packs lose nothing.
  EXPECT_LE(num_failed, num_kills);
  EXPECT_GT(graders.repeated(), 1) << "after " << num_kills << " kills";
}

}  // namespace
}  // namespace tandem::reward
