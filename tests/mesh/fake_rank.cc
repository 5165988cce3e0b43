#include "tests/mesh/fake_rank.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "mesh/launch/launcher.h"
#include "mesh/launch/launcher_link.h"
#include "mesh/local_socket.h"

namespace tandem::mesh {

namespace {

volatile sig_atomic_t num_signals = 0, last_signal = 0;

int number(const char* name) { return std::atoi(std::getenv(name)); }

// The ranks notice a peer's end as those of a run do: all are connected to rank 0.
int meet() {
  std::vector<pollfd> peers;
  const std::string name = std::string("fake-") + std::getenv("TANDEM_LAUNCH");
  std::optional<LocalListener> listener;
  if (number("RANK") == 0) {
    listener.emplace(name, "wait");
    while (std::ssize(peers) < number("WORLD_SIZE") - 1) {
      std::optional<OwnedDescriptor> peer = listener->accept();
      if (peer) peers.push_back({peer->release(), POLLIN, 0});
      if (!peer) usleep(1'000);
    }
  } else {
    std::optional<OwnedDescriptor> rank_0;
    while (!(rank_0 = connect_locally(name))) usleep(1'000);
    peers.push_back({rank_0->release(), POLLIN, 0});
  }
  poll(peers.data(), peers.size(), -1);
  return 3;
}

// Waits for a signal, then returns whether another one comes.
int count_signals() {
  struct sigaction count = {};
  count.sa_handler = [](int signal) {
    num_signals = num_signals + 1;
    last_signal = signal;
  };
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaction(signal, &count, nullptr);
  std::puts("ready");
  std::fflush(stdout);
  while (num_signals == 0) usleep(5'000);
  for (int i = 0; i < 60; ++i) usleep(5'000);
  if (num_signals > 1) return 77;
  return last_signal == SIGTERM ? 0 : 128 + last_signal;
}

// "worker:say" makes the rank a rollout worker that does what "say" asks.
constexpr std::string_view kWorker = "worker:";
bool is_worker(std::string_view word) { return word.starts_with(kWorker); }

// This word makes the launcher that of the second of two hosts.
constexpr std::string_view kSecondHost = "host:1";

// "nameless:1" makes it that of the second of two hosts, which does not know the name of the first one.
constexpr std::string_view kNameless = "nameless:";

// Returns what rank 0 is told of its workers.
int hear() {
  StartedWorkers workers(number("TANDEM_LAUNCHER_FD"));
  while (!workers.have_all_ended().value()) usleep(1'000);
  const WorkerEnd end = workers.first_end().value();
  std::printf("heard: %d, %s\n", end.code, end.how.c_str());
  std::fflush(stdout);
  return 0;
}

// "freeze" is a rank that beats until it is stopped; the launcher of such a rank waits for three seconds.
constexpr std::string_view kFreeze = "freeze";
int freeze() {
  const Heartbeat heartbeat(number("TANDEM_LAUNCHER_FD"));
  usleep(500'000);
  raise(SIGSTOP);
  return 0;
}

// "beat" is one that runs for longer than that.
int beat() {
  const Heartbeat heartbeat(number("TANDEM_LAUNCHER_FD"));
  usleep(7'000'000);
  return 0;
}

int do_as_told(std::string word) {
  if (is_worker(word)) word.erase(0, kWorker.size());
  if (word == "hear") return hear();
  if (word == "beat") return beat();
  if (word == kFreeze) return freeze();
  if (word.starts_with("exit:")) return std::atoi(word.c_str() + 5);
  if (word.starts_with("exit-late:")) {
    usleep(1'500'000);
    return std::atoi(word.c_str() + 10);
  }
  if (word == "meet") return meet();
  if (word == "count") return count_signals();
  if (word == "say") std::fputs("one line\na warning\ntorn", stdout);
  if (word == "say") return 9;
  if (word == "flood") {
    for (int i = 0; i < 40'000; ++i) std::printf("line %d\n", i);
    return 9;
  }
  if (word == "stubborn") signal(SIGTERM, SIG_IGN);
  if (word == "parent" && fork() == 0) signal(SIGTERM, SIG_IGN);
  if (word == "killed") kill(getpid(), SIGKILL);
  for (int i = 0; i < 600; ++i) usleep(100'000);
  return 0;
}

}  // namespace

int run_fake_rank(int argc, char** argv) {
  const int place = 2 + number("LOCAL_RANK");
  return place < argc ? do_as_told(argv[place]) : 1;
}

int run_fake_launcher(int argc, char** argv) {
  LaunchPlan plan;
  if (argc > 2 && std::string_view(argv[2]) == kSecondHost) {
    plan.num_hosts = 2, plan.host = 1, plan.master_port = 29500;
    ++argv, --argc;
  } else if (argc > 2 && std::string_view(argv[2]).starts_with(kNameless)) {
    plan.num_hosts = 2, plan.host = std::atoi(argv[2] + kNameless.size());
    plan.master_address = "nobody.invalid";
    ++argv, --argc;
  }
  plan.command = {"/proc/self/exe", "--rank"};
  plan.command.insert(plan.command.end(), argv + 2, argv + argc);
  plan.num_workers = static_cast<int>(std::count_if(argv + 2, argv + argc, is_worker));
  plan.ranks_per_host = argc - 2;
  plan.grace = std::chrono::milliseconds(300);
  const bool one_freezes =
      std::any_of(argv + 2, argv + argc, [](std::string_view word) { return word.ends_with(kFreeze); });
  if (one_freezes) plan.timeout_s = 3.0;
  const LaunchEnd end = launch(plan);
  if (end.failed) std::fprintf(stderr, "tandem: error: %s\n", end.message.c_str());
  return end.code;
}

}  // namespace tandem::mesh
