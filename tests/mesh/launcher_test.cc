// Tests that ranks which are started together end together, whichever of them ends how, and whoever asks them to.
#include "mesh/launch/launcher.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <random>

#include "mesh/launch/launcher_link.h"
#include "mesh/network.h"
#include "tandem/error.h"
#include "tests/cli/workers/process_sockets.h"
#include "tests/mesh/fake_rank.h"
#include "tests/worker/process_facts.h"

namespace tandem::mesh {
namespace {

using Clock = std::chrono::steady_clock;

// A launcher in a process of its own, with fake ranks.
class Job {
 public:
  explicit Job(std::vector<std::string> words) {
    static int number = 0;
    mark_ = fmt::format("TANDEM_TEST_JOB={}.{};", getpid(), ++number);
    int ends[2];
    EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
    words.insert(words.begin(), {"launch_test", "--launch"});
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    pid_ = fork();
    if (pid_ == 0) {
      dup2(ends[1], STDOUT_FILENO);
      dup2(ends[1], STDERR_FILENO);
      putenv(mark_.data());
      execv("/proc/self/exe", arguments.data());
      _exit(126);
    }
    close(ends[1]);
    output_ = ends[0];
  }
  ~Job() {
    kill(pid_, SIGKILL);
    if (!waited_) waitpid(pid_, nullptr, 0);
    close(output_);
  }

  pid_t pid() const { return pid_; }
  const std::string& mark() const { return mark_; }

  // Returns everything that it and its ranks print until it ends, then the exit code.
  int wait() {
    read_until("\0");
    int status = 0;
    EXPECT_EQ(waitpid(pid_, &status, 0), pid_);
    waited_ = true;
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  }
  void read_until(const std::string& text) {
    char buffer[4096];
    ssize_t size = 0;
    while ((text == "" || text[0] == '\0' || printed_.find(text) == std::string::npos) &&
           (size = read(output_, buffer, sizeof buffer)) > 0) {
      printed_.append(buffer, static_cast<size_t>(size));
    }
  }
  const std::string& printed() const { return printed_; }

  // Returns the process of a rank, once it runs its program.
  pid_t rank(int number) const {
    const std::string wanted = fmt::format("RANK={}", number);
    for (;; usleep(1000)) {
      for (const std::string& pid : cli::process_tree(pid_)) {
        if (pid == std::to_string(pid_) || !worker::has_in_environment(pid, mark_)) continue;
        if (worker::has_in_environment(pid, '\0' + wanted + '\0')) return std::stoi(pid);
      }
    }
  }
  // Returns the processes that were started for it and live, after waiting for them to go.
  int left() const {
    const auto give_up = Clock::now() + std::chrono::seconds(10);
    while (worker::num_processes_with(mark_) > 0 && Clock::now() < give_up) usleep(5000);
    return worker::num_processes_with(mark_);
  }

