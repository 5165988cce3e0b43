// Grades that are taken as they come, and calls that nobody wants any more.
#include <gtest/gtest.h>
#include <poll.h>

#include <map>
#include <set>
#include <vector>

#include "base/files.h"
#include "tests/base/temporary_directory.h"
#include "tests/reward/grader_fixture.h"

namespace tandem::reward {
namespace {

GraderConfig sleeping(const base::TemporaryDirectory& folder) {
  base::write_file_durably(folder / "reward.py",
                           "import time\n"
                           "def reward(solution_str, ground_truth, data_source, extra_info=None):\n"
                           "    time.sleep(float(solution_str))\n"
                           "    return float(solution_str)\n");
  GraderConfig config = function("");
  config.custom_rm_path = folder / "reward.py:reward";
  config.limits.num_processes = 2;
  return config;
}

TEST(TakenGrades, AreAnnouncedByTheDescriptorUntilTheyAreTaken) {
  const base::TemporaryDirectory folder;
  Graders graders(sleeping(folder));
  const auto has_news = [&](double wait_s) {
    pollfd polled = {graders.descriptor(), POLLIN, 0};
    return poll(&polled, 1, static_cast<int>(wait_s * 1000.0)) == 1;
  };
  EXPECT_FALSE(has_news(0.0));
  graders.submit({request(1, "0.01")});
  EXPECT_TRUE(has_news(30.0));
  EXPECT_EQ(graders.take_finished(0.0).size(), 1U);
  EXPECT_FALSE(has_news(0.0));
  graders.submit({request(2, "0.01")});
  EXPECT_TRUE(has_news(30.0));
  graders.discard();
  EXPECT_FALSE(has_news(0.0)) << "what was discarded is no news";
}

TEST(TakenGrades, ComeAsTheyEndAndEachOnce) {
  const base::TemporaryDirectory folder;
  Graders graders(sleeping(folder));
  EXPECT_TRUE(graders.take_finished(10.0).empty()) << "nothing is waited for where nothing was submitted";
  for (uint64_t i = 0; i < 6; ++i) graders.submit({request(i, i == 0 ? "0.5" : "0.01")});
  std::vector<uint64_t> order;
  while (order.size() < 6) {
    for (const Grade& grade : graders.take_finished(10.0)) {
      EXPECT_EQ(grade.reward, grade.sample_id == 0 ? 0.5 : 0.01);
      order.push_back(grade.sample_id);
    }
  }
  EXPECT_EQ(order.back(), 0U) << "the slow one does not hold up the others";
  EXPECT_EQ(std::set<uint64_t>(order.begin(), order.end()).size(), 6U);
  graders.submit({request(7, "0")});
  EXPECT_EQ(take_all(graders).at(0).sample_id, 7U) << "what is submitted afterwards has grades too";
}

TEST(TakenGrades, DiscardedCallsGiveNone) {
  const base::TemporaryDirectory folder;
  Graders graders(sleeping(folder));
  for (uint64_t i = 0; i < 50; ++i) graders.submit({request(i, "0.2")});
  graders.take_finished(0.0);
  graders.discard();
  EXPECT_TRUE(graders.take_finished(10.0).empty()) << "nothing is left to wait for";
  graders.submit({request(100, "0"), request(101, "0.1")});
  std::map<uint64_t, double> rewards;
  for (std::vector<Grade> grades = graders.take_finished(10.0); !grades.empty(); grades = graders.take_finished(10.0)) {
    for (const Grade& grade : grades) {
      EXPECT_TRUE(rewards.emplace(grade.sample_id, grade.reward).second) << grade.sample_id << " came twice";
    }
  }
  // The calls that were under way have ended by then: the new ones waited for their processes.
  EXPECT_EQ(rewards, (std::map<uint64_t, double>{{100, 0.0}, {101, 0.1}}));
}

}  // namespace
}  // namespace tandem::reward
