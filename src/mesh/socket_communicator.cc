#include "mesh/socket_communicator.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/running_time.h"
#include "device/exchange_pieces.h"
#include "device/waits_for_samples.h"

namespace tandem::mesh {
namespace {

using base::Clock;
using device::Piece;
using device::TensorLists;
using std::chrono::milliseconds;

constexpr milliseconds kFarewellTimeout{2000};
// A rank beats so often: a few beats may be late before it is taken for lost.
constexpr double kMostBetweenBeats = 5.0, kBeatsBeforeSilence = 6.0;
constexpr double kMostBetweenLooks = 0.5;
// A rank that is gone is named after this time. Until then no rank has ended because of it, so all name the same one.
constexpr milliseconds kSettle{200};
constexpr int64_t kFairBytes = int64_t{16} << 20;  // bytes that are read from one rank before the others have a turn
constexpr size_t kTlsBytes =
    size_t{256} << 10;  // bytes that are encrypted, or decrypted, at a time: they fit a core's cache

enum class Kind : uint32_t { kPiece = 0x7461'6e01, kBeat, kFarewell };

// The header precedes the bytes of each message.
struct Header {
  Kind kind = Kind::kBeat;
  uint32_t none = 0;
  uint64_t bytes = 0;
};
static_assert(sizeof(Header) == 16);

// A rank's last message to another, which tells a rank that ended from one that died.
struct Farewell {
  int64_t lost_rank = -1;      // rank whose loss ended this one early; -1: none
  int64_t num_exchanges = -1;  // number of exchanges that it had begun
};

class SocketCommunicator;

class SocketExchange final : public device::Communicator::Exchange {
 public:
  SocketExchange(SocketCommunicator& ranks, TensorLists to, TensorLists from)
      : ranks_(ranks), to_(std::move(to)), from_(std::move(from)) {}
  ~SocketExchange() override;
  void wait() override;

 private:
  friend class SocketCommunicator;

  SocketCommunicator& ranks_;
  bool is_over_ = false;
  TensorLists to_, from_;        // tensors held until wait()
  std::multiset<int> receives_;  // ranks from which pieces have yet to come
  std::multiset<int> sends_;     // ranks to which pieces have yet to go
};

class SocketCommunicator final : public device::Communicator, public device::LimitedWaits {
 public:
  explicit SocketCommunicator(SocketRanks ranks);
  ~SocketCommunicator() override;

  int rank() const override { return settings_.rank; }
  int size() const override { return static_cast<int>(peers_.size()); }
  std::unique_ptr<Exchange> start_exchange(TensorLists to, TensorLists from) override;
  void limit_waits(bool are_limited) override {
    const std::scoped_lock lock(mutex_);
    are_waits_limited_ = are_limited;
  }
  void check() override {
    const std::scoped_lock lock(mutex_);
    if (!failure_.empty()) throw_lost(0);
  }
  void abort() noexcept override;
  device::Traffic traffic() override { return traffic_; }

 private:
  friend class SocketExchange;

  struct Outgoing {
    Header header;
    const std::byte* data = nullptr;  // data of a piece
    Farewell farewell;                // message, for a farewell
    uint64_t sent = 0;                // bytes sent, of header and data
    SocketExchange* exchange = nullptr;
  };
  struct Incoming {
    std::byte* data = nullptr;
    uint64_t bytes = 0;
    SocketExchange* exchange = nullptr;
  };
  // Holds the connection to another rank.
  struct Peer {
    OwnedDescriptor socket;           // none: the own rank, or closed
    std::unique_ptr<TlsSession> tls;  // null: nothing is encrypted
    bool is_of_network = false;
    std::deque<Outgoing> out;
    std::string encrypted;  // encrypted bytes of pieces that have left `out`, and of its first piece
    size_t encrypted_sent = 0;
    bool may_have_decrypted = false;  // the session has bytes that make no socket readable
    std::deque<Incoming> in;          // pieces that this rank waits for
    // The header of the message that is being read.
    Header header;
    Farewell farewell;
    uint64_t received = 0;  // bytes received, of header and data
    bool is_early = false;  // true: a piece that this rank has not asked for yet
    base::RunningTime silence;
    Clock::time_point last_sent = Clock::now();
    std::optional<int64_t> num_exchanges;  // its number of exchanges, once it has left

