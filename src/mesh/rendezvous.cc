#include "mesh/rendezvous.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <utility>
#include <vector>

#include "base/check.h"
#include "device/backend.h"
#include "device/cpu/gloo_communicator.h"
#include "mesh/agreement.h"
#include "mesh/network.h"
#include "mesh/store.h"

namespace tandem::mesh {

namespace {

using Clock = std::chrono::steady_clock;
using StorePointer = c10::intrusive_ptr<c10d::Store>;
using std::chrono::milliseconds;

// Rank 0 gives up first, and says why for all; the others wait a little longer for its word.
constexpr milliseconds kLongerThanRank0{3000};
constexpr milliseconds kFarewell{2000};  // that rank 0 stays for others to read why all end
constexpr milliseconds kFirstLook{2}, kLastLook{100};

std::string duration(double seconds) {
  return seconds < 120.0 ? fmt::format("{:g} s", seconds) : fmt::format("{:g} minutes", seconds / 60.0);
}

// Of this rank, to the others. Listening anywhere else would let in who has no business here.
std::string own_address(const LaunchVariables& launch, const JoinSettings& settings) {
  if (launch.is_one_host()) return "127.0.0.1";
  if (!settings.network_interface.empty()) return address_of_interface(settings.network_interface);
  return address_that_reaches(launch.master_address);
}

void check_hosts(const LaunchVariables& launch, const JoinSettings& settings) {
  if (launch.is_one_host()) return;
  TANDEM_USER_CHECK(
      settings.trust_network,
      fmt::format("{}: the ranks are on several hosts, and what they send each other is not encrypted; give "
                  "--trust-network if nobody else is on the network between them",
                  launch.source));
  TANDEM_USER_CHECK(!is_loopback(address_of_host(launch.master_address)),
                    fmt::format("MASTER_ADDR={}: the ranks are on several hosts, which do not reach it; set it to rank "
                                "0's address",
                                launch.master_address));
}

// The ranks' meeting, before they know each other: through keys of the store.
class Meeting {
 public:
  Meeting(c10d::Store& store, const LaunchVariables& launch, const JoinSettings& settings)
      : store_(store), launch_(launch), settings_(settings) {}

  // Ends on every rank with the same error, or on none.
  void agree() {
    store_.set(key(launch_.rank), text_of({.version = settings_.version,
                                           .contract = static_cast<int>(device::kBackendContract),
                                           .size = launch_.size,
                                           .host = host_name(),
                                           .flags = settings_.flags}));
    wait_for_all();
    std::vector<RankFacts> ranks;
    for (int rank = 0; rank < launch_.size; ++rank) ranks.push_back(facts_of(store_.get_to_str(key(rank))));
    const std::string differs = disagreement(ranks);
    if (differs.empty()) return;
    leave(launch_.size);
    throw UserError(differs);
  }

 private:
  static std::string key(int rank) { return fmt::format("rank/{}", rank); }

  void wait_for_all() {
    const auto patience = milliseconds(static_cast<int64_t>(settings_.timeout_s * 1000.0));
    const auto give_up = Clock::now() + patience + (launch_.rank == 0 ? milliseconds(0) : kLongerThanRank0);
    milliseconds pause = kFirstLook;
    for (int next = 0; next < launch_.size;) {
      if (store_.check({key(next)})) {
        ++next;
        continue;
      }
      if (launch_.rank != 0 && store_.check({"given_up"})) {
        const std::string why = store_.get_to_str("given_up");
        leave(0);
        throw EnvironmentError(why);
      }
      if (Clock::now() >= give_up) give_up_waiting();
      std::this_thread::sleep_for(pause);
      pause = std::min(pause * 2, kLastLook);
    }
  }

  [[noreturn]] void give_up_waiting() {
    std::vector<int> missing;
    for (int rank = 0; rank < launch_.size; ++rank) {
      if (!store_.check({key(rank)})) missing.push_back(rank);
    }
    const int here = launch_.size - static_cast<int>(missing.size());
    const std::string why = fmt::format(
        "rank{} {} of {} {} not joined within {} (--distributed-timeout-minutes); look whether they were started, and "
        "reach {}:{}",
        missing.size() == 1 ? "" : "s", fmt::join(missing, ", "), launch_.size, missing.size() == 1 ? "has" : "have",
        duration(settings_.timeout_s), launch_.master_address, launch_.master_port);
    store_.set("given_up", why);
    leave(here);
    throw EnvironmentError(why);
  }

  // The store goes with rank 0, which therefore waits until so many have read what is to be read.
  void leave(int num_ranks) {
    store_.add("left", 1);
    if (launch_.rank != 0) return;
    const auto give_up = Clock::now() + kFarewell;
    while (store_.add("left", 0) < num_ranks && Clock::now() < give_up) std::this_thread::sleep_for(kFirstLook);
  }

