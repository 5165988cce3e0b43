// Ranks connect as those of several machines do. They keep the promises of every communicator, and a stranger who
// reaches their ports neither comes in nor keeps them out.
#include "mesh/peers.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <string_view>
#include <thread>

#include "base/clock.h"
#include "mesh/channel_connector.h"
#include "mesh/channel_listener.h"
#include "mesh/local_socket.h"
#include "mesh/sealed_store.h"
#include "mesh/socket_communicator.h"
#include "tests/base/thrown.h"
#include "tests/device/ranks/communicator_conformance.h"
#include "tests/device/ranks/forked_ranks.h"
#include "tests/device/ranks/forked_store.h"
#include "tests/mesh/counting_store.h"
#include "tests/mesh/foreign_user.h"

namespace tandem::mesh {
namespace {

using device::Body;
using device::Communicator;
using testing::HasSubstr;
using testing::StartsWith;
using Store = c10::intrusive_ptr<c10d::Store>;

const std::string kSecret = "thirty-two letters of one secret";

// Each `ranks_per_machine` of them count as one machine.
PeerSettings settings_of(int rank, int size, const std::string& secret, int ranks_per_machine = 1) {
  return {.name = "test",
          .run = "a run",
          .rank = rank,
          .size = size,
          .address = "127.0.0.1",
          .place = fmt::format("machine {} of {}", rank / ranks_per_machine, getppid()),
          .secret = secret,
          .timeout_s = 30.0};
}

Store sealed(Store store, const std::string& secret) {
  if (secret.empty()) return store;
  return c10::make_intrusive<SealedStore>(std::move(store), secret, "a run");
}

std::vector<std::string> run_peers(int size, const std::string& secret, int ranks_per_machine, const Body& body) {
  const device::Listener listener;
  return device::run_forked(size, [&](int rank) {
    const Store store = sealed(device::open_store(listener, rank), secret);
    const auto ranks = make_socket_communicator(
        {.name = "test",
         .rank = rank,
         .connections = connect_peers(*store, settings_of(rank, size, secret, ranks_per_machine)),
         .wait_s = 60.0,
         .silence_s = 60.0});
    return outcome_of(body, *ranks);
  });
}

std::vector<device::RankKind> peer_kinds() {
  std::vector<device::RankKind> kinds;
  const auto add = [&](const std::string& name, int size, const std::string& secret, int ranks_per_machine) {
    kinds.push_back({.name = name, .size = size, .are_processes = true, .run = [=](int ranks, const Body& body) {
                       return run_peers(ranks, secret, ranks_per_machine, body);
                     }});
  };
  add("tcp", 3, "", 1);
  for (const int size : {2, 3, 8}) add("tls", size, kSecret, 1);
  add("machines_of_two", 4, kSecret, 2);
  return kinds;
}

}  // namespace
}  // namespace tandem::mesh

namespace tandem::device {
INSTANTIATE_TEST_SUITE_P(Peers, CommunicatorConformance, testing::ValuesIn(mesh::peer_kinds()), rank_kind_name);
}  // namespace tandem::device

