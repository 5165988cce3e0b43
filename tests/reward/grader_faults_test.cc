// Bad user code costs us nothing but a failed sample.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tandem/error.h"
#include "tests/reward/grader_fixture.h"
#include "tests/reward/repeat.h"
#include "tests/worker/process_facts.h"

namespace tandem::reward {
namespace {

using Clock = std::chrono::steady_clock;

struct Fault {
  const char* response;      // what tests/reward/rewards/faults.py does
  const char* reason_class;  // nullptr: no failure, and the reward is `reward`
  const char* reason;        // part of the reason
  double reward = 0;
};

const std::vector<Fault> kQuickFaults = {
    {"raises", "exception", "ValueError: no such answer second line (faults.py:17)"},
    {"recursion", "exception", "RecursionError"},
    {"sys_exit", "exception", "SystemExit: 3"},
    {"memory", "memory", "MemoryError"},
    {"os_exit", "died", "exited with code 3"},
    {"segfault", "died", "killed by signal 11"},
    {"nan", "not_finite", "the reward is nan"},
    {"inf", "not_finite", "the reward is -inf"},
    {"huge_integer", "not_finite", "beyond floating point"},
    {"none", "wrong_type", "None"},
    {"text", "wrong_type", "the reward is a str"},
    {"list", "wrong_type", "the reward is a list"},
    {"dict", "wrong_type", "its keys: reward"},
    {"complex", "wrong_type", "complex"},
    {"surrogate", "exception", "ValueError: ?"},
    {"channel", "died", "something other than a reply"},
    {"fake_reply", "died", "something other than a reply"},
    {"closes", "died", "grader worker"},
    {"leaves_child", "died", "exited with code 0"},
    {"number_like", nullptr, "", 1.5},
    {"true", nullptr, "", 1.0},
    {"huge_among_others", nullptr, "", 1.0},
    {"loud", nullptr, "", 1.0},
    {"thread", nullptr, "", 0.75},
    {"stdin", nullptr, "", 0.0},
};

const std::vector<Fault> kFaultsThatNeedASandbox = {
    {"kills_group", "died", "killed by signal 9"},
    {"fork_bomb", "deadline", "the deadline of"},
    {"daemon", "died", "exited with code 4"},
    {"outside", "exception", "--rm-sandbox off lifts that"},
    {"network", "exception", "--rm-sandbox off lifts that"},
    {"secret", "exception", "KeyError: 'HF_TOKEN'"},
};

const std::vector<Fault> kFaultsOfTheTable = {
    {"hangs", "deadline", "the deadline of"},
    {"busy", "deadline", "the deadline of"},
    {"bignum", "deadline", "the deadline of"},
    {"stops_itself", "deadline", "the deadline of"},
    {"shouts", "deadline", "the deadline of"},
    {"async", "deadline", "the deadline of"},
    {"memory", "memory", "MemoryError"},
    {"os_exit", "died", "exited with code 3"},
    {"segfault", "died", "killed by signal 11"},
    {"real_segfault", "died", "killed by signal 11"},
    {"closes", "died", "grader worker"},
    {"leaves_child", "died", "exited with code 0"},
    {"channel", "died", "something other than a reply"},
    {"fake_reply", "died", "something other than a reply"},
    {"fake_fault", "died", "something other than"},
    {"raises", "exception", "ValueError: no such answer"},
    {"huge_message", "exception", "ValueError: long long"},
    {"recursion", "exception", "RecursionError"},
    {"sys_exit", "exception", "SystemExit: 3"},
    {"import", "exception", "ModuleNotFoundError"},
    {"floods", "exception", "File too large"},
    {"nan", "not_finite", "the reward is nan"},
    {"text", "wrong_type", "the reward is a str"},
    {"thread", nullptr, "", 0.75},
    {"stdin", nullptr, "", 0.0},
    {"loud", nullptr, "", 1.0},
    {"deletes_folder", nullptr, "", 0.5},
};

GraderConfig faults() {
  GraderConfig config = function("faults.py:score");
  config.limits.num_processes = 2;
  config.limits.memory_bytes = int64_t{512} << 20;
  return config;
}

TEST(GraderFaults, CostTheSampleAndNoOther) {
  const auto seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::vector<Fault> plan = kQuickFaults;
  for (int i = 0; i < 40; ++i) plan.push_back({"0.125", nullptr, "", 0.125});
  std::shuffle(plan.begin(), plan.end(), std::mt19937(seed));

  Graders graders(faults());
  for (size_t i = 0; i < plan.size(); ++i) graders.submit({request(100 + i, plan[i].response)});
  const std::vector<Grade> grades = take_all(graders);
  ASSERT_EQ(grades.size(), plan.size());
  std::map<std::string, int64_t> counts;
  for (size_t i = 0; i < plan.size(); ++i) {
    const Grade& grade = grades[i];
    EXPECT_EQ(grade.sample_id, 100 + i);
    EXPECT_EQ(grade.failed, plan[i].reason_class != nullptr) << plan[i].response << ": " << grade.reason;
    EXPECT_EQ(grade.reward, plan[i].reward) << plan[i].response;
    EXPECT_NE(grade.reason.find(plan[i].reason), std::string::npos) << plan[i].response << ": " << grade.reason;
    EXPECT_EQ(grade.reason.find('\n'), std::string::npos);
    if (plan[i].reason_class != nullptr) {
      EXPECT_EQ(grade.reason_class, plan[i].reason_class) << plan[i].response << ": " << grade.reason;
      ++counts[plan[i].reason_class];
    }
  }
  EXPECT_EQ(graders.failures(), counts);
}

// The call would otherwise be under way for ever, and nobody would wait for its end.
TEST(GraderFaults, AReplyThatIsWrongBesideItsGradesFailsThem) {
  GraderConfig config = faults();
  config.limits.num_processes = 1;
  Graders graders(config);
  graders.submit({request(1, "fake_note")});
  const std::vector<Grade> grades = graders.take_finished(60.0);
  ASSERT_EQ(grades.size(), 1);
  EXPECT_EQ(grades[0].reason_class, "died");
  EXPECT_EQ(grades[0].reason, "the grader answered with something other than grades");
  EXPECT_EQ(grade_one(graders, request(2, "0.5")).reward, 0.5) << "its process is replaced";
}

bool sandbox_is_complete() {
  GraderConfig config = rule("exact");
  config.sandbox = worker::Sandbox::kRequire;
  try {
    const Graders graders(config);
  } catch (const EnvironmentError& error) {
    std::cout << error.what() << "; faults that it bounds are left out\n";
    return false;
  }
  return true;
}

// Tries every kind of fault, beside samples that are well, --repeat times.
TEST(GraderFaults, KeepToTheTable) {
  const auto seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  std::vector<Fault> kinds = kFaultsOfTheTable;
  if (sandbox_is_complete()) kinds.insert(kinds.end(), kFaultsThatNeedASandbox.begin(), kFaultsThatNeedASandbox.end());
  ::setenv("HF_TOKEN", "canary", 1);

  // `make soak` holds the optimised program to a second over the deadline. The short run under sanitizers, maybe on a
  // busy machine, tells an answer from none.
  const double late_s = repeat() > 1 ? 1.0 : 10.0;
  const int descriptors_before = worker::num_descriptors();
  std::string folder;
  int64_t num_faults = 0;
  double worst_overshoot_s = 0;
  {
    GraderConfig config = faults();
    config.limits.deadline_s = repeat() > 1 ? 1.5 : 2.5;  // a busy machine took 1.5 s to fill the memory
    config.limits.memory_bytes = int64_t{256} << 20;
    config.worker.max_file_bytes = int64_t{64} << 20;
    Graders graders(config);
    folder = "TMPDIR=" + graders.scratch_folder();
    const int descriptors = worker::num_descriptors();
    std::map<std::string, int64_t> counts;
    int64_t num_lost = 0;
    for (int round = 0; round < repeat(); ++round) {
      std::shuffle(kinds.begin(), kinds.end(), random);
      for (const Fault& kind : kinds) {
        const auto begin = Clock::now();
        graders.submit({request(1, "0.5"), request(2, kind.response), request(3, "0.25"), request(4, "0.125")});
        const std::vector<Grade> grades = take_all(graders);
        const double elapsed_s = std::chrono::duration<double>(Clock::now() - begin).count();
        worst_overshoot_s = std::max(worst_overshoot_s, elapsed_s - config.limits.deadline_s);
        ASSERT_EQ(grades.size(), 4U);
        for (const size_t i : {0, 2, 3}) EXPECT_FALSE(grades[i].failed) << kind.response << ": " << grades[i].reason;
        EXPECT_EQ(grades[0].reward, 0.5) << kind.response;
        EXPECT_EQ(grades[2].reward, 0.25) << kind.response;
        EXPECT_EQ(grades[3].reward, 0.125) << kind.response;
        const Grade& grade = grades[1];
        const std::string expected = kind.reason_class == nullptr ? "" : kind.reason_class;
        EXPECT_EQ(grade.reason_class, expected) << kind.response << ": " << grade.reason;
        EXPECT_EQ(grade.failed, kind.reason_class != nullptr) << kind.response;
        EXPECT_EQ(grade.reward, kind.reward) << kind.response;
        EXPECT_NE(grade.reason.find(kind.reason), std::string::npos) << kind.response << ": " << grade.reason;
        EXPECT_LT(grade.reason.size(), 1000U) << kind.response;
        EXPECT_LE(elapsed_s, config.limits.deadline_s + late_s) << kind.response;
        if (!expected.empty()) ++counts[expected];
        if (expected == "died" || expected == "deadline" || expected == "memory") ++num_lost;
        ++num_faults;
      }
      EXPECT_LE(worker::num_descriptors(), descriptors) << "round " << round;
      EXPECT_EQ(worker::num_children(), 1) << "round " << round;
      // There are the guard, the supervisor and the forkserver, and twice a worker, its witness and the first process
      // of its room.
      const auto is_settled = [&] {
        return worker::num_processes_with(folder) <= 9 && worker::num_zombies(folder) == 0;
      };
      const auto give_up = Clock::now() + std::chrono::seconds(5);  // the processes of a bomb may yet be dying
      while (!is_settled() && Clock::now() < give_up) std::this_thread::sleep_for(std::chrono::milliseconds(20));
      EXPECT_TRUE(is_settled()) << worker::num_processes_with(folder) << " processes, " << worker::num_zombies(folder)
                                << " zombies";
    }
    EXPECT_EQ(graders.failures(), counts);
    EXPECT_LE(graders.restarts(), num_lost);
    EXPECT_GE(graders.restarts(), num_lost - config.limits.num_processes);
  }
  EXPECT_EQ(worker::num_descriptors(), descriptors_before);
  EXPECT_EQ(worker::num_children(), 0);
  EXPECT_EQ(worker::num_zombies(folder), 0);
  EXPECT_EQ(worker::num_processes_with(folder), 0);
  std::cout << num_faults << " faults of " << kinds.size() << " kinds; longest over the deadline: " << worst_overshoot_s
            << " s\n";
}

TEST(GraderFaults, EndAtTheDeadline) {
  GraderConfig config = faults();
  config.limits.deadline_s = 1.0;
  config.limits.num_processes = 1;
  Graders graders(config);
  for (const char* fault : {"hangs", "busy", "bignum", "stops_itself"}) {
    const auto begin = Clock::now();
    const Grade grade = grade_one(graders, request(1, fault));
    EXPECT_TRUE(grade.failed) << fault;
    EXPECT_EQ(grade.reason_class, "deadline") << fault << ": " << grade.reason;
    EXPECT_NE(grade.reason.find("the deadline of 1 s passed"), std::string::npos) << grade.reason;
    EXPECT_LT(Clock::now() - begin, std::chrono::seconds(60)) << fault;  // the start of a process included
  }
}

TEST(GraderFaults, DoNotOutliveTheirCall) {
  GraderConfig config = faults();
  config.limits.num_processes = 1;
  Graders graders(config);
  EXPECT_EQ(grade_one(graders, request(1, "alarm")).reward, 0.5);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));  // the alarm would ring now
  EXPECT_EQ(grade_one(graders, request(2, "1")).reward, 1.0);
  EXPECT_EQ(graders.restarts(), 0);
}

