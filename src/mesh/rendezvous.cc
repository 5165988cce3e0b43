#include "mesh/rendezvous.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <mutex>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <utility>
#include <vector>

#include "base/check.h"
#include "device/backend.h"
#include "mesh/agreement.h"
#include "mesh/hosts.h"
#include "mesh/local_socket.h"
#include "mesh/meeting.h"
#include "mesh/network.h"
#include "mesh/peers.h"
#include "mesh/sealed_store.h"
#include "mesh/secret.h"
#include "mesh/socket_communicator.h"
#include "mesh/store.h"

namespace tandem::mesh {

namespace {

using StorePointer = c10::intrusive_ptr<c10d::Store>;

// Returns the store for ranks with a secret: its values are theirs, and of this run.
StorePointer sealed(StorePointer store, const JoinSettings& settings, const std::string& run) {
  if (settings.secret.empty()) return store;
  return c10::make_intrusive<SealedStore>(std::move(store), settings.secret, run);
}

RankFacts own_facts(const LaunchVariables& launch, const JoinSettings& settings) {
  return {.version = settings.version,
          .contract = static_cast<int>(device::kBackendContract),
          .size = launch.size,
          .host = host_name(),
          .random = random_digits(),
          .flags = settings.flags,
          .device = settings.device_id,
          .is_inexact = settings.is_inexact};
}

// Ends the exchanges of devices with a network of their own when a rank is lost: the hosts' network notices a death at
// once, and theirs only after its timeout.
class DeviceLinks {
 public:
  void add(const std::shared_ptr<device::Communicator>& link) {
    const std::scoped_lock lock(mutex_);
    links_.push_back(link);
    if (is_lost_) link->abort();
  }
  void end() {
    const std::scoped_lock lock(mutex_);
    is_lost_ = true;
    for (const auto& weak : links_) {
      if (const auto link = weak.lock()) link->abort();
    }
  }

 private:
  std::mutex mutex_;
  bool is_lost_ = false;
  std::vector<std::weak_ptr<device::Communicator>> links_;
};

// The way in which the ranks of a launch were brought together.
struct Joined {
  StorePointer store;                         // has nothing but values of these ranks
  c10::intrusive_ptr<LocalStore> local = {};  // the same store, unsealed, if all are on one machine
  StorePointer kept = {};                     // store that this process keeps for others of the launch
  std::string run = {};                       // a text that these ranks alone have
};

class JoinedMesh final : public Mesh {
 public:
  JoinedMesh(Joined joined, const LaunchVariables& launch, const JoinSettings& settings)
      : joined_(std::move(joined)),
        launch_(launch),
        settings_(settings),
        host_(over_hosts("host", everyone())),
        savers_(over_hosts("savers", everyone())) {
    const int t = settings.tensor_size;
    TANDEM_CHECK(t > 0 && launch.size % t == 0, "ranks of replicas:", launch.size, t);
    const int replica = launch.rank / t, tensor_rank = launch.rank % t;
    if (t > 1) {
      const Members tensor = {.name = fmt::format("replica {}", replica), .rank = tensor_rank, .size = t};
      tensor_host_ = over_hosts("host", tensor);
      tensor_savers_ = over_hosts("savers", tensor);
      tensor_device_ = over_devices(tensor, *tensor_host_);
    }
    const Members data = {
        .name = t > 1 ? fmt::format("tensor rank {}", tensor_rank) : "", .rank = replica, .size = launch.size / t};
    if (t > 1) data_host_ = over_hosts("host", data);
    data_device_ = over_devices(data, data_host_ ? *data_host_ : *host_);
    end_connections_to_silent_hosts(settings.timeout_s);
  }

  device::Communicator& host() const override { return *host_; }
  device::Communicator& savers() const override { return *savers_; }
  Group tensor() const override {
    return {.device = tensor_device_ ? *tensor_device_ : *nobody_, .host = tensor_host_ ? *tensor_host_ : *nobody_};
  }
  device::Communicator& tensor_savers() const override { return tensor_savers_ ? *tensor_savers_ : *nobody_; }
  Group data() const override { return {.device = *data_device_, .host = data_host_ ? *data_host_ : *host_}; }

 private:
  // Names some of the ranks, and the number of this one among them.
  struct Members {
    std::string name;
    int rank = 0, size = 1;
  };
  Members everyone() const { return {.name = "", .rank = launch_.rank, .size = launch_.size}; }

