// Tests of real processes that find each other on this host, and of the error of each when they do not.
#include "mesh/rendezvous.h"

#include <ATen/ops/full.h>
#include <fcntl.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <chrono>
#include <condition_variable>
#include <csignal>
#include <mutex>
#include <numeric>

#include "mesh/network.h"
#include "tandem/error.h"
#include "tests/cli/workers/process_sockets.h"

namespace tandem::mesh {
namespace {

using Clock = std::chrono::steady_clock;

struct Ended {
  int code = 0;
  std::string said;
};

std::string texts(const std::vector<std::string>& all) { return fmt::format("{}", fmt::join(all, " ")); }

// Uses everything that a mesh is for.
void talk(Mesh& mesh) {
  std::string said = texts(device::all_gather_text(mesh.host(), fmt::format("r{}", mesh.rank())));
  said += texts(device::all_gather_text(mesh.savers(), mesh.is_conductor() ? " saved by" : "0"));
  device::TensorLists parts;
  for (int rank = 0; rank < mesh.size(); ++rank) {
    parts.push_back({at::full({2}, rank == mesh.rank() ? rank + 1.0F : 0.0F)});
  }
  device::all_gather(mesh.data().device, parts);
  double sum = 0.0;
  for (const auto& part : parts) sum += part[0].sum().item<double>();
  if (mesh.is_conductor()) std::printf("%d ranks, sum %g\n", mesh.size(), sum);
  std::fflush(stdout);
  for (const cli::InternetSocket& socket : cli::internet_sockets(std::to_string(getpid()))) {
    throw BugError("a socket of the internet at " + socket.address);
  }
  device::any_of(mesh.host(), false);  // waits until all have looked
}

// A network of devices that notices nothing by itself.
class DeafLink final : public device::Communicator {
 public:
  DeafLink(int rank, int size) : rank_(rank), size_(size) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::unique_ptr<Exchange> start_exchange(device::TensorLists /*to*/, device::TensorLists /*from*/) override {
    struct Waiting final : Exchange {
      explicit Waiting(DeafLink& link) : link(link) {}
      void wait() override {
        std::unique_lock lock(link.mutex_);
        link.ended_.wait(lock, [this] { return link.is_ended_; });
        throw device::PeerLost("the device's exchange was ended");
      }
      DeafLink& link;
    };
    return std::make_unique<Waiting>(*this);
  }
  void abort() noexcept override {
    const std::scoped_lock lock(mutex_);
    is_ended_ = true;
    ended_.notify_all();
  }

 private:
  const int rank_, size_;
  std::mutex mutex_;
  std::condition_variable ended_;
  bool is_ended_ = false;
};

DeviceNetwork deaf_network() {
  return [](device::Communicator& hosts, bool is_one_host) -> std::unique_ptr<device::Communicator> {
    if (!is_one_host) throw BugError("ranks of one host are said to be of several");
    return std::make_unique<DeafLink>(hosts.rank(), hosts.size());
  };
}

void lose_rank_1(Mesh& mesh) {
  device::any_of(mesh.host(), false);  // waits until all have joined
  if (mesh.rank() == 1) raise(SIGKILL);
  mesh.data().device.start_exchange({}, {})->wait();
}

int join_as_told(const std::string& scenario) {
  try {
    const std::optional<LaunchVariables> launch = launch_variables();
    JoinSettings settings = {.timeout_s = 300.0, .version = "1.0", .flags = {{"lr", "1e-6"}}};
    if (scenario == "lr" && launch->rank == 1) settings.flags["lr"] = "2e-6";
    if (scenario == "missing" && launch->rank == 1) return 0;
    if (scenario == "missing") settings.timeout_s = 2.0;
    if (scenario == "trust") settings.trust_network = true;
    const bool is_other = launch->rank == 1;
    if (scenario == "secret") settings.secret = "sixteen letters!";
    if (scenario == "two secrets") settings.secret = is_other ? "a second secret!" : "sixteen letters!";
    if (scenario == "one without a secret" && !is_other) settings.secret = "sixteen letters!";
    if (scenario == "deaf") settings.device = deaf_network();
    const std::unique_ptr<Mesh> mesh = join(*launch, settings);
    scenario == "deaf" ? lose_rank_1(*mesh) : talk(*mesh);
    return 0;
  } catch (const UserError& error) {
    std::puts(error.what());
    return 2;
  } catch (const EnvironmentError& error) {
    std::puts(error.what());
    return 3;
  } catch (const std::exception& error) {
    std::puts(error.what());
    return 1;
  }
}

int free_port() { return port_of(listen_at("127.0.0.1", 0)); }

class Rank {
 public:
  Rank(const std::string& scenario, const std::map<std::string, std::string>& variables) {
    int ends[2];
    EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
    pid_ = fork();
    if (pid_ == 0) {
      dup2(ends[1], STDOUT_FILENO);
      dup2(ends[1], STDERR_FILENO);
      for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
      execl("/proc/self/exe", "rendezvous_test", "--join", scenario.c_str(), nullptr);
      _exit(126);
    }
    close(ends[1]);
    output_ = ends[0];
  }
  Ended wait() {
    Ended result;
    char buffer[4096];
    for (ssize_t size = 0; (size = read(output_, buffer, sizeof buffer)) > 0;) {
      result.said.append(buffer, static_cast<size_t>(size));
    }
    close(output_);
    int status = 0;
    waitpid(pid_, &status, 0);
    result.code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    return result;
  }