TEST(GraderFaults, MemoryIsLimited) {
  GraderConfig config = faults();
  config.limits.num_processes = 1;
  Graders graders(config);
  EXPECT_EQ(grade_one(graders, request(1, "limit")).reward, static_cast<double>(config.limits.memory_bytes));
  EXPECT_EQ(grade_one(graders, request(2, "memory")).reason_class, "memory");
  EXPECT_EQ(grade_one(graders, request(3, "2")).reward, 2.0);
  EXPECT_EQ(graders.restarts(), 1);  // a process that ran out of memory is not used again
}

TEST(GraderFaults, AProcessKilledFromOutsideIsReplaced) {
  GraderConfig config = faults();
  config.limits.num_processes = 1;
  Graders graders(config);
  const int64_t pid = graders.process_ids().at(0);
  ASSERT_EQ(::kill(static_cast<pid_t>(pid), SIGKILL), 0);
  worker::wait_until_gone(pid);
  EXPECT_EQ(grade_one(graders, request(1, "3")).reward, 3.0);  // it was idle: no sample is lost
  EXPECT_EQ(graders.restarts(), 1);
  EXPECT_TRUE(graders.failures().empty());
}

// A failure that no reward is to blame for has a class of its own.
TEST(GraderFaults, AProcessThatCannotBeReplacedIsTheMachinesFault) {
  const std::string python = testing::TempDir() + "grader_python_" + std::to_string(::getpid());
  std::ofstream(python) << "#!/bin/sh\nexec " << worker::default_worker_config().python << " \"$@\"\n";
  std::filesystem::permissions(python, std::filesystem::perms::owner_all);
  GraderConfig config = faults();
  config.limits.num_processes = 1;
  config.limits.deadline_s = 0.1;
  config.worker.python = python;
  Graders graders(config);
  std::filesystem::remove(python);
  const int64_t worker = graders.process_ids().at(0);
  ASSERT_GT(worker, 0);
  ::kill(static_cast<pid_t>(worker), SIGKILL);
  std::vector<int64_t> killed;  // the warm parent, and what stands in front of it
  worker::count_processes([&](const std::string& pid) {
    if (worker::process_state(pid).parent != ::getpid() || ::kill(std::stoi(pid), SIGKILL) != 0) return false;
    killed.push_back(std::stoi(pid));
    return true;
  });
  for (const int64_t pid : killed) worker::wait_for_exit(pid);
  worker::wait_until_gone(worker);
  const Grade grade = grade_one(graders, request(1, "3"));
  EXPECT_EQ(grade.reason_class, "not_started") << grade.reason;
  EXPECT_NE(grade.reason.find("a new grader could not start: "), std::string::npos) << grade.reason;
  EXPECT_TRUE(grade.failed && grade.gives_none());
}

