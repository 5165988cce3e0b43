#include "mesh/peers.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <sstream>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/hmac.h"
#include "base/json.h"
#include "base/sha256.h"
#include "device/communicator.h"
#include "mesh/channel_connector.h"
#include "mesh/channel_listener.h"
#include "mesh/local_socket.h"
#include "mesh/network.h"

namespace tandem::mesh {

namespace {

constexpr std::chrono::milliseconds kBetweenAttempts{50};
constexpr int kLookEveryMs = 100;
constexpr double kGreetingPatience = 10.0;  // seconds that a rank whose handshake is done has for its greeting
constexpr size_t kDigits = 32;

// The place where a rank listens for the ranks after it.
struct Door {
  int port = 0;
  std::string address, place;
};

std::string text_of(const Door& door) { return fmt::format("{} {} {}", door.port, door.address, door.place); }

Door door_of(const std::string& text) {
  Door door;
  std::istringstream words(text);
  words >> door.port >> door.address;
  words.get();
  std::getline(words, door.place, '\0');
  return door;
}

// Rank 0 makes this list of where all ranks listen, and the others read it.
struct DoorList {
  std::vector<std::string> doors = {};  // texts by rank
  std::string error = "";               // why there are none
};

std::string text_of(const DoorList& list) {
  return base::Json({{"doors", list.doors}, {"error", list.error}})
      .dump(-1, ' ', /*ensure_ascii=*/false, base::Json::error_handler_t::replace);
}

DoorList door_list_of(const std::string& text) {
  try {
    const base::Json json = base::Json::parse(text);
    return {.doors = json.at("doors").get<std::vector<std::string>>(), .error = json.at("error").get<std::string>()};
  } catch (const base::Json::exception&) {
    throw EnvironmentError("rank 0 does not say where the ranks listen; give all hosts the same program");
  }
}

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

class Peers {
 public:
  Peers(c10d::Store& store, const PeerSettings& settings)
      : store_(store), settings_(settings), connections_(static_cast<size_t>(settings.size)) {}

  // Each rank connects to the ranks before it, in order, and then waits for the ranks after it. Rank 0 waits for nobody
  // before it does, so all come to an end.
  std::vector<Connection> connect() {
    std::optional<ChannelListener> listener;
    if (settings_.rank + 1 < settings_.size) listener.emplace(local_name(settings_.rank), door(), kGreetingPatience);
    const std::vector<Door> doors = exchange_doors(listener ? listener->port() : 0);
    for (int rank = 0; rank < settings_.rank; ++rank) connect_to_rank(rank, doors[static_cast<size_t>(rank)]);
    while (!missing().empty()) accept_from_ranks(*listener);
    for (const Connection& connection : connections_) {
      if (connection.socket.get() >= 0) watch_connection(connection.socket, settings_.timeout_s);
    }
    return std::move(connections_);
  }

 private:
  Connection& connection(int rank) { return connections_[static_cast<size_t>(rank)]; }
  double seconds_left() const { return settings_.timeout_s - base::seconds_since(begin_); }

  NetworkDoor door() const {
    // All ranks may come at the same time.
    const size_t most = std::max<size_t>(NetworkDoor{}.max_strangers, 2 * static_cast<size_t>(settings_.size));
    return {.address = settings_.address, .port = 0, .secret = settings_.secret, .max_strangers = most};
  }
  std::string digits_of(const std::string& purpose) const {
    return base::sha256(fmt::format("{}\n{}\n{}", purpose, settings_.name, settings_.run)).substr(0, kDigits);
  }
  std::string local_name(int rank) const { return "peer-" + digits_of(fmt::format("local {}", rank)); }
  // A rank first sends these bytes, whose length is fixed: its run, its communicator and itself.
  std::string greeting_of(int rank) const { return fmt::format("{}{:08d}", greeting_digits_, rank); }

