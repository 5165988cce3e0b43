// A pool of workers, which is asked here what graders are asked.
#include "worker/worker_pool.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "base/files.h"
#include "reward/grade_messages.h"
#include "tandem/error.h"
#include "tests/base/temporary_directory.h"
#include "tests/worker/process_facts.h"
#include "worker/lines.h"
#include "worker/room_line.h"

namespace tandem::worker {
namespace {

class WorkerPools : public testing::Test {
 protected:
  WorkerPools() {
    base::write_file_durably(folder_ / "reward.py",
                             "import os, time\n"
                             "def reward(solution_str, ground_truth, data_source, extra_info=None):\n"
                             "    if solution_str == 'dies':\n"
                             "        os._exit(3)\n"
                             "    if solution_str == 'leaves a process' and os.fork() == 0:\n"
                             "        time.sleep(600)\n"
                             "    if solution_str == 'sleeps':\n"
                             "        time.sleep(600)\n"
                             "    return 1.0\n");
  }

  WorkerPoolConfig config(const std::string& function = "reward") {
    WorkerPoolConfig config;
    config.mode = "grader";
    config.code.worker = default_worker_config();
    config.memory_bytes = int64_t{512} << 20;
    config.load_arguments = {{"rm_types", base::Json::array()},
                             {"custom_rm_path", folder_ / "reward.py:" + function},
                             {"service", nullptr},
                             {"reward_key", ""},
                             {"group_filter", ""},
                             {"group_rm", false},
                             {"label_key", "label"},
                             {"metadata_key", "metadata"},
                             {"arguments", base::Json::object()}};
    config.what_runs = "reward code";
    config.who_runs = "the graders";
    config.warn_of_leftovers = [this](const std::string& left) { left_.push_back(left); };
    return config;
  }

  static base::Json grade(Worker& worker, const std::string& response) {
    reward::GradeRequest sample;
    sample.prompt = "prompt";
    sample.response = response;
    sample.label = "";
    const base::Json call = {{"call", 1}, {"samples", reward::to_json({sample})}, {"deadline_s", 600.0}};
    return worker.call("grade", {{"calls", base::Json::array({call})}, {"wait_s", 0.0}}, 600.0);
  }

  base::TemporaryDirectory folder_;
  std::vector<std::string> left_;
};

// The kernel drops descriptors that come to a process which may have no more.
TEST(RoomLine, SaysThatNoDescriptorIsLeft) {
  auto [ours, theirs] = make_socket_pair();
  RoomLine line(std::move(ours));
  ASSERT_EQ(send(theirs.get(), "y"), 1);
  try {
    line.namespaces(10.0);
    FAIL();
  } catch (const WorkerError& error) {
    EXPECT_STREQ(error.what(), "there is no room for a grader: no descriptor is left (ulimit -n); allow more");
  }
}

TEST_F(WorkerPools, ReplaceWhatIsLostOrUntidyAndCountIt) {
  std::vector<int64_t> ids;
  {
    WorkerPool pool(config());
    EXPECT_EQ(pool.start().at("dialect"), "verl");
    EXPECT_TRUE(pool.process_ids().empty()) << "workers start when they are asked to";
    pool.start_workers();
    ids = pool.process_ids();
    ASSERT_EQ(ids.size(), 2U);
    EXPECT_NE(ids[0], ids[1]);
    EXPECT_EQ(num_children(), 1) << "the forkserver's guard; all others descend from it";

    Worker& worker = pool.worker(0);
    EXPECT_NO_THROW(grade(worker, ""));
    worker.rest();
    worker.make_ready();
    EXPECT_EQ(worker.process_id(), ids[0]) << "nothing happened to it";
    EXPECT_EQ(pool.restarts(), 0);

    ::kill(static_cast<pid_t>(ids[0]), SIGKILL);
    wait_until_gone(ids[0]);
    worker.make_ready();
    EXPECT_NE(worker.process_id(), ids[0]);
    EXPECT_EQ(pool.restarts(), 1);

    EXPECT_THROW(grade(worker, "dies"), ChildLost);
    EXPECT_FALSE(worker.has_process());
    EXPECT_EQ(pool.process_ids(), std::vector<int64_t>{ids[1]});
    worker.make_ready();
    EXPECT_EQ(pool.restarts(), 2);

    for (int i = 0; i < 2; ++i) {
      EXPECT_NO_THROW(grade(worker, "leaves a process"));
      worker.rest();
      worker.make_ready();
    }
    EXPECT_EQ(left_, std::vector<std::string>{"a running process"}) << "one warning is enough";
    EXPECT_EQ(pool.restarts(), 4);

    worker.retire();
    worker.rest(/*is_spent=*/true);
    EXPECT_FALSE(worker.has_process());
    worker.make_ready();
    EXPECT_EQ(pool.restarts(), 4) << "it had done what it was made for";
    EXPECT_NO_THROW(grade(worker, ""));
    ids = pool.process_ids();
  }
  EXPECT_EQ(num_children(), 0);
  for (const int64_t id : ids) EXPECT_FALSE(is_running(id));
}

TEST_F(WorkerPools, EndTheCallsUnderWayWhenTheyAreInterrupted) {
  WorkerPool pool(config());
  pool.start();
  pool.start_workers();
  std::atomic<int> num_lost = 0;
  pool.serve([&](size_t index) {
    try {
      grade(pool.worker(index), "sleeps");
    } catch (const ChildLost&) {
      ++num_lost;
    }
  });
  const auto begin = std::chrono::steady_clock::now();
  pool.interrupt();
  pool.join();
  EXPECT_EQ(num_lost, 2);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(60)) << "the calls sleep for 600 s";
  EXPECT_THROW(pool.worker(0).make_ready(), std::runtime_error) << "no worker is started any more";
}

TEST_F(WorkerPools, RefuseCodeThatCannotBeUsed) {
  WorkerPool pool(config("missing"));
  EXPECT_THROW(pool.start(), UserError);
  WorkerPoolConfig other_python = config();
  other_python.code.python = "/bin/false";
  WorkerPool without_python(other_python);
  try {
    without_python.start();
    FAIL() << "it started";
  } catch (const UserError& error) {
    EXPECT_EQ(std::string(error.what()).find("--rm-python /bin/false: cannot run reward code: "), 0U) << error.what();
  }
}

// A file that hangs was called an error of the machine, without its name.
TEST_F(WorkerPools, NameAFileWhoseImportHangs) {
  base::write_file_durably(folder_ / "hangs.py",
                           "import time\ntime.sleep(600)\ndef reward(completions): return [0.0]\n");
  WorkerPoolConfig hanging = config();
  const std::string path = folder_ / "hangs.py:reward";
  hanging.load_arguments["custom_rm_path"] = path;
  hanging.code.worker.deadline_s = 10.0;  // a process is started within it, too
  hanging.code.code_flag = "--custom-rm-path";
  hanging.code.code_path = path;
  WorkerPool pool(hanging);
  try {
    pool.start();
    FAIL() << "it started";
  } catch (const UserError& error) {
    EXPECT_EQ(error.what(), "--custom-rm-path " + path + ": importing " + (folder_ / "hangs.py") +
                                " took longer than 10 s: let the function do what takes so long, in place of the top "
                                "level of its file");
  }
}

}  // namespace
}  // namespace tandem::worker