 private:
  std::string mark_;
  pid_t pid_ = -1;
  int output_ = -1;
  bool waited_ = false;
  std::string printed_;
};

std::string failure(const std::string& who, const std::string& how) {
  const char* const where = how.starts_with("exited") ? "; its own error, above, says why" : "";
  return fmt::format("tandem: error: {} ({}) {}; the others were ended{}\n", who, host_name(), how, where);
}

TEST(Launcher, EndsWithZeroWhenAllRanksDo) {
  Job job({"exit:0", "exit:0", "exit:0"});
  EXPECT_EQ(job.wait(), 0);
  EXPECT_EQ(job.printed(), "");
}

TEST(Launcher, TheFirstFailureEndsTheOthersAndIsNamed) {
  Job job({"sleep", "sleep", "exit:2"});
  EXPECT_EQ(job.wait(), 2);
  EXPECT_EQ(job.printed(), failure("rank 2 of 3", "exited with code 2"));
  EXPECT_EQ(job.left(), 0);
}

// It closed its connections long before its process ended, so a peer that missed it has ended first.
TEST(Launcher, TheOneThatFailedFirstMayEndAfterThoseThatMissedIt) {
  Job job({"exit-late:2", "exit:3", "sleep"});
  EXPECT_EQ(job.wait(), 2);
  EXPECT_EQ(job.printed(), failure("rank 0 of 3", "exited with code 2"));
  EXPECT_EQ(job.left(), 0);
}

TEST(Launcher, ASignalIsExitCodeThree) {
  Job job({"meet", "killed", "meet", "meet"});
  EXPECT_EQ(job.wait(), 3);
  EXPECT_EQ(job.printed(), failure("rank 1 of 4", "was killed by signal 9"));
}

TEST(Launcher, ARankThatDoesNotHearSigtermIsKilledAfterTheGrace) {
  const auto begin = Clock::now();
  Job job({"stubborn", "parent", "exit:7"});
  EXPECT_EQ(job.wait(), 7);
  EXPECT_EQ(job.left(), 0) << "nor is what a rank has started in its group";
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(10));
}

TEST(Launcher, ARankAloneFailsAlone) {
  Job job({"exit:5"});
  EXPECT_EQ(job.wait(), 5);
  EXPECT_EQ(job.printed(), fmt::format("tandem: error: rank 0 of 1 ({}) exited with code 5\n", host_name()));
}

TEST(Launcher, ShowsTheOutputOfTheRankThatFailedFirstAlone) {
  Job job({"sleep", "say", "sleep"});
  EXPECT_EQ(job.wait(), 9);
  EXPECT_EQ(job.printed(),
            "[rank 1] one line\n[rank 1] a warning\n[rank 1] torn\n" + failure("rank 1 of 3", "exited with code 9"));
  Job first({"say", "sleep"});
  first.wait();
  EXPECT_EQ(first.printed(), "one line\na warning\ntorn" + failure("rank 0 of 2", "exited with code 9"));
}

TEST(Launcher, KeepsTheEndOfALongOutput) {
  Job job({"sleep", "flood"});
  EXPECT_EQ(job.wait(), 9);
  EXPECT_NE(job.printed().find("[rank 1] line 39999\n"), std::string::npos);
  EXPECT_EQ(job.printed().find("[rank 1] line 100\n"), std::string::npos) << "64 KiB are kept";
}

// The signal is sent to the launcher alone, as a scheduler does, and to its process group, as a terminal does.
TEST(Launcher, EachRankGetsASignalOnce) {
  struct Case {
    int signal, code;
  };
  for (const Case& row : {Case{SIGINT, 130}, Case{SIGTERM, 0}, Case{SIGHUP, 129}}) {
    for (const bool to_group : {false, true}) {
      Job job({"count", "count", "count"});
      setpgid(job.pid(), job.pid());
      for (int i = 0; i < 3; ++i) job.rank(i);
      job.read_until("ready");
      usleep(300'000);  // the others are ready, too
      kill(to_group ? -job.pid() : job.pid(), row.signal);
      EXPECT_EQ(job.wait(), row.code) << row.signal << (to_group ? " to the group" : "");
      EXPECT_EQ(job.printed(), "ready\n");
      EXPECT_EQ(job.left(), 0);
    }
  }
}

// A scheduler may tell one rank alone to stop, here or on another host: all of the run stop.
TEST(Launcher, AStopThatItDidNotPassOnIsNoFailure) {
  Job job({"exit:130", "exit-late:130", "exit:130"});
  EXPECT_EQ(job.wait(), 130);
  EXPECT_EQ(job.printed(), "");
  LaunchPlan plan;
  plan.command = {"/bin/sh", "-c", "exit 143"};
  plan.ranks_per_host = 2;
  const LaunchEnd end = launch(plan);
  EXPECT_EQ(end.code, 143);
  EXPECT_FALSE(end.failed);
  EXPECT_TRUE(end.was_told_to_stop) << "it is not started again";
}

TEST(Launcher, ARankThatWasStoppedAloneIsAFailure) {
  Job job({"exit:3", "exit:143", "exit:3"});
  EXPECT_EQ(job.wait(), 143);
  EXPECT_EQ(job.printed(), failure("rank 1 of 3", "exited with code 143"));
}

TEST(Launcher, EachHostSaysThatItWaitsForANameAndHearsSignalsMeanwhile) {
  for (const char* const host : {"nameless:0", "nameless:1"}) {
    Job job({host, "sleep"});
    job.read_until("does not know the name yet");
    kill(job.pid(), SIGTERM);
    EXPECT_EQ(job.wait(), 128 + SIGTERM) << host;
    EXPECT_EQ(job.left(), 0);
  }
}

// SIGTERM alone does nothing to a process that is stopped.
TEST(Launcher, ARankThatIsStoppedHearsASignalToo) {
  Job job({"count", "count"});
  for (int i = 0; i < 2; ++i) job.rank(i);
  job.read_until("ready");
  usleep(300'000);  // the other one is ready, too
  kill(job.rank(0), SIGSTOP);
  kill(job.pid(), SIGTERM);
  EXPECT_EQ(job.wait(), 0);
  EXPECT_EQ(job.left(), 0);
}

TEST(Launcher, ASecondSignalKillsRanksThatDoNotHearIt) {
  Job job({"stubborn", "stubborn"});
  for (int i = 0; i < 2; ++i) job.rank(i);
  usleep(300'000);
  kill(job.pid(), SIGTERM);
  usleep(600'000);  // twice the grace: told once they may take their time, to save what they have
  EXPECT_EQ(worker::num_processes_with(job.mark()), 3);
  kill(job.pid(), SIGTERM);
  EXPECT_EQ(job.wait(), 3);
  EXPECT_EQ(job.left(), 0);
}

constexpr const char* kWasFrozen =
    "has said nothing for 3 s (--distributed-timeout-minutes): it was stopped or frozen, and was killed";

// The rank is alone, among others, before it has met them, or after its last message to them: nobody but the launcher
// can know it.
TEST(Launcher, ARankThatIsFrozenIsKilledAndNamed) {
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"freeze", "worker:exit:3", "worker:beat"}, {"beat", "freeze"}, {"freeze", "exit:0"}}) {
    const auto begin = Clock::now();
    Job job(words);
    EXPECT_EQ(job.wait(), 3);
    const auto victim = std::find(words.begin(), words.end(), "freeze") - words.begin();
    EXPECT_TRUE(job.printed().ends_with(failure(fmt::format("rank {} of {}", victim, words.size()), kWasFrozen)))
        << job.printed();
    EXPECT_EQ(job.left(), 0);
    EXPECT_LT(Clock::now() - begin, std::chrono::seconds(20));
  }
}

TEST(Launcher, AWorkerThatIsFrozenIsKilledAndMissedByNobody) {
  Job job({"beat", "worker:freeze"});
  job.wait();
  EXPECT_NE(job.printed().find(fmt::format("tandem: warning: rank 1 of 2, which only samples, {}\n", kWasFrozen)),
            std::string::npos)
      << job.printed();
}

TEST(Launcher, NoRankOutlivesALauncherThatIsKilled) {
  Job job({"stubborn", "stubborn", "stubborn"});
  for (int i = 0; i < 3; ++i) job.rank(i);
  kill(job.pid(), SIGKILL);
  EXPECT_EQ(job.wait(), 128 + SIGKILL);
  EXPECT_EQ(job.left(), 0);
}

TEST(Launcher, TellsRankZeroWhenNoWorkerIsLeft) {
  Job job({"hear", "worker:exit:0", "worker:say"});
  EXPECT_EQ(job.wait(), 0) << "a worker that fails ends nobody";
  for (const char* part : {"heard: 9, rank 2 of 3 exited with code 9: torn\n", "[rank 2] a warning\n",
                           "tandem: warning: rank 2 of 3, which only samples, exited with code 9"})
    EXPECT_NE(job.printed().find(part), std::string::npos) << part << "\nin: " << job.printed();
}

TEST(Launcher, TellsOfNoWorkerThatRuns) {
  Job job({"hear", "worker:exit:0", "worker:sleep"});
  job.rank(2);
  usleep(300'000);
  EXPECT_EQ(kill(job.rank(2), SIGKILL), 0);
  EXPECT_EQ(job.wait(), 0);
  EXPECT_NE(job.printed().find("heard: 3, rank 2 of 3 was killed by signal 9\n"), std::string::npos) << job.printed();
}

// The host has no rank that trains.
TEST(Launcher, WorkersAloneEndBadlyWhereNoneEndedWell) {
  Job some({"host:1", "worker:exit:0", "worker:say"});
  EXPECT_EQ(some.wait(), 0) << some.printed();
  EXPECT_NE(some.printed().find("tandem: warning: rank 3 of 4, which only samples, exited with code 9"),
            std::string::npos)
      << some.printed();
  Job none({"host:1", "worker:exit:2", "worker:exit:2"});
  EXPECT_EQ(none.wait(), 2);
  EXPECT_NE(none.printed().find("which only samples, exited with code 2, and no other one here ended well\n"),
            std::string::npos)
      << none.printed();
}

// Rank 0, on the other host, reports its own end.
TEST(Launcher, WorkersOfAnotherHostOutliveThoseThatTrainHere) {
  Job job({"host:1", "exit:0", "worker:count"});
  job.rank(3);
  usleep(1'000'000);  // more than the grace
  kill(job.rank(3), SIGTERM);
  EXPECT_EQ(job.wait(), 0);
  EXPECT_EQ(job.printed().find("signal 9"), std::string::npos) << job.printed();
  Job failing({"host:1", "exit:2", "worker:sleep"});
  EXPECT_EQ(failing.wait(), 2) << "it ends all that are here";
}

TEST(StartedWorkers, ADescriptorThatIsNoSocketIsNamed) {
  StartedWorkers nobody_tells(std::nullopt);
  EXPECT_EQ(nobody_tells.have_all_ended(), std::nullopt);
  StartedWorkers wrong(open("/dev/null", O_RDONLY));
  EXPECT_THROW(wrong.have_all_ended(), EnvironmentError);
}

TEST(Launcher, ARankIsShownByTheNameThatThePlanGives) {
  LaunchPlan plan;
  plan.command = {"/bin/sh", "-c", "tr '\\0' ' ' < /proc/$$/cmdline | grep -q '^a-name -c '"};
  EXPECT_EQ(launch(plan).code, 1) << "without a name it is shown by its file";
  plan.shown_as = "a-name";
  EXPECT_EQ(launch(plan).code, 0);
}

TEST(Launcher, NobodyHasASocketOfTheInternet) {
  Job job({"meet", "meet", "meet"});
  for (int i = 0; i < 3; ++i) job.rank(i);
  for (int look = 0; look < 20; ++look) {
    for (const std::string& pid : cli::process_tree(job.pid())) {
      for (const cli::InternetSocket& socket : cli::internet_sockets(pid)) ADD_FAILURE() << pid << socket.address;
    }
    usleep(10'000);
  }
}

TEST(Launcher, APortInUseIsOneLine) {
  const OwnedDescriptor taken = listen_at("127.0.0.1", 0);
  LaunchPlan plan;
  plan.command = {"/bin/true"};
  plan.num_hosts = 2;
  plan.master_port = port_of(taken);
  try {
    launch(plan);
    FAIL();
  } catch (const EnvironmentError& error) {
    EXPECT_EQ(std::string(error.what()),
              fmt::format("port {} of 127.0.0.1 is in use: give another one (MASTER_PORT, or "
                          "--master-port of tandem launch)",
                          plan.master_port));
  }
}

// With --soak there are a hundred.
int num_kills = 15;

TEST(Launcher, KillsAtRandomMoments) {
  const auto seed = std::random_device()();
  RecordProperty("seed", std::to_string(seed));
  std::mt19937 random(seed);
  for (int trial = 0; trial < num_kills; ++trial) {
    const int size = 3 + static_cast<int>(random() % 2), victim = static_cast<int>(random() % size);
    Job job(std::vector<std::string>(static_cast<size_t>(size), "meet"));
    const pid_t pid = job.rank(victim);
    usleep(random() % 100'000);
    ASSERT_EQ(kill(pid, SIGKILL), 0);
    const auto begin = Clock::now();
    ASSERT_EQ(job.wait(), 3) << "seed " << seed << " trial " << trial;
    const std::string expected = failure(fmt::format("rank {} of {}", victim, size), "was killed by signal 9");
    ASSERT_TRUE(job.printed().ends_with(expected)) << "seed " << seed << " trial " << trial << "\n" << job.printed();
    ASSERT_EQ(job.left(), 0);
    ASSERT_LT(Clock::now() - begin, std::chrono::seconds(10));
  }
}

}  // namespace
}  // namespace tandem::mesh

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  if (mode == "--rank") return tandem::mesh::run_fake_rank(argc, argv);
  if (mode == "--launch") return tandem::mesh::run_fake_launcher(argc, argv);
  if (mode == "--soak") tandem::mesh::num_kills = 100;
  std::signal(SIGHUP, SIG_DFL);  // the tests themselves may run under nohup
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