 private:
  pid_t pid_ = -1;
  int output_ = -1;
};

std::map<std::string, std::string> variables(int rank, int size, int port) {
  return {{"RANK", std::to_string(rank)},       {"WORLD_SIZE", std::to_string(size)},
          {"LOCAL_RANK", std::to_string(rank)}, {"LOCAL_WORLD_SIZE", std::to_string(size)},
          {"MASTER_ADDR", "127.0.0.1"},         {"MASTER_PORT", std::to_string(port)}};
}

// Starts ranks as torchrun does, or as our launcher does.
std::vector<Ended> run_ranks(const std::string& scenario, int size, bool launcher_is_ours = false) {
  const int port = free_port();
  std::vector<Rank> ranks;
  for (int rank = size - 1; rank >= 0; --rank) {  // the others wait for rank 0
    auto all = variables(rank, size, port);
    if (launcher_is_ours) {
      all["TANDEM_LAUNCH"] = std::to_string(getpid());
      all.erase("MASTER_ADDR");
      all.erase("MASTER_PORT");
    }
    ranks.insert(ranks.begin(), Rank(scenario, all));
  }
  std::vector<Ended> result;
  for (Rank& rank : ranks) result.push_back(rank.wait());
  return result;
}

TEST(Rendezvous, OfOneToEightRanks) {
  for (const int size : {1, 3, 8}) {
    const std::vector<Ended> ranks = run_ranks("meet", size, /*launcher_is_ours=*/size == 8);
    EXPECT_EQ(ranks[0].said, fmt::format("{} ranks, sum {}\n", size, size * (size + 1)));
    for (const Ended& rank : ranks) EXPECT_EQ(rank.code, 0) << rank.said;
    for (int i = 1; i < size; ++i) EXPECT_EQ(ranks[static_cast<size_t>(i)].said, "");
  }
}

TEST(Rendezvous, AMissingRankIsNamedByAll) {
  const auto begin = Clock::now();
  const std::vector<Ended> ranks = run_ranks("missing", 4);
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(30));
  for (const int rank : {0, 2, 3}) {
    const Ended& ended = ranks[static_cast<size_t>(rank)];
    EXPECT_EQ(ended.code, 3);
    EXPECT_TRUE(
        ended.said.starts_with("rank 1 of 4 has not joined within 2 s (--distributed-timeout-minutes); look "
                               "whether they were started, and share /tmp"))
        << ended.said;
    EXPECT_EQ(std::count(ended.said.begin(), ended.said.end(), '\n'), 1) << ended.said;
  }
}

TEST(Rendezvous, ALostRankEndsWhatDevicesWaitFor) {
  const auto begin = Clock::now();
  const std::vector<Ended> ranks = run_ranks("deaf", 3);
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(30)) << "of the five minutes that a wait may last";
  EXPECT_EQ(ranks[1].code, 128 + SIGKILL);
  for (const size_t rank : {0, 2}) {
    EXPECT_EQ(ranks[rank].code, 3);
    EXPECT_EQ(ranks[rank].said, "the device's exchange was ended\n");
  }
}

TEST(Rendezvous, RankZeroThatDoesNotComeIsNamed) {
  const Ended ended = Rank("missing", variables(2, 3, free_port())).wait();
  EXPECT_EQ(ended.code, 3);
  EXPECT_EQ(
      ended.said,
      "rank 2 of 3: rank 0 does not answer on this machine within 2 s (--distributed-timeout-minutes); look whether "
      "it runs; in containers, let all ranks share /tmp\n");
}