    bool has_something_to_send() const { return !out.empty() || encrypted_sent < encrypted.size(); }
    bool listens() const { return !is_early || !in.empty(); }
    bool can_go_on_reading() const { return socket.get() >= 0 && may_have_decrypted && listens(); }
  };

  Peer& peer(int rank) { return peers_[static_cast<size_t>(rank)]; }
  void wake() const;
  void take_wakes() const;
  void serve();
  // The caller of all that follow has locked mutex_.
  std::vector<pollfd> what_to_poll();
  void beat_and_listen();
  void write_some(int rank);
  bool send_message_bytes(int rank, Outgoing& next);
  bool encrypt_message_bytes(int rank, Outgoing& next);
  bool send_encrypted(int rank);
  bool has_sent(int rank, ssize_t result);
  static std::array<std::span<const std::byte>, 2> rest_of(const Outgoing& message);
  void read_some(int rank);
  bool read_header(int rank);
  bool read_body(int rank, uint64_t most);
  ssize_t receive(int rank, std::byte* into, uint64_t bytes);
  ssize_t receive_decrypted(int rank, std::span<std::byte> into);
  void take_message(int rank);
  void closed(int rank);
  bool has_something_to_send() const;
  void fail(int rank, std::string why);
  void fail_tls(int rank, const std::exception& error);
  void fail_where_left(int rank);
  [[noreturn]] void throw_lost(double waited_s) const;

  void wait_for(SocketExchange& exchange);

  const SocketRanks settings_;
  const double beat_every_s_;
  device::Traffic traffic_;
  std::vector<Peer> peers_;  // by rank
  std::string received_;     // as it came from a socket, to be decrypted
  OwnedDescriptor wake_;
  std::mutex mutex_;
  std::condition_variable changed_;
  struct Gone {
    int rank = 0;
    Clock::time_point decide_at;
  };
  std::optional<Gone> gone_;  // first connection that closed without a farewell
  std::string failure_;       // first failure; empty: none
  int64_t lost_rank_ = -1;
  bool is_closing_ = false;
  bool are_waits_limited_ = true;
  int64_t num_exchanges_ = 0;
  std::set<SocketExchange*> under_way_;
  std::thread thread_;
};

SocketExchange::~SocketExchange() {
  try {
    wait();
  } catch (const std::exception&) {  // a caller who needs the error calls wait()
  }
}

void SocketExchange::wait() {
  if (std::exchange(is_over_, true)) return;
  const Clock::time_point begin = Clock::now();
  ranks_.wait_for(*this);
  ranks_.traffic_.wait_s += base::seconds_since(begin);
}

bool is_of_network(int socket) {
  sockaddr_storage address = {};
  socklen_t size = sizeof address;
  return getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) == 0 && address.ss_family != AF_UNIX;
}

SocketRanks without_connections(const SocketRanks& ranks) {
  return {.name = ranks.name,
          .rank = ranks.rank,
          .connections = {},
          .wait_s = ranks.wait_s,
          .silence_s = ranks.silence_s,
          .on_failure = ranks.on_failure};
}

SocketCommunicator::SocketCommunicator(SocketRanks ranks)
    : settings_(without_connections(ranks)),
      beat_every_s_(std::min(ranks.silence_s / kBeatsBeforeSilence, kMostBetweenBeats)),
      peers_(ranks.connections.size()),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  TANDEM_ENV_CHECK(wake_.get() >= 0, "cannot connect the ranks: no descriptor is left (ulimit -n)");
  for (size_t i = 0; i < peers_.size(); ++i) {
    if (static_cast<int>(i) == settings_.rank) continue;
    Peer& other = peers_[i];
    other.socket = std::move(ranks.connections[i].socket);
    other.tls = std::move(ranks.connections[i].tls);
    TANDEM_CHECK(other.socket.get() >= 0, "no socket to rank", i);
    fcntl(other.socket.get(), F_SETFL, O_NONBLOCK);
    other.is_of_network = is_of_network(other.socket.get());
    other.may_have_decrypted = other.tls != nullptr;  // what followed the handshake at once
  }
  thread_ = std::thread([this] { serve(); });
}

SocketCommunicator::~SocketCommunicator() {
  {
    const std::scoped_lock lock(mutex_);
    is_closing_ = true;
    for (int rank = 0; rank < size(); ++rank) {
      // If only a part of a piece has gone, no message after it could be read.
      if (peer(rank).socket.get() < 0 || rank == lost_rank_ || !peer(rank).out.empty()) continue;
      Outgoing last{.header = {.kind = Kind::kFarewell, .bytes = sizeof(Farewell)},
                    .farewell = {.lost_rank = lost_rank_, .num_exchanges = num_exchanges_}};
      peer(rank).out.push_back(last);
      write_some(rank);
    }
  }
  wake();
  thread_.join();
}

void SocketCommunicator::wake() const {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof one);
}