TEST(GraderFaults, WrongListsFailTheirSamples) {
  GraderConfig config = function("faults.py:short_list");
  config.group_rm = true;
  Graders short_lists(config);
  short_lists.submit({request(1, "a"), request(2, "b")});
  for (const Grade& grade : take_all(short_lists)) {
    EXPECT_EQ(grade.reason_class, "wrong_count");
    EXPECT_NE(grade.reason.find("1 rewards for 2 samples"), std::string::npos) << grade.reason;
  }
  config.custom_rm_path = "tests/reward/rewards/faults.py:with_none";
  Graders with_none(config);
  with_none.submit({request(1, "a"), request(2, "none")});
  const std::vector<Grade> grades = take_all(with_none);
  EXPECT_EQ(grades[0].reward, 1.0);
  EXPECT_EQ(grades[1].reason_class, "none");
  EXPECT_NE(grades[1].reason.find("does not apply to this sample"), std::string::npos) << grades[1].reason;
  Graders no_list(function("faults.py:no_list"));
  EXPECT_NE(grade_one(no_list, request(1, "a")).reason.find("where a list of 1 rewards belongs"), std::string::npos);
}

TEST(GraderFaults, OutputGoesToItsFileUpToTheLimit) {
  GraderConfig config = faults();
  config.limits.num_processes = 1;
  config.output_path = testing::TempDir() + "grader_output_" + std::to_string(::getpid());
  config.max_output_bytes = 10000;
  {
    Graders graders(config);
    EXPECT_EQ(grade_one(graders, request(1, "loud")).reward, 1.0);
  }
  std::ifstream file(config.output_path);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  EXPECT_EQ(text.substr(0, 10), "xxxxxxxxxx");
  EXPECT_GE(text.size(), 10000U);
  EXPECT_LT(text.size(), 10200U);
  EXPECT_NE(text.find("later output is dropped"), std::string::npos);
  std::filesystem::remove(config.output_path);
}

