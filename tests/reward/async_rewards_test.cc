// Calls of an async reward function that are under way together in one process: fast, and each as if it were alone.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "tests/base/takes_less_than.h"
#include "tests/reward/grader_fixture.h"

namespace tandem::reward {
namespace {

TEST(AsyncRewards, WaitTogether) {
  for (const int num_processes : {1, 2}) {
    GraderConfig config = function("async_calls.py:waits");
    config.limits.num_processes = num_processes;
    Graders graders(config);
    EXPECT_TRUE(base::takes_less_than(2.0, [&] {  // 16 s one after the other
      for (uint64_t i = 0; i < 16; ++i) graders.submit({request(i, "1.0")});
      for (const Grade& grade : take_all(graders)) EXPECT_EQ(grade.reward, 1.0) << grade.reason;
    })) << num_processes;
  }
}

TEST(AsyncRewards, AreAtMostMaxCallsAtOnce) {
  GraderConfig config = function("async_calls.py:together");
  config.limits.max_calls = 3;
  Graders graders(config);
  for (uint64_t i = 0; i < 6; ++i) graders.submit({request(i, "")});
  const std::vector<Grade> grades = take_all(graders);
  EXPECT_LE(grades[0].reward, 3.0);
  EXPECT_EQ(grades[5].reward, 6.0);
}

TEST(AsyncRewards, OfGroupsWaitTogetherToo) {
  Graders graders(function("async_calls.py:sum_of_group"));
  EXPECT_TRUE(base::takes_less_than(1.0, [&] {  // 2 s one after the other
    for (uint64_t i = 0; i < 20; i += 2) graders.submit({request(i, "aaa"), request(i + 1, "bb")});
    for (const Grade& grade : take_all(graders)) EXPECT_EQ(grade.reward, 5.0) << grade.reason;
  }));
}

// However calls are mixed, each has the random numbers that it has alone.
TEST(AsyncRewards, DrawTheSameNumbersInAnyCompany) {
  std::vector<std::vector<double>> runs;
  for (const auto& [num_processes, max_calls] : {std::pair{1, 1}, {1, 32}, {3, 5}}) {
    GraderConfig config = function("async_calls.py:draws");
    config.limits.num_processes = num_processes;
    config.limits.max_calls = max_calls;
    Graders graders(config);
    std::vector<double> numbers;
    for (uint64_t i = 0; i < 20; ++i) graders.submit({request(i, "")});
    for (const Grade& grade : take_all(graders)) {
      EXPECT_FALSE(grade.failed) << grade.reason;
      for (const auto& [name, value] : grade.extras) numbers.push_back(value);
      numbers.push_back(grade.reward);
    }
    runs.push_back(numbers);
  }
  EXPECT_EQ(runs[0].size(), 60U);
  EXPECT_EQ(runs[0], runs[1]);
  EXPECT_EQ(runs[0], runs[2]);
}

// Twelve calls that compute for 0.25 s each after an await: the last one ends 3 s after it began. Its clock does not
// count what the others compute, so a deadline of 1 s is kept by all, and no process is taken for hung.
TEST(AsyncRewards, AreNotLateForOthersComputing) {
  GraderConfig config = function("async_calls.py:computes");
  config.limits.deadline_s = 1.2;
  Graders graders(config);
  for (uint64_t i = 0; i < 12; ++i) graders.submit({request(i, "")});
  for (const Grade& grade : take_all(graders)) EXPECT_EQ(grade.reward, 1.0) << grade.reason;
  EXPECT_EQ(graders.restarts(), 0);
  EXPECT_EQ(graders.repeated(), 0);
}

// A function's own time-out that passes while its call waits for the next turn was once lost, and the call with it.
TEST(AsyncRewards, SeeTheirOwnTimeOuts) {
  Graders graders(function("async_calls.py:keeps_its_own_time"));
  graders.submit({request(1, "waits")});
  graders.submit({request(2, "computes")});
  const std::vector<Grade> grades = take_all(graders);
  EXPECT_EQ(grades[0].reward, 0.25) << grades[0].reason;
  EXPECT_EQ(grades[1].reward, 1.0) << grades[1].reason;
}

struct AsyncFault {
  const char* name;
  const char* reason_class;
  const char* reason;
  bool costs_the_process;  // so that those beside it are made again
};

TEST(AsyncRewards, FailAlone) {
  const std::vector<AsyncFault> faults = {
      {"hangs_for_ever", "deadline", "the deadline of 1 s passed", false},
      {"will_not_be_cancelled", "deadline", "the deadline of 1 s passed", false},
      {"exits", "exception", "SystemExit: 3", false},
      {"cancels_itself", "exception", "CancelledError", false},
      {"forgets_to_await", "wrong_type", "the reward is a coroutine", false},
      {"exits_in_a_task", "died", "grader worker", true},
      {"blocks", "deadline", "without an await: the deadline of 1 s passed", true},
      {"dies", "died", "exited with code 5", true},
      {"eats_memory", "memory", "MemoryError", true},
  };
  for (const AsyncFault& fault : faults) {
    GraderConfig config = function("async_calls.py:score");
    config.limits.deadline_s = 1.0;
    config.limits.memory_bytes = int64_t{512} << 20;
    Graders graders(config);
    std::vector<GradeRequest> samples;
    for (uint64_t i = 0; i < 6; ++i) samples.push_back(request(i, i == 2 ? fault.name : "0.5"));
    graders.submit(samples);
    const std::vector<Grade> grades = take_all(graders);
    for (size_t i = 0; i < grades.size(); ++i) {
      if (i == 2) continue;
      EXPECT_EQ(grades[i].reward, 0.5) << fault.name << ": " << grades[i].reason;
    }
    EXPECT_EQ(grades[2].reason_class, fault.reason_class) << fault.name << ": " << grades[2].reason;
    EXPECT_NE(grades[2].reason.find(fault.reason), std::string::npos) << fault.name << ": " << grades[2].reason;
    EXPECT_EQ(graders.repeated() > 0, fault.costs_the_process) << fault.name << ": " << graders.repeated();
    EXPECT_EQ(graders.failures(), (std::map<std::string, int64_t>{{fault.reason_class, 1}})) << fault.name;
    EXPECT_EQ(grade_one(graders, request(9, "0.25")).reward, 0.25) << fault.name;
  }
}

TEST(AsyncRewards, HaveTasksOfTheirOwn) {
  Graders graders(function("async_calls.py:background"));
  for (uint64_t i = 0; i < 8; ++i) graders.submit({request(i, "")});
  for (const Grade& grade : take_all(graders)) EXPECT_EQ(grade.reward, 0.5) << grade.reason;
}

}  // namespace
}  // namespace tandem::reward