void SocketCommunicator::take_wakes() const {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t taken = read(wake_.get(), &count, sizeof count);
}

bool SocketCommunicator::has_something_to_send() const {
  return std::ranges::any_of(peers_,
                             [](const Peer& peer) { return peer.socket.get() >= 0 && peer.has_something_to_send(); });
}

void SocketCommunicator::serve() {
  std::optional<Clock::time_point> farewell_deadline;
  std::unique_lock lock(mutex_);
  while (true) {
    if (is_closing_) {
      if (!farewell_deadline) farewell_deadline = Clock::now() + kFarewellTimeout;
      if (!has_something_to_send() || Clock::now() >= *farewell_deadline) return;
    }
    std::vector<pollfd> polled = what_to_poll();
    const bool can_go_on = std::ranges::any_of(peers_, &Peer::can_go_on_reading);
    const double wait_s = is_closing_ || gone_ ? 0.05 : std::min(beat_every_s_ / 2, kMostBetweenLooks);
    lock.unlock();
    poll(polled.data(), polled.size(), can_go_on ? 0 : static_cast<int>(wait_s * 1000) + 1);
    lock.lock();
    take_wakes();
    for (int rank = 0; rank < size(); ++rank) {
      const int16_t events = polled[static_cast<size_t>(rank)].revents;
      if ((events & POLLOUT) != 0) write_some(rank);
      if ((events & ~POLLOUT) != 0 || peer(rank).can_go_on_reading()) read_some(rank);
    }
    if (gone_ && Clock::now() >= gone_->decide_at) fail(gone_->rank, fmt::format("rank {} is gone", gone_->rank));
    if (!is_closing_) beat_and_listen();
  }
}

// A rank that is ahead is not read from until its pieces are asked for: its later messages wait in the kernel.
std::vector<pollfd> SocketCommunicator::what_to_poll() {
  std::vector<pollfd> polled;
  for (const Peer& peer : peers_) {
    const int events = (peer.listens() ? POLLIN : 0) | (peer.has_something_to_send() ? POLLOUT : 0);
    polled.push_back(
        {.fd = events == 0 ? -1 : peer.socket.get(), .events = static_cast<int16_t>(events), .revents = 0});
  }
  polled.push_back({.fd = wake_.get(), .events = POLLIN, .revents = 0});
  return polled;
}

void SocketCommunicator::beat_and_listen() {
  for (int rank = 0; rank < size(); ++rank) {
    Peer& other = peer(rank);
    if (other.socket.get() < 0) continue;
    if (!other.has_something_to_send() && base::seconds_since(other.last_sent) >= beat_every_s_) {
      other.out.push_back({.header = {.kind = Kind::kBeat}, .farewell = {}});
      write_some(rank);
    }
    if (other.is_early || other.num_exchanges) other.silence.reset();
    if (other.silence.seconds() > settings_.silence_s)
      fail(rank, fmt::format("rank {} has said nothing for {:g} s: its process is stopped or frozen{}", rank,
                             settings_.silence_s, other.is_of_network ? ", or its machine is cut off" : ""));
  }
}