TEST(Rendezvous, ADifferingFlagIsNamedByAll) {
  const std::string host = host_name();
  for (const Ended& rank : run_ranks("lr", 3)) {
    EXPECT_EQ(rank.code, 2);
    EXPECT_EQ(rank.said, fmt::format("rank 1 ({}) was started with --lr 2e-6, rank 0 ({}) with --lr 1e-6; give all "
                                     "ranks the same flags\n",
                                     host, host));
  }
}

TEST(Rendezvous, TwoLaunchesOfOnePortAreToldApart) {
  const int port = free_port();
  Rank one("missing", variables(0, 2, port)), two("missing", variables(0, 2, port));
  const std::string says =
      ": another process listens there already; wait until that launch has ended, or "
      "give this one another MASTER_PORT\n";
  int64_t num_told = 0;  // the one that comes later, whichever that is
  for (const Ended& ended : {one.wait(), two.wait()}) {
    EXPECT_EQ(ended.code, 3);
    num_told += ended.said.ends_with(says) ? 1 : 0;
  }
  EXPECT_EQ(num_told, 1);
}

TEST(Rendezvous, SeveralHostsNeedATrustedNetwork) {
  auto of_two_hosts = variables(0, 4, free_port());
  of_two_hosts["LOCAL_WORLD_SIZE"] = "2";
  const Ended refused = Rank("meet", of_two_hosts).wait();
  EXPECT_EQ(refused.code, 2);
  EXPECT_EQ(refused.said,
            "RANK=0 WORLD_SIZE=4 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2: the ranks are on several hosts, and whoever reaches "
            "their ports would be believed; set TANDEM_SECRET_FILE for all of them, or give --trust-network if nobody "
            "else is on the network between them\n");
  for (const char* allowed : {"trust", "secret"}) {
    const Ended unreachable = Rank(allowed, of_two_hosts).wait();
    EXPECT_EQ(unreachable.code, 2);
    EXPECT_EQ(
        unreachable.said,
        "MASTER_ADDR=127.0.0.1: the ranks are on several hosts, which do not reach it; set it to rank 0's address\n");
  }
}

TEST(Rendezvous, WithASecret) {
  const std::vector<Ended> ranks = run_ranks("secret", 2);
  EXPECT_EQ(ranks[0].said, "2 ranks, sum 6\n");
  for (const Ended& rank : ranks) EXPECT_EQ(rank.code, 0) << rank.said;
}

TEST(Rendezvous, AnotherSecretEndsAllRanks) {
  const std::vector<Ended> ranks = run_ranks("two secrets", 3);
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    EXPECT_EQ(ranks[rank].code, 2);
    EXPECT_EQ(ranks[rank].said,
              fmt::format("TANDEM_SECRET_FILE: 'rank/{}' of the ranks' store was not written with this rank's secret; "
                          "give all ranks the same file, and look who else is on the network\n",
                          rank == 1 ? 0 : 1));
  }
}

TEST(Rendezvous, ARankWithoutTheSecretIsNamed) {
  const std::vector<Ended> ranks = run_ranks("one without a secret", 2);
  EXPECT_EQ(ranks[0].code, 2);
  EXPECT_TRUE(ranks[0].said.starts_with("TANDEM_SECRET_FILE: 'rank/1'")) << ranks[0].said;
  EXPECT_EQ(ranks[1].code, 2);
  EXPECT_EQ(ranks[1].said, "rank 0 was started with TANDEM_SECRET_FILE, rank 1 without; set it for all ranks\n");
}

// torchrun starts the ranks again, with the same port.
TEST(Rendezvous, RanksThatAreStartedAgainMeetAgain) {
  const int port = free_port();
  const OwnedDescriptor agent = listen_at("127.0.0.1", port);  // torchrun's store, which we leave alone
  for (const char* attempt : {"0", "1"}) {
    std::vector<Rank> ranks;
    for (int rank = 0; rank < 3; ++rank) {
      auto all = variables(rank, 3, port);
      all["TORCHELASTIC_USE_AGENT_STORE"] = "True";
      all["TORCHELASTIC_RESTART_COUNT"] = attempt;
      ranks.emplace_back("meet", all);
    }
    for (Rank& rank : ranks) {
      const Ended ended = rank.wait();
      EXPECT_EQ(ended.code, 0) << ended.said;
    }
  }
}

}  // namespace
}  // namespace tandem::mesh

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "--join") return tandem::mesh::join_as_told(argv[2]);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