TEST(GraderFaults, LeaveNoProcessAndNoDescriptor) {
  const int descriptors = worker::num_descriptors();
  int64_t left_behind = 0;
  {
    GraderConfig config = faults();
    config.limits.num_processes = 1;
    Graders graders(config);
    const int with_child = worker::num_descriptors();
    for (uint64_t i = 0; i < 5; ++i)
      EXPECT_TRUE(grade_one(graders, request(i, i % 2 == 0 ? "os_exit" : "leaves_child")).failed);
    EXPECT_EQ(grade_one(graders, request(9, "1")).reward, 1.0);
    EXPECT_EQ(graders.restarts(), 5);
    EXPECT_EQ(worker::num_descriptors(), with_child);
    EXPECT_EQ(worker::num_children(), 1);
    left_behind = graders.process_ids().at(0);
  }
  EXPECT_EQ(worker::num_descriptors(), descriptors);
  EXPECT_EQ(worker::num_children(), 0);
  EXPECT_FALSE(worker::is_running(left_behind));
}

TEST(GraderFaults, DoNotHoldUpTheEnd) {
  const auto begin = Clock::now();
  {
    GraderConfig config = faults();
    config.limits.deadline_s = 600;
    Graders graders(config);
    for (uint64_t i = 0; i < 4; ++i) graders.submit({request(i, "busy")});
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(120));
  EXPECT_EQ(worker::num_children(), 0);
}