  c10d::Store& store_;
  const LaunchVariables& launch_;
  const JoinSettings& settings_;
};

class JoinedMesh final : public Mesh {
 public:
  // The others wait while the conductor alone exports, for as long as its disk takes. A rank that dies meanwhile is
  // missed at once.
  static constexpr double kSaversWait = 24 * 3600.0;

  JoinedMesh(StorePointer store, const LaunchVariables& launch, const JoinSettings& settings)
      : store_(std::move(store)),
        launch_(launch),
        settings_(settings),
        host_(over_hosts("host", everyone(), settings.timeout_s)),
        savers_(over_hosts("savers", everyone(), savers_wait())) {
    const int t = settings.tensor_size;
    TANDEM_CHECK(t > 0 && launch.size % t == 0, "ranks of replicas:", launch.size, t);
    const int replica = launch.rank / t, tensor_rank = launch.rank % t;
    if (t > 1) {
      const Members tensor = {.name = fmt::format("replica {}", replica), .rank = tensor_rank, .size = t};
      tensor_host_ = over_hosts("host", tensor, settings.timeout_s);
      tensor_savers_ = over_hosts("savers", tensor, savers_wait());
      tensor_device_ = over_devices(tensor, /*adds_up=*/true);
    }
    const Members data = {
        .name = t > 1 ? fmt::format("tensor rank {}", tensor_rank) : "", .rank = replica, .size = launch.size / t};
    if (t > 1) data_host_ = over_hosts("host", data, settings.timeout_s);
    data_device_ = over_devices(data, /*adds_up=*/false);
  }

  device::Communicator& host() const override { return *host_; }
  device::Communicator& savers() const override { return *savers_; }
  Group tensor() const override {
    return {.device = tensor_device_ ? *tensor_device_ : *nobody_, .host = tensor_host_ ? *tensor_host_ : *nobody_};
  }
  device::Communicator& tensor_savers() const override { return tensor_savers_ ? *tensor_savers_ : *nobody_; }
  Group data() const override { return {.device = *data_device_, .host = data_host_ ? *data_host_ : *host_}; }

  int64_t take_ticket(const std::string& series) override {
    try {
      return store_->add("ticket/" + series, 1) - 1;
    } catch (const std::exception&) {  // c10d's tells of sockets
      throw device::PeerLost(fmt::format("ticket of {}: rank 0 is gone", series));
    }
  }

 private:
  // Some of the ranks, and which of them this one is.
  struct Members {
    std::string name;
    int rank = 0, size = 1;
  };
  Members everyone() const { return {.name = "", .rank = launch_.rank, .size = launch_.size}; }

  double savers_wait() const { return std::max(settings_.timeout_s, kSaversWait); }

  std::unique_ptr<device::Communicator> over_hosts(const std::string& what, const Members& members,
                                                   double timeout_s) const {
    if (members.size == 1) return device::solo_communicator();
    return device::make_gloo_communicator(store_, members.name.empty() ? what : what + " of " + members.name,
                                          {.rank = members.rank,
                                           .size = members.size,
                                           .timeout_s = timeout_s,
                                           .address = own_address(launch_, settings_)});
  }
  std::unique_ptr<device::Communicator> over_devices(const Members& members, bool adds_up) const {
    const DeviceNetwork& network = settings_.device;
    if (!network.make || members.size == 1) return over_hosts("device", members, settings_.timeout_s);
    const std::string key = "device id of " + members.name;
    if (members.rank == 0) store_->set(key, network.make_id());
    return network.make(store_->get_to_str(key), members.rank, members.size, adds_up);
  }

  // On rank 0 it serves the others: it goes last.
  StorePointer store_;
  const LaunchVariables launch_;
  const JoinSettings settings_;
  const std::unique_ptr<device::Communicator> nobody_ = device::solo_communicator();
  std::unique_ptr<device::Communicator> host_, savers_, data_device_;
  std::unique_ptr<device::Communicator> tensor_host_, tensor_savers_, tensor_device_, data_host_;  // null: t is 1
};

}  // namespace

std::unique_ptr<Mesh> join(const LaunchVariables& launch, const JoinSettings& settings) {
  if (launch.size == 1) {
    if (launch.store_descriptor) OwnedDescriptor(*launch.store_descriptor).close();  // nobody comes
    return solo_mesh();
  }
  check_hosts(launch, settings);
  const std::string rank_0 = fmt::format("rank {} of {}: rank 0 at {}:{}", launch.rank, launch.size,
                                         launch.master_address, launch.master_port);
  try {
    // A store that outlives its ranks, as torchrun's does, has the keys of those who were there before.
    const auto store = c10::make_intrusive<c10d::PrefixStore>(fmt::format("tandem/{}", launch.attempt),
                                                              open_store(launch, settings.timeout_s));
    Meeting(*store, launch, settings).agree();
    return std::make_unique<JoinedMesh>(store, launch, settings);
  } catch (const c10::Error&) {  // its text tells of sockets
    throw EnvironmentError(rank_0 + " is gone; look at what it said");
  }
}

}  // namespace tandem::mesh
