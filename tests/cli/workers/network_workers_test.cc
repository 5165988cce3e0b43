// Checks rollout workers that come over the network: results are those of the run without them, a process that does not
// know the secret stays outside, and each mistake is a line.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <csignal>
#include <cstdlib>
#include <map>
#include <regex>

#include "base/clock.h"
#include "mesh/network.h"
#include "tests/cli/ranks/without_ranks.h"
#include "tests/cli/workers/process_sockets.h"
#include "tests/cli/workers/worker_runs.h"

namespace tandem::cli {
namespace {

class NetworkWorkers : public WorkerRuns {
 protected:
  void SetUp() override {
    for (const char* name : {"secret", "other_secret"}) {
      base::write_file_durably(path(name), std::string(name) + " of more than thirty-two bytes");
      chmod(path(name).c_str(), 0600);
    }
    use_secret("secret");
  }
  void TearDown() override { unsetenv("TANDEM_SECRET_FILE"); }

  // Sets the secret of processes that are started from now on; "" means none.
  static void use_secret(const std::string& name) {
    name.empty() ? unsetenv("TANDEM_SECRET_FILE") : setenv("TANDEM_SECRET_FILE", path(name).c_str(), 1);
  }
  static Arguments listening(const std::string& name, const std::string& port = "0", const Arguments& more = {}) {
    Arguments words = with_workers(run_arguments(name, more), 1, 1);
    words.insert(words.end(), {"--rollout-listen", port, "--network-interface", "lo"});
    return words;
  }
  static Arguments joining_at(Arguments words, const std::string& place) {
    return with_flag(std::move(words), "--rollout-join-address", place);
  }
  // Returns what a launcher sets for one of two ranks, of which so many are on each machine.
  static LauncherVariables launched(int rank, int per_machine, const std::string& master) {
    return {{"RANK", std::to_string(rank)},
            {"WORLD_SIZE", "2"},
            {"LOCAL_RANK", std::to_string(rank % per_machine)},
            {"LOCAL_WORLD_SIZE", std::to_string(per_machine)},
            {"MASTER_ADDR", master},
            {"MASTER_PORT", "29500"}};
  }
  // Returns the address at which a run reports to listen.
  static std::string place_of(const std::string& errors) {
    wait_for_text(errors, "--rollout-join-address");
    const std::string text = base::read_file(errors);
    std::smatch found;
    EXPECT_TRUE(std::regex_search(text, found, std::regex("--rollout-join-address (\\S+)"))) << text;
    return found[1];
  }
};

// The only worker that was started with the run dies; one comes over the network and brings the run to its end.
TEST_F(NetworkWorkers, SampleAsThoseOfTheRunsMachine) {
  const Arguments words = listening("joined");
  const std::string errors = path("joined.err"), other_errors = path("joined_2.err");
  Program program(words, 0, errors);
  const std::map<int, pid_t> processes = processes_of(program.pid(), 2);
  ASSERT_EQ(processes.size(), 2U);
  wait_for_steps("joined", 1);
  kill(processes.at(1), SIGKILL);
  const std::string place = place_of(errors);
  const mesh::OwnedDescriptor silent_stranger =
      std::move(*mesh::connect_to("127.0.0.1", std::stoi(place.substr(place.find(':') + 1))));
  Program other(joining_at(words, place), 0, other_errors);
  bool has_listened = false;
  while (!program.wait_for(0.02)) {
    for (const pid_t pid : {processes.at(0), other.pid()}) {
      for (const InternetSocket& socket : internet_sockets(std::to_string(pid))) {
        EXPECT_TRUE(socket.is_loopback()) << socket.address;
        has_listened = has_listened || socket.listens;
      }
    }
  }
  EXPECT_EQ(program.wait(), 0) << base::read_file(errors);
  EXPECT_TRUE(has_listened);
  EXPECT_TRUE(other.wait_for(30.0));
  EXPECT_EQ(other.wait(), 0) << base::read_file(other_errors);
  EXPECT_EQ(count_in_file(errors, "has joined"), 2);
  expect_same("joined");
}

// Strangers come one after the other during a run, and none of them disturbs it.
TEST_F(NetworkWorkers, WhoDoesNotKnowTheSecretStaysOutside) {
  const Arguments words = listening("closed", "0", {"--num-rollout", "2"});
  const std::string errors = path("closed.err");
  Program program(words, 0, errors);
  const std::map<int, pid_t> processes = processes_of(program.pid(), 2);
  ASSERT_EQ(processes.size(), 2U);
  kill(processes.at(1), SIGSTOP);  // the run waits
  const std::string place = place_of(errors);
  use_secret("other_secret");
  expect_one_line_failure(run_program(joining_at(words, place)), 2,
                          place + ": TANDEM_SECRET_FILE: the other end has another secret; give all the same file");
  use_secret("");
  expect_one_line_failure(run_program(joining_at(words, place)), 2,
                          "--rollout-join-address: whoever reaches the port of the run would be believed; set "
                          "TANDEM_SECRET_FILE");
  Arguments trusting = joining_at(words, place);
  trusting.emplace_back("--trust-network");
  expect_one_line_failure(run_program(trusting), 2,
                          place + ": the other end was started with TANDEM_SECRET_FILE, this one without");
  kill(processes.at(1), SIGCONT);
  ASSERT_TRUE(program.wait_for(120.0));
  EXPECT_EQ(program.wait(), 0);
  expect_same("closed");
}

TEST_F(NetworkWorkers, WhoJoinsARunThatIsFrozenGivesItUp) {
  const Arguments words = listening("frozen");
  const std::string errors = path("frozen.err");
  Program program(words, 0, errors);
  const std::map<int, pid_t> processes = processes_of(program.pid(), 2);
  ASSERT_EQ(processes.size(), 2U);
  const std::string place = place_of(errors);
  kill(processes.at(0), SIGSTOP);
  const base::Clock::time_point begin = base::Clock::now();
  const Captured joined = run_program(joining_at(with_flag(words, "--distributed-timeout-minutes", "0.1"), place));
  EXPECT_LT(base::seconds_since(begin), 20.0);
  expect_one_line_failure(joined, 3,
                          place +
                              ": it has not answered within 6 s (--distributed-timeout-minutes): the process that "
                              "listens there is stopped or frozen");
  kill(processes.at(0), SIGKILL);
  program.wait();
}

TEST_F(NetworkWorkers, MistakesAreOneLineEach) {
  const auto says = [](const Captured& result, int code, const std::string& text) {
    EXPECT_EQ(result.code, code) << result.err;
    EXPECT_NE(result.err.find("tandem: error: " + text), std::string::npos) << result.err;
  };
  const auto limited = [](const Arguments& words) { return with_flag(words, "--distributed-timeout-minutes", "0.01"); };
  const Arguments words = limited(listening("mistaken"));
  const mesh::OwnedDescriptor taken = mesh::listen_at("127.0.0.1", 0);
  const std::string port = std::to_string(mesh::port_of(taken));
  const Arguments without_others = with_flag(words, "--rollout-num-gpus", "0");
  says(run_program(with_flag(without_others, "--rollout-listen", port)), 3,
       "port " + port + " of 127.0.0.1 is in use: give another one (--rollout-listen)");
  says(run_program(joining_at(words, "127.0.0.1:1")), 3,
       "no run listens at 127.0.0.1:1, or this machine does not reach it (waited for 0.6 s");
  // Rank 0 says these before it waits for the other.
  const LauncherVariables first_of_two = launched(0, 2, "127.0.0.1");
  Arguments nowhere = limited(with_workers(run_arguments("mistaken"), 1, 1));
  nowhere.insert(nowhere.end(), {"--rollout-listen", "0"});
  says(run_without_ranks(nowhere, first_of_two), 2, "--rollout-listen: give --network-interface too");
  use_secret("");
  says(run_without_ranks(words, first_of_two), 2,
       "--rollout-listen: whoever reaches the port of the run would be believed");
}

// A launcher may start them on two machines: without a secret neither begins.
TEST_F(NetworkWorkers, OfALaunchOfSeveralMachinesNeedTheSecretToo) {
  use_secret("");
  for (const int rank : {0, 1}) {
    expect_one_line_failure(
        run_without_ranks(with_workers(run_arguments("launched"), 1, 1), launched(rank, 1, "10.0.0.1")), 2,
        "the ranks are on several hosts, and whoever reaches their ports would be believed");
  }
}

}  // namespace
}  // namespace tandem::cli