// A trainer that dies takes its graders along, even one that loops inside a C call.
TEST(GraderFaults, DieWithTheTrainer) {
  const std::string path = testing::TempDir() + "grader_pid_" + std::to_string(::getpid());
  const pid_t trainer = ::fork();
  if (trainer == 0) {
    GraderConfig config = faults();
    config.limits.num_processes = 1;
    Graders graders(config);
    graders.submit({request(1, "bignum")});
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    std::ofstream(path) << graders.process_ids().at(0) << std::endl;
    while (true) ::pause();
  }
  int64_t grader = 0;
  while (!(std::ifstream(path) >> grader)) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_TRUE(worker::is_running(grader));
  ::kill(trainer, SIGKILL);
  ::waitpid(trainer, nullptr, 0);
  const auto give_up = Clock::now() + std::chrono::seconds(20);
  while (worker::is_running(grader) && Clock::now() < give_up)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_FALSE(worker::is_running(grader));
  std::filesystem::remove(path);
}

GradeRequest instructed(uint64_t sample_id, const std::string& response, const std::string& name,
                        const base::Json& arguments) {
  GradeRequest sample = request(sample_id, response);
  sample.metadata = {{"instruction_id_list", base::Json::array({name})}, {"kwargs", base::Json::array({arguments})}};
  return sample;
}

// A keyword is a regular expression of the data, and a response is the policy's: together they may take for ever.
TEST(Instructions, OnesThatTakeForEverCostTheirSampleOnly) {
  GraderConfig config = rule("ifbench");
  config.limits.deadline_s = 3.0;
  Graders graders(config);
  const std::string has = "keywords:existence";
  const Grade late = grade_one(graders, instructed(0, std::string(60, 'a') + "!", has, {{"keywords", {"(a+)+$"}}}));
  EXPECT_EQ(late.reason_class, "deadline") << late.reason;
  const std::vector<GradeRequest> honest = {
      instructed(1, "A tide.", has, {{"keywords", {"tide"}}}),
      instructed(2, "A boat.", has, {{"keywords", {"tide"}}}),
      instructed(3, std::string("a\0b", 3), "format:no_whitespace", base::Json::object()),
      instructed(4, "\u202Eone\u202C 2", "count:numbers", {{"N", 1}}),
      instructed(5, std::string(1'000'000, '\n') + "- x", "detectable_format:number_bullet_lists",
                 {{"num_bullets", 1}}),
  };
  for (const GradeRequest& sample : honest) {
    const Grade grade = grade_one(graders, sample);
    EXPECT_FALSE(grade.failed) << grade.reason;
    EXPECT_EQ(grade.reward, sample.sample_id == 2 ? 0.0 : 1.0) << sample.sample_id;
  }
  EXPECT_EQ(graders.restarts(), 1);
}

}  // namespace
}  // namespace tandem::reward
