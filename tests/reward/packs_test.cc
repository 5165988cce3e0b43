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

// A process is killed again and again: what it had is graded by another.
TEST(Packs, OfALostProcessAreGradedAlone) {
  Graders graders(built_in(1));
  const std::vector<GradeRequest> all = requests(4, 3000);
  for (const GradeRequest& one : all) graders.submit({one});
  std::vector<Grade> grades;
  int num_kills = 0;
  while (grades.size() < all.size()) {
    const std::vector<Grade> some = graders.take_finished(10.0);
    ASSERT_FALSE(some.empty());
    grades.insert(grades.end(), some.begin(), some.end());
    const std::vector<int64_t> ids = graders.process_ids();
    if (num_kills < 5 && grades.size() > 300U * static_cast<size_t>(num_kills + 1) && !ids.empty() && ids[0] > 0) {
      ::kill(static_cast<pid_t>(ids[0]), SIGKILL);
      ++num_kills;
    }
  }
  EXPECT_EQ(num_kills, 5);
  // A signal that comes while one call is made alone fails that one; packs lose nothing.
  const auto num_failed = std::ranges::count(grades, true, &Grade::failed);
  EXPECT_LE(num_failed, num_kills);
  for (const Grade& grade : grades) {
    if (!grade.failed) {
      EXPECT_EQ(grade.reward, right(all[grade.sample_id]));
    }
  }
  EXPECT_GT(graders.repeated(), 1);
}

}  // namespace
}  // namespace tandem::reward