  std::unique_ptr<device::Communicator> over_hosts(const std::string& what, const Members& members) {
    return connected(what, members, [this] { links_.end(); });
  }
  std::shared_ptr<device::Communicator> over_devices(const Members& members, device::Communicator& hosts) {
    if (!settings_.device || members.size == 1) return connected("device", members, {});
    const bool is_one_host = &hosts == tensor_host_.get() || launch_.is_one_host();
    std::shared_ptr<device::Communicator> link = settings_.device(hosts, is_one_host);
    links_.add(link);
    return link;
  }
  // `what` names the connection and its ranks: a text that these ranks alone have, in this order.
  std::unique_ptr<device::Communicator> connected(const std::string& what, const Members& members,
                                                  std::function<void()> on_failure) const {
    if (members.size == 1) return device::solo_communicator();
    const std::string name = members.name.empty() ? what : what + " of " + members.name;
    return make_socket_communicator(
        {.name = name,
         .rank = members.rank,
         .connections = joined_.local ? local_connections(name, members) : connections_of_hosts(name, members),
         .wait_s = settings_.timeout_s,
         .silence_s = settings_.timeout_s,
         .on_failure = std::move(on_failure)});
  }
  std::vector<Connection> local_connections(const std::string& name, const Members& members) const {
    std::vector<Connection> connections(static_cast<size_t>(members.size));
    for (int rank = 0; rank < members.size; ++rank) {
      if (rank == members.rank) continue;
      connections[static_cast<size_t>(rank)].socket = joined_.local->connect(
          fmt::format("{} {} {}", name, std::min(rank, members.rank), std::max(rank, members.rank)));
    }
    return connections;
  }
  std::vector<Connection> connections_of_hosts(const std::string& name, const Members& members) const {
    return connect_peers(*joined_.store,
                         {.name = name,
                          .run = joined_.run,
                          .rank = members.rank,
                          .size = members.size,
                          .address = own_address(launch_, settings_.network_interface, settings_.timeout_s),
                          .place = local_place(),
                          .secret = settings_.secret,
                          .timeout_s = settings_.timeout_s});
  }

  // On rank 0 it serves the others, so it is destroyed last.
  const Joined joined_;
  const LaunchVariables launch_;
  const JoinSettings settings_;
  DeviceLinks links_;
  const std::unique_ptr<device::Communicator> nobody_ = device::solo_communicator();
  std::unique_ptr<device::Communicator> host_, savers_;
  std::unique_ptr<device::Communicator> tensor_host_, tensor_savers_, data_host_;  // null: t is 1
  std::shared_ptr<device::Communicator> tensor_device_;                            // null: t is 1
  std::shared_ptr<device::Communicator> data_device_;
};

}  // namespace

std::unique_ptr<Mesh> join(const LaunchVariables& launch, const JoinSettings& settings) {
  if (launch.size == 1 && !settings.keeps_store) {
    if (launch.store_descriptor) OwnedDescriptor(*launch.store_descriptor).close();  // nobody comes
    return solo_mesh();
  }
  check_hosts(launch, settings.trust_network, settings.secret, settings.timeout_s);
  const std::string rank_0 =
      fmt::format("{}: rank 0 at {}:{}", launch.name(), launch.master_address, launch.master_port);
  try {
    Joined joined;
    if (settings.keeps_store && launch.rank == 0) joined.kept = open_store(launch, settings.timeout_s);
    if (launch.size == 1) return solo_mesh(std::make_shared<StorePointer>(joined.kept));
    if (launch.is_one_host()) {
      joined.local = open_local_store(launch, settings.timeout_s);
      joined.store = joined.local;
    } else {
      // A store that outlives its ranks, like torchrun's, has the keys of earlier ranks.
      joined.store = c10::make_intrusive<c10d::PrefixStore>(fmt::format("tandem/{}", launch.attempt),
                                                            open_store(launch, settings.timeout_s));
    }
    joined.run =
        meet(*sealed(joined.store, settings, "meeting"), own_facts(launch, settings),
             {.rank = launch.rank,
              .size = launch.size,
              .has_secret = !settings.secret.empty(),
              .timeout_s = settings.timeout_s,
              .party = launch.party,
              .remedy = launch.is_one_host() ? "share /tmp"
                                             : fmt::format("reach {}:{}", launch.master_address, launch.master_port)});
    joined.store = sealed(joined.store, settings, joined.run);
    return std::make_unique<JoinedMesh>(std::move(joined), launch, settings);
  } catch (const c10::Error&) {  // its text is about sockets
    throw EnvironmentError(rank_0 + " is gone; look at what it said");
  }
}

}  // namespace tandem::mesh