  // Returns the doors by rank: rank 0 reads those of all, and the others read the list that it makes of them.
  std::vector<Door> exchange_doors(int port) {
    store_.set(key_of(settings_.rank),
               text_of(Door{.port = port, .address = settings_.address, .place = settings_.place}));
    if (settings_.rank == 0) return list_doors();
    await({list_key()});
    const DoorList list = door_list_of(store_.get_to_str(list_key()));
    if (!list.error.empty()) throw EnvironmentError(list.error);
    TANDEM_ENV_CHECK(std::ssize(list.doors) == settings_.size,
                     fmt::format("{}: joining: rank 0 lists {} ranks of {}; give all hosts the same program",
                                 settings_.name, list.doors.size(), settings_.size));
    return doors_of(list);
  }
  std::vector<Door> list_doors() {
    std::vector<std::string> keys;
    for (int rank = 0; rank < settings_.size; ++rank) keys.push_back(key_of(rank));
    await(keys);
    DoorList list;
    try {
      for (const std::string& key : keys) list.doors.push_back(store_.get_to_str(key));
    } catch (const EnvironmentError& error) {
      store_.set(list_key(), text_of(DoorList{.error = error.what()}));
      throw;
    }
    store_.set(list_key(), text_of(list));
    return doors_of(list);
  }
  static std::vector<Door> doors_of(const DoorList& list) {
    std::vector<Door> doors;
    for (const std::string& text : list.doors) doors.push_back(door_of(text));
    return doors;
  }
  std::string key_of(int rank) const { return fmt::format("peers/{}/{}", settings_.name, rank); }
  std::string list_key() const { return fmt::format("peers/{}", settings_.name); }
  void await(const std::vector<std::string>& keys) const {
    try {
      store_.wait(keys, std::chrono::milliseconds(static_cast<int64_t>(settings_.timeout_s * 1000)));
    } catch (const std::exception&) {  // c10d's tells of sockets
      std::vector<int> missing;
      for (int rank = 0; rank < settings_.size; ++rank) {
        if (!store_.check({key_of(rank)})) missing.push_back(rank);
      }
      if (missing.empty()) missing.push_back(0);  // it has not listed them
      throw_missing(missing);
    }
  }

  // A listener that strangers crowd may turn a rank away: it comes again.
  void connect_to_rank(int rank, const Door& door) {
    const std::string greeting = greeting_of(settings_.rank);
    std::string why;
    while (seconds_left() > 0.0) {
      try {
        if (const std::unique_ptr<Channel> channel = open_channel(rank, door)) {
          channel->send_bytes(bytes_of(greeting));
          std::string answer(greeting.size(), '\0');
          channel->receive_bytes(std::as_writable_bytes(std::span(answer)));
          if (answer != greeting_of(rank)) throw ChannelClosed("another process answers there");
          connection(rank) = channel->release();
          return;
        }
      } catch (const ChannelClosed& error) {
        why = error.what();
      }
      std::this_thread::sleep_for(kBetweenAttempts);
    }
    throw_missing({rank}, why);
  }

  // Returns null if nobody listens there.
  std::unique_ptr<Channel> open_channel(int rank, const Door& door) const {
    const double patience_s = std::max(seconds_left(), 0.1);
    if (door.place != settings_.place) return connect_channel(door.address, door.port, settings_.secret, patience_s);
    std::optional<OwnedDescriptor> socket = connect_locally(local_name(rank));
    return socket ? std::make_unique<Channel>(std::move(*socket), patience_s) : nullptr;
  }

  void accept_from_ranks(ChannelListener& listener) {
    if (seconds_left() <= 0.0) throw_missing(missing());
    if (const std::unique_ptr<Channel> channel = listener.accept()) {
      greet(*channel);
      return;
    }
    std::vector<pollfd> polled;
    for (const int descriptor : listener.descriptors()) polled.push_back({descriptor, POLLIN, 0});
    poll(polled.data(), polled.size(), kLookEveryMs);
  }

  // A process that is none of these ranks gets no answer, and the wait for the ranks goes on.
  void greet(Channel& channel) {
    try {
      std::string greeting(greeting_of(0).size(), '\0');
      channel.receive_bytes(std::as_writable_bytes(std::span(greeting)));
      for (int rank = settings_.rank + 1; rank < settings_.size; ++rank) {
        if (!base::are_equal_secrets(greeting, greeting_of(rank))) continue;
        channel.send_bytes(bytes_of(greeting_of(settings_.rank)));
        connection(rank) = channel.release();  // it may have come before, and not heard the answer
        return;
      }
    } catch (const ChannelClosed&) {  // a rank comes again
    }
  }

  std::vector<int> missing() const {
    std::vector<int> result;
    for (int rank = 0; rank < settings_.size; ++rank) {
      if (rank != settings_.rank && connections_[static_cast<size_t>(rank)].socket.get() < 0) result.push_back(rank);
    }
    return result;
  }

  [[noreturn]] void throw_missing(const std::vector<int>& ranks, const std::string& why = "") const {
    throw device::PeerLost(fmt::format("{}: joining: rank {} did not come within {:g} s{}", settings_.name,
                                       fmt::join(ranks, ", rank "), settings_.timeout_s,
                                       why.empty() ? "" : fmt::format(" ({})", why)));
  }

  c10d::Store& store_;
  const PeerSettings& settings_;
  const base::Clock::time_point begin_ = base::Clock::now();
  const std::string greeting_digits_ = digits_of("greeting");
  std::vector<Connection> connections_;  // by rank
};

}  // namespace

std::vector<Connection> connect_peers(c10d::Store& store, const PeerSettings& settings) {
  return Peers(store, settings).connect();
}

}  // namespace tandem::mesh