namespace tandem::mesh {
namespace {

bool is_local(const Connection& connection) {
  sockaddr_storage address = {};
  socklen_t size = sizeof address;
  return getsockname(connection.socket.get(), reinterpret_cast<sockaddr*>(&address), &size) == 0 &&
         address.ss_family == AF_UNIX;
}

TEST(Peers, OnlyWhatCrossesMachinesIsTcpAndThatIsEncrypted) {
  const device::Listener listener;
  const std::vector<std::string> outcomes = device::run_forked(4, [&](int rank) {
    const Store store = device::open_store(listener, rank);
    const std::vector<Connection> connections = connect_peers(*store, settings_of(rank, 4, kSecret, 2));
    std::string kinds;
    for (const Connection& connection : connections) {
      kinds += connection.socket.get() < 0 ? "self " : is_local(connection) ? "local " : "tcp ";
      if (connection.tls) kinds += "tls ";
    }
    return kinds;
  });
  EXPECT_EQ(outcomes[0], "self local tcp tls tcp tls ");
  EXPECT_EQ(outcomes[3], "tcp tls tcp tls local self ");
}

TEST(Peers, WhoDoesNotComeIsNamed) {
  const device::Listener listener;
  const base::Clock::time_point begin = base::Clock::now();
  const std::vector<std::string> outcomes = device::run_forked(3, [&](int rank) -> std::string {
    const Store store = device::open_store(listener, rank);
    if (rank == 1) return "";
    PeerSettings settings = settings_of(rank, 3, kSecret);
    settings.timeout_s = rank == 0 ? 2.0 : 1.0;  // the store is rank 0's
    return base::thrown_by<device::PeerLost>([&] { connect_peers(*store, settings); });
  });
  EXPECT_EQ(outcomes[0], "test: joining: rank 1 did not come within 2 s");
  EXPECT_EQ(outcomes[2], "test: joining: rank 1 did not come within 1 s");
  EXPECT_LT(base::seconds_since(begin), 15.0);
}

// If each rank reads where every other one listens, this is 576 reads.
TEST(Peers, OfManyRanksReadOneList) {
  constexpr int kRanks = 24;
  Values values;
  std::vector<Counts> counts(kRanks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      CountingStore counting(values);
      const std::vector<Connection> connections = connect_peers(counting, settings_of(rank, kRanks, "", kRanks));
      for (int other = 0; other < kRanks; ++other) {
        EXPECT_EQ(connections[static_cast<size_t>(other)].socket.get() < 0, other == rank);
      }
      counts[static_cast<size_t>(rank)] = counting.counts;
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(counts[static_cast<size_t>(rank)].gets, rank == 0 ? kRanks : 1);
    EXPECT_EQ(counts[static_cast<size_t>(rank)].sets, rank == 0 ? 2 : 1);
  }
}

// The connections tell the secrets apart even where the store does not.
TEST(Peers, ARankOfAnotherSecretDoesNotComeIn) {
  const device::Listener listener;
  const std::vector<std::string> outcomes = device::run_forked(2, [&](int rank) -> std::string {
    const Store store = device::open_store(listener, rank);
    PeerSettings settings = settings_of(rank, 2, rank == 0 ? kSecret : "thirty-two letters of another one");
    settings.timeout_s = rank == 0 ? 4.0 : 2.0;  // rank 0 is there as long as the other one tries
    return base::thrown_by<device::PeerLost>([&] { connect_peers(*store, settings); });
  });
  EXPECT_THAT(outcomes[0], HasSubstr("test: joining: rank 1 did not come within 4 s"));
  EXPECT_THAT(outcomes[1], HasSubstr("test: joining: rank 0 did not come within 2 s (TANDEM_SECRET_FILE: the other end "
                                     "has another secret; give all the same file)"));
}

void say(const OwnedDescriptor& socket, std::string_view text) {
  [[maybe_unused]] const ssize_t sent = send(socket.get(), text.data(), text.size(), MSG_NOSIGNAL);
}

// Another user of the machine reads the port in the store and tries connections that send nothing, noise, a greeting in
// the clear and another secret; and writes the value of a rank into the store without the secret.
std::string forge(c10d::Store& store) {
  if (why_no_foreign_user().empty()) become_foreign_user();
  const std::string announced = store.get_to_str("peers/test/0");
  constexpr size_t kSealBytes = std::string_view("sealed:").size() + 64;
  const int port = std::stoi(announced.substr(kSealBytes));
  std::vector<OwnedDescriptor> kept;
  for (int i = 0; i < 100; ++i) {
    std::optional<OwnedDescriptor> socket = connect_to("127.0.0.1", port);
    if (!socket) return fmt::format("nobody listens at '{}', port {}", announced, port);
    if (i % 4 == 1) say(*socket, "\x16\x03\x01 what is no TLS record");
    if (i % 4 == 2) say(*socket, "TDM2OPEN" + std::string(32, '0') + "00000001");
    kept.push_back(std::move(*socket));
  }
  for (int i = 0; i < 5; ++i) {
    try {
      // Null: the ranks are connected, and nobody listens any more.
      if (connect_channel("127.0.0.1", port, "thirty-two letters of another one", 5.0))
        return "another secret is let in";
    } catch (const ChannelClosed&) {  // as it should be
    }
  }
  std::this_thread::sleep_for(std::chrono::seconds(3));  // the silent ones stay while the ranks connect
  return "";
}

TEST(Peers, StrangersNeitherComeInNorKeepRanksOut) {
  const device::Listener listener;
  const std::vector<std::string> outcomes = device::run_forked(4, [&](int rank) {
    const Store store = device::open_store(listener, rank);
    if (rank == 3) return forge(*store);
    if (rank == 2) std::this_thread::sleep_for(std::chrono::seconds(2));
    const Store ours = sealed(store, kSecret);
    const auto ranks = make_socket_communicator({.name = "test",
                                                 .rank = rank,
                                                 .connections = connect_peers(*ours, settings_of(rank, 3, kSecret)),
                                                 .wait_s = 20.0});
    std::string heard;
    const std::string outcome = outcome_of(
        [&](Communicator& all) {
          for (const std::string& text : device::all_gather_text(all, fmt::format("rank {};", rank))) heard += text;
          std::this_thread::sleep_for(std::chrono::seconds(rank == 0 ? 3 : 0));  // the store is its own
          device::any_of(all, true);
        },
        *ranks);
    return outcome + heard;
  });
  for (const int rank : {0, 1, 2}) EXPECT_EQ(outcomes[static_cast<size_t>(rank)], "rank 0;rank 1;rank 2;");
  EXPECT_EQ(outcomes[3], "");
}

// The network is trusted: a process of another run that comes by mistake is none of these ranks all the same.
TEST(Peers, AConnectionOfAnotherRunIsNotTaken) {
  const device::Listener listener;
  const std::vector<std::string> outcomes = device::run_forked(2, [&](int rank) -> std::string {
    const Store store = device::open_store(listener, rank);
    PeerSettings settings = settings_of(rank, 2, "");
    settings.timeout_s = 2.0;
    if (rank == 1) settings.run = "another run";
    return base::thrown_by<device::PeerLost>([&] { connect_peers(*store, settings); });
  });
  for (const std::string& outcome : outcomes) EXPECT_THAT(outcome, StartsWith("test: joining: rank "));
}

TEST(Peers, AForgedAnnouncementEndsTheRun) {
  const device::Listener listener;
  const std::vector<std::string> outcomes = device::run_forked(2, [&](int rank) -> std::string {
    const Store store = device::open_store(listener, rank);
    if (rank == 1) {
      store->set("peers/test/1", std::string("1 127.0.0.1 here"));
      store->wait({"done"});
      return "";
    }
    const Store ours = sealed(store, kSecret);
    std::string refusal = base::thrown_by<EnvironmentError>(
        [&] { connect_peers(*ours, settings_of(rank, 2, kSecret)); }, "it was believed");
    store->set("done", std::string("done"));
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    return refusal;
  });
  EXPECT_THAT(outcomes[0], StartsWith("TANDEM_SECRET_FILE: 'peers/test/1' of the ranks' store was not written with"));
}

}  // namespace
}  // namespace tandem::mesh