void SocketCommunicator::write_some(int rank) {
  Peer& other = peer(rank);
  while (other.socket.get() >= 0 && send_encrypted(rank) && !other.out.empty()) {
    Outgoing& next = other.out.front();
    if (!(other.tls ? encrypt_message_bytes(rank, next) : send_message_bytes(rank, next))) return;
    if (next.sent < sizeof next.header + next.header.bytes) continue;
    if (next.exchange != nullptr) {
      next.exchange->sends_.erase(next.exchange->sends_.find(rank));
      changed_.notify_all();
    }
    other.out.pop_front();
  }
}

// Returns the parts of a message that have not been sent yet.
std::array<std::span<const std::byte>, 2> SocketCommunicator::rest_of(const Outgoing& message) {
  const auto* const body =
      message.header.kind == Kind::kFarewell ? reinterpret_cast<const std::byte*>(&message.farewell) : message.data;
  const uint64_t of_header = std::min<uint64_t>(message.sent, sizeof message.header);
  const uint64_t of_body = message.sent - of_header;
  return {std::as_bytes(std::span(&message.header, 1)).subspan(of_header),
          std::span(body + of_body, message.header.bytes - of_body)};
}

// Returns false if nothing more can be sent now.
bool SocketCommunicator::send_message_bytes(int rank, Outgoing& next) {
  std::array<iovec, 2> parts = {};
  for (size_t i = 0; const std::span<const std::byte> part : rest_of(next))
    parts[i++] = {const_cast<std::byte*>(part.data()), part.size()};
  msghdr message = {};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  const ssize_t result = sendmsg(peer(rank).socket.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (result > 0) next.sent += static_cast<uint64_t>(result);
  return has_sent(rank, result);
}

// Encrypts some of the message, for send_encrypted(). Returns false if the session can no longer be used.
bool SocketCommunicator::encrypt_message_bytes(int rank, Outgoing& next) {
  Peer& other = peer(rank);
  try {
    for (const std::span<const std::byte> part : rest_of(next)) {
      const std::span<const std::byte> some = part.first(std::min(part.size(), kTlsBytes));
      other.tls->write(some);
      next.sent += some.size();
    }
    other.encrypted = other.tls->take_words();
    other.encrypted_sent = 0;
    return true;
  } catch (const EnvironmentError& error) {
    fail_tls(rank, error);
    return false;
  }
}

// Returns whether all encrypted bytes have been sent.
bool SocketCommunicator::send_encrypted(int rank) {
  Peer& other = peer(rank);
  while (other.encrypted_sent < other.encrypted.size()) {
    const std::string_view rest = std::string_view(other.encrypted).substr(other.encrypted_sent);
    const ssize_t result = send(other.socket.get(), rest.data(), rest.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (result > 0) other.encrypted_sent += static_cast<size_t>(result);
    if (!has_sent(rank, result)) return false;
  }
  return true;
}

// Takes the result of a call that sends, and returns whether to call it again.
bool SocketCommunicator::has_sent(int rank, ssize_t result) {
  Peer& other = peer(rank);
  if (result < 0 && errno == EINTR) return true;
  if (result < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
  if (result < 0) {  // its last messages may still be there to be read
    other.out.clear();
    other.encrypted.clear();
    other.encrypted_sent = 0;
    read_some(rank);
    return false;
  }
  other.last_sent = Clock::now();
  return true;
}

// Returns -1 if nothing is there yet, or if the connection is closed, which closed() was told.
ssize_t SocketCommunicator::receive(int rank, std::byte* into, uint64_t bytes) {
  Peer& other = peer(rank);
  while (true) {
    const ssize_t received =
        other.tls ? receive_decrypted(rank, {into, bytes}) : recv(other.socket.get(), into, bytes, MSG_DONTWAIT);
    if (received > 0) {
      other.received += static_cast<uint64_t>(received);
      other.silence.reset();
      other.may_have_decrypted = other.tls != nullptr;
      return received;
    }
    if (other.socket.get() < 0) return -1;  // the session has failed
    if (received < 0 && errno == EINTR) continue;
    other.may_have_decrypted = false;
    if (received == 0 || (errno != EAGAIN && errno != EWOULDBLOCK)) closed(rank);
    return -1;
  }
}

// Returns as recv() does.
ssize_t SocketCommunicator::receive_decrypted(int rank, std::span<std::byte> into) {
  Peer& other = peer(rank);
  try {
    while (true) {
      if (const size_t count = other.tls->read(into); count > 0) return static_cast<ssize_t>(count);
      received_.resize(kTlsBytes);
      const ssize_t received = recv(other.socket.get(), received_.data(), received_.size(), MSG_DONTWAIT);
      if (received <= 0) return received;
      other.tls->add(std::string_view(received_).substr(0, static_cast<size_t>(received)));
    }
  } catch (const EnvironmentError& error) {
    fail_tls(rank, error);
    return -1;
  }
}

// Returns whether the header is complete.
bool SocketCommunicator::read_header(int rank) {
  Peer& other = peer(rank);
  while (other.received < sizeof(Header)) {
    auto* const into = reinterpret_cast<std::byte*>(&other.header) + other.received;
    if (receive(rank, into, sizeof(Header) - other.received) < 0) return false;
  }
  return true;
}

// Returns whether the message is complete.
bool SocketCommunicator::read_body(int rank, uint64_t most) {
  Peer& other = peer(rank);
  const bool is_piece = other.header.kind == Kind::kPiece;
  std::byte* const into = is_piece ? other.in.front().data : reinterpret_cast<std::byte*>(&other.farewell);
  const uint64_t end = sizeof(Header) + other.header.bytes, stop = std::min(end, other.received + most);
  while (other.received < stop) {
    if (receive(rank, into + (other.received - sizeof(Header)), stop - other.received) < 0) return false;
  }
  return other.received == end;
}

void SocketCommunicator::read_some(int rank) {
  Peer& other = peer(rank);
  for (int64_t left = kFairBytes; left > 0 && other.socket.get() >= 0;) {
    if (!read_header(rank)) return;
    const Header& header = other.header;
    other.is_early = header.kind == Kind::kPiece && other.in.empty();
    if (other.is_early) return;
    const uint64_t wanted = header.kind == Kind::kPiece      ? other.in.front().bytes
                            : header.kind == Kind::kFarewell ? sizeof(Farewell)
                                                             : 0;
    if (header.bytes != wanted)
      return fail(rank, fmt::format("rank {} sends {} bytes where {} were to come: start all ranks with the same build "
                                    "and flags",
                                    rank, header.bytes, wanted));
    const uint64_t before = other.received;
    const bool is_whole = read_body(rank, static_cast<uint64_t>(left));
    left -= static_cast<int64_t>(other.received - before) + static_cast<int64_t>(sizeof(Header));
    if (!is_whole) return;
    other.received = 0;
    take_message(rank);
  }
}

void SocketCommunicator::take_message(int rank) {
  Peer& other = peer(rank);
  if (other.header.kind == Kind::kPiece) {
    std::multiset<int>& receives = other.in.front().exchange->receives_;
    receives.erase(receives.find(rank));
    other.in.pop_front();
    changed_.notify_all();
  } else if (other.header.kind == Kind::kFarewell && other.farewell.lost_rank >= 0) {
    const auto lost = static_cast<int>(other.farewell.lost_rank);
    const bool blames_another = lost != rank && lost != settings_.rank;
    fail(blames_another ? lost : rank, blames_another ? fmt::format("rank {} is lost, says rank {}", lost, rank)
                                                      : fmt::format("rank {} gave up", rank));
  } else if (other.header.kind == Kind::kFarewell) {
    other.num_exchanges = other.farewell.num_exchanges;
    if (!under_way_.empty()) fail_where_left(rank);
  }
}

void SocketCommunicator::closed(int rank) {
  peer(rank).socket.close();
  if (is_closing_) return;
  if (!peer(rank).num_exchanges) {
    if (!gone_) gone_ = {.rank = rank, .decide_at = Clock::now() + kSettle};
  } else if (!peer(rank).in.empty()) {
    fail(rank, fmt::format("rank {} has ended", rank));
  }
}

void SocketCommunicator::fail_where_left(int rank) {
  const std::optional<int64_t> theirs = peer(rank).num_exchanges;
  if (theirs && num_exchanges_ > *theirs) fail(rank, fmt::format("rank {} has ended", rank));
}

// Nothing can be said to this rank, or is believed of it, any more.
void SocketCommunicator::fail_tls(int rank, const std::exception& error) {
  peer(rank).socket.close();
  if (!is_closing_) fail(rank, fmt::format("rank {}: {}", rank, error.what()));
}

// From now on no tensor is touched: their owners may free them.
void SocketCommunicator::fail(int rank, std::string why) {
  if (!failure_.empty()) return;
  failure_ = std::move(why);
  lost_rank_ = rank;
  for (Peer& other : peers_) {
    const bool is_torn = !other.out.empty() && other.out.front().sent > 0;
    other.out.clear();
    other.in.clear();
    if (is_torn) other.socket.close();
  }
  changed_.notify_all();
  if (settings_.on_failure) settings_.on_failure();
}

void SocketCommunicator::abort() noexcept {
  const std::scoped_lock lock(mutex_);
  fail(settings_.rank, "aborted on this rank");
}

void SocketCommunicator::throw_lost(double waited_s) const {
  throw device::PeerLost(fmt::format("{}: exchange: {}; waited {:.1f} s", settings_.name, failure_, waited_s));
}

std::unique_ptr<device::Communicator::Exchange> SocketCommunicator::start_exchange(TensorLists to, TensorLists from) {
  auto exchange = std::make_unique<SocketExchange>(*this, std::move(to), std::move(from));
  const std::vector<Piece> received = pieces_of(*this, exchange->from_), sent = pieces_of(*this, exchange->to_);
  const std::scoped_lock lock(mutex_);
  ++num_exchanges_;
  for (int rank = 0; rank < size(); ++rank) fail_where_left(rank);
  exchange->is_over_ = !failure_.empty();
  if (exchange->is_over_) throw_lost(0);
  under_way_.insert(exchange.get());
  for (const Piece& piece : received) {
    exchange->receives_.insert(piece.rank);
    peer(piece.rank)
        .in.push_back({.data = piece.data, .bytes = static_cast<uint64_t>(piece.bytes), .exchange = exchange.get()});
  }
  for (const Piece& piece : sent) {
    exchange->sends_.insert(piece.rank);
    traffic_.sent_bytes += piece.bytes;
    peer(piece.rank)
        .out.push_back({.header = {.kind = Kind::kPiece, .bytes = static_cast<uint64_t>(piece.bytes)},
                        .data = piece.data,
                        .farewell = {},
                        .exchange = exchange.get()});
  }
  for (int rank = 0; rank < size(); ++rank) {
    if (peer(rank).socket.get() < 0) continue;
    write_some(rank);
    if (peer(rank).is_early) read_some(rank);
  }
  wake();  // the descriptors to poll have changed
  return exchange;
}

void SocketCommunicator::wait_for(SocketExchange& exchange) {
  const Clock::time_point start = Clock::now();
  base::RunningTime waited;
  std::unique_lock lock(mutex_);
  const auto has_come = [&] { return exchange.receives_.empty() && exchange.sends_.empty(); };
  while (!has_come() && failure_.empty()) {
    const double left = settings_.wait_s - waited.seconds();
    if (are_waits_limited_ && left <= 0.0) {
      const int missing = !exchange.receives_.empty() ? *exchange.receives_.begin() : *exchange.sends_.begin();
      fail(missing, fmt::format("rank {} did not answer within {:g} s", missing, settings_.wait_s));
      break;
    }
    changed_.wait_for(lock, std::chrono::duration<double>(are_waits_limited_ ? std::min(left, kMostBetweenLooks)
                                                                             : kMostBetweenLooks));
  }
  under_way_.erase(&exchange);
  exchange.to_.clear();
  exchange.from_.clear();
  if (!has_come()) throw_lost(base::seconds_since(start));
}

}  // namespace

std::unique_ptr<device::Communicator> make_socket_communicator(SocketRanks ranks) {
  if (ranks.connections.size() <= 1) return device::solo_communicator();
  return std::make_unique<SocketCommunicator>(std::move(ranks));
}

}  // namespace tandem::mesh
