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

#include "base/clock.h"
#include "base/hmac.h"
#include "base/sha256.h"
#include "device/communicator.h"
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
  std::string greeting_of(int rank) const { return fmt::format("{}{:08d}", digits_of("greeting"), rank); }

  // Returns the connections by rank.
  std::vector<Door> exchange_doors(int port) {
    std::vector<std::string> keys;
    for (int rank = 0; rank < settings_.size; ++rank) keys.push_back(fmt::format("peers/{}/{}", settings_.name, rank));
    store_.set(keys[static_cast<size_t>(settings_.rank)],
               text_of({.port = port, .address = settings_.address, .place = settings_.place}));
    try {
      store_.wait(keys, std::chrono::milliseconds(static_cast<int64_t>(settings_.timeout_s * 1000)));
    } catch (const std::exception&) {  // c10d's tells of sockets
      std::vector<int> missing;
      for (int rank = 0; rank < settings_.size; ++rank) {
        if (!store_.check({keys[static_cast<size_t>(rank)]})) missing.push_back(rank);
      }
      throw_missing(missing);
    }
    std::vector<Door> doors;
    for (const std::string& key : keys) doors.push_back(door_of(store_.get_to_str(key)));
    return doors;
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
  std::vector<Connection> connections_;  // by rank
};

}  // namespace

std::vector<Connection> connect_peers(c10d::Store& store, const PeerSettings& settings) {
  return Peers(store, settings).connect();
}

}  // namespace tandem::mesh
