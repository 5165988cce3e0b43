#include "device/cpu/gloo_communicator.h"

#include <ATen/ops/from_blob.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <limits>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <utility>

#include "device/cpu/gloo_group.h"
#include "device/exchange_pieces.h"
#include "device/waits_for_samples.h"

namespace tandem::device {
namespace {

using Clock = std::chrono::steady_clock;
using Work = c10::intrusive_ptr<c10d::Work>;
using std::chrono::milliseconds;

constexpr int kFarewellTag = std::numeric_limits<int>::max();
constexpr milliseconds kForever = std::chrono::hours(24 * 365);
constexpr milliseconds kFarewellTimeout{2000};

// A rank's last message to another, which tells a rank that ended from one that died.
struct Farewell {
  int64_t lost_rank = -1;      // rank whose loss ended this one early; -1: none
  int64_t num_exchanges = -1;  // number of exchanges that it had begun
};

milliseconds milliseconds_of(double seconds) { return milliseconds(static_cast<int64_t>(seconds * 1000)); }

at::Tensor view_of(std::byte* data, int64_t bytes) { return at::from_blob(data, {bytes}, at::kByte); }

class GlooCommunicator;

class GlooExchange final : public Communicator::Exchange {
 public:
  GlooExchange(GlooCommunicator& ranks, int64_t number, TensorLists to, TensorLists from)
      : ranks_(ranks), number_(number), to_(std::move(to)), from_(std::move(from)) {}
  ~GlooExchange() override;
  void wait() override;

 private:
  friend class GlooCommunicator;
  struct Moving {
    int rank;
    Work work;
  };

  GlooCommunicator& ranks_;
  int64_t number_;
  bool is_over_ = false;
  TensorLists to_, from_;       // held until wait()
  std::vector<Moving> moving_;  // pending transfers, receives first
};

class GlooCommunicator final : public Communicator, public LimitedWaits {
 public:
  GlooCommunicator(const c10::intrusive_ptr<c10d::Store>& store, std::string name, const GlooSettings& settings);
  ~GlooCommunicator() override;

  int rank() const override { return settings_.rank; }
  int size() const override { return settings_.size; }
  std::unique_ptr<Exchange> start_exchange(TensorLists to, TensorLists from) override;
  // Gloo cannot tell a process that is frozen from one that takes long: it waits for both.
  void limit_waits(bool are_limited) override { are_waits_limited_ = are_limited; }
  void abort() noexcept override;
  Traffic traffic() override { return traffic_; }

 private:
  friend class GlooExchange;

  // Another rank. A thread waits for its farewell from the start, so that its death is noticed whatever this rank is
  // waiting for.
  struct Peer {
    Farewell farewell;
    Work farewell_work;
    std::thread watch;
    int sent = 0, received = 0;            // numbers of pieces, for their tags
    std::optional<int64_t> num_exchanges;  // its number of exchanges, once it has left
  };

  Work send(int rank, int tag, at::Tensor bytes);
  Work receive(int rank, int tag, at::Tensor bytes);
  void watch(int rank);
  void watch_deadline();
  void say_farewell();

  void post(GlooExchange& exchange, std::unique_lock<std::mutex>& lock);
  void wait_for(GlooExchange& exchange);
  void begin_wait(int rank, Clock::time_point deadline);
  // These are called with mutex_ locked.
  void fail(int rank, std::string why);
  void fail_with_reason(std::unique_lock<std::mutex>& lock, int rank);
  void fail_where_left(int rank);
  [[noreturn]] void throw_lost(double waited_s) const;

  const std::string name_;
  const GlooSettings settings_;
  Traffic traffic_;
  const c10::intrusive_ptr<c10d::Backend> group_;
  std::vector<Peer> peers_;  // by rank
  std::mutex mutex_;
  std::condition_variable failed_;
  std::string failure_;  // first failure; empty: none
  int64_t lost_rank_ = -1;
  bool is_closing_ = false;
  int64_t num_exchanges_ = 0;
  bool are_waits_limited_ = true;  // whether waits have a timeout; for the thread that waits
  std::set<GlooExchange*> under_way_;
  // The deadline of the wait in progress. Gloo's own timeouts are not used: they close all connections, farewells or
  // not.
  std::optional<Clock::time_point> deadline_;
  int waiting_for_ = -1;  // rank that is waited for; written by the waiting thread alone
  std::thread clock_;
  bool is_clock_idle_ = false;
  std::condition_variable deadline_changed_;
};

GlooExchange::~GlooExchange() {
  try {
    wait();
  } catch (const std::exception&) {  // a caller who needs the error calls wait()
  }
}

void GlooExchange::wait() {
  if (std::exchange(is_over_, true)) return;
  const Clock::time_point begin = Clock::now();
  ranks_.wait_for(*this);
  ranks_.traffic_.wait_s += std::chrono::duration<double>(Clock::now() - begin).count();
}

GlooCommunicator::GlooCommunicator(const c10::intrusive_ptr<c10d::Store>& store, std::string name,
                                   const GlooSettings& settings)
    : name_(std::move(name)),
      settings_(settings),
      group_(connect_gloo(store, name_, settings)),
      peers_(static_cast<size_t>(settings.size)) {
  for (int rank = 0; rank < size(); ++rank) {
    if (rank == settings_.rank) continue;
    Peer& peer = peers_[static_cast<size_t>(rank)];
    auto* const bytes = reinterpret_cast<std::byte*>(&peer.farewell);
    peer.farewell_work = receive(rank, kFarewellTag, view_of(bytes, sizeof(Farewell)));
  }
  for (int rank = 0; rank < size(); ++rank) {
    if (rank != settings_.rank) peers_[static_cast<size_t>(rank)].watch = std::thread([this, rank] { watch(rank); });
  }
  clock_ = std::thread([this] { watch_deadline(); });
}

GlooCommunicator::~GlooCommunicator() {
  {
    const std::scoped_lock lock(mutex_);
    is_closing_ = true;
    deadline_changed_.notify_all();
  }
  clock_.join();
  say_farewell();
  for (Peer& peer : peers_) {
    if (!peer.watch.joinable()) continue;
    peer.farewell_work->abort();
    peer.watch.join();
  }
}

void GlooCommunicator::say_farewell() {
  Farewell farewell{.lost_rank = lost_rank_, .num_exchanges = num_exchanges_};
  std::vector<Work> words;
  for (int rank = 0; rank < size(); ++rank) {
    if (rank == settings_.rank || rank == lost_rank_) continue;
    try {
      words.push_back(send(rank, kFarewellTag, view_of(reinterpret_cast<std::byte*>(&farewell), sizeof farewell)));
    } catch (const std::exception&) {  // the rank is gone already
    }
  }
  for (const Work& word : words) {
    try {
      word->wait(kFarewellTimeout);
    } catch (const std::exception&) {
    }
  }
}

Work GlooCommunicator::send(int rank, int tag, at::Tensor bytes) {
  std::vector<at::Tensor> tensors = {std::move(bytes)};
  return group_->send(tensors, rank, tag);
}

Work GlooCommunicator::receive(int rank, int tag, at::Tensor bytes) {
  std::vector<at::Tensor> tensors = {std::move(bytes)};
  return group_->recv(tensors, rank, tag);
}

void GlooCommunicator::watch(int rank) {
  Peer& peer = peers_[static_cast<size_t>(rank)];
  bool has_spoken = false;
  try {
    has_spoken = peer.farewell_work->wait(kForever);
  } catch (const std::exception&) {  // its connection is closed
  }
  const std::scoped_lock lock(mutex_);
  if (is_closing_) return;
  if (!has_spoken) {
    fail(rank, fmt::format("rank {} is gone", rank));
  } else if (peer.farewell.lost_rank >= 0) {
    const auto lost = static_cast<int>(peer.farewell.lost_rank);
    const bool blames_another = lost != rank && lost != settings_.rank;
    fail(blames_another ? lost : rank, blames_another ? fmt::format("rank {} is lost, says rank {}", lost, rank)
                                                      : fmt::format("rank {} gave up", rank));
  } else {
    peer.num_exchanges = peer.farewell.num_exchanges;
    if (!under_way_.empty()) fail_where_left(rank);
  }
}

void GlooCommunicator::watch_deadline() {
  std::unique_lock lock(mutex_);
  while (!is_closing_) {
    is_clock_idle_ = !deadline_;
    if (!deadline_) {
      deadline_changed_.wait(lock);
    } else if (Clock::now() < *deadline_) {
      deadline_changed_.wait_until(lock, Clock::time_point(*deadline_));
    } else {
      deadline_.reset();
      fail(waiting_for_, fmt::format("rank {} did not answer within {} s", waiting_for_, settings_.wait_s));
    }
  }
}

void GlooCommunicator::fail_where_left(int rank) {
  const std::optional<int64_t> theirs = peers_[static_cast<size_t>(rank)].num_exchanges;
  if (theirs && num_exchanges_ > *theirs) fail(rank, fmt::format("rank {} has ended", rank));
}

void GlooCommunicator::fail(int rank, std::string why) {
  if (!failure_.empty()) return;
  failure_ = std::move(why);
  lost_rank_ = rank;
  for (GlooExchange* const exchange : under_way_) {
    for (const auto& moving : exchange->moving_) moving.work->abort();
  }
  failed_.notify_all();
  if (settings_.on_failure) settings_.on_failure();
}

// A connection to `rank` is closed. The thread that watches it knows whose fault that was.
void GlooCommunicator::fail_with_reason(std::unique_lock<std::mutex>& lock, int rank) {
  failed_.wait_for(lock, std::chrono::seconds(1), [this] { return !failure_.empty(); });
  fail(rank, fmt::format("rank {} is gone", rank));
}

void GlooCommunicator::abort() noexcept {
  const std::scoped_lock lock(mutex_);
  fail(settings_.rank, "aborted on this rank");
}

void GlooCommunicator::throw_lost(double waited_s) const {
  throw PeerLost(fmt::format("{}: exchange: {}; waited {:.1f} s", name_, failure_, waited_s));
}

std::unique_ptr<Communicator::Exchange> GlooCommunicator::start_exchange(TensorLists to, TensorLists from) {
  auto exchange = std::make_unique<GlooExchange>(*this, num_exchanges_, std::move(to), std::move(from));
  std::unique_lock lock(mutex_);
  ++num_exchanges_;
  for (int rank = 0; rank < size(); ++rank) fail_where_left(rank);
  exchange->is_over_ = !failure_.empty();
  if (exchange->is_over_) throw_lost(0);
  post(*exchange, lock);
  for (const Piece& piece : pieces_of(*this, exchange->to_)) traffic_.sent_bytes += piece.bytes;
  under_way_.insert(exchange.get());
  return exchange;
}

void GlooCommunicator::post(GlooExchange& exchange, std::unique_lock<std::mutex>& lock) {
  const auto next = [](int& count) { return std::exchange(count, (count + 1) % kFarewellTag); };
  exchange.is_over_ = true;  // the exchange is over even if this throws
  for (const bool is_receive : {true, false}) {
    for (const Piece& piece : pieces_of(*this, is_receive ? exchange.from_ : exchange.to_)) {
      Peer& peer = peers_[static_cast<size_t>(piece.rank)];
      const at::Tensor bytes = view_of(piece.data, piece.bytes);
      try {
        exchange.moving_.push_back({piece.rank, is_receive ? receive(piece.rank, next(peer.received), bytes)
                                                           : send(piece.rank, next(peer.sent), bytes)});
      } catch (const std::exception&) {
        fail_with_reason(lock, piece.rank);
        throw_lost(0);
      }
    }
  }
  exchange.is_over_ = false;
}

void GlooCommunicator::begin_wait(int rank, Clock::time_point deadline) {
  const std::scoped_lock lock(mutex_);
  waiting_for_ = rank;
  deadline_ = deadline;
  if (is_clock_idle_) deadline_changed_.notify_all();
}

void GlooCommunicator::wait_for(GlooExchange& exchange) {
  const Clock::time_point start = Clock::now(),
                          deadline = start + (are_waits_limited_ ? milliseconds_of(settings_.wait_s) : kForever);
  bool has_come = true;
  try {
    for (const auto& moving : exchange.moving_) {
      if (moving.rank != waiting_for_) begin_wait(moving.rank, deadline);
      has_come = moving.work->wait(kForever);
      if (!has_come) break;
    }
  } catch (const std::exception&) {
    has_come = false;
  }
  std::unique_lock lock(mutex_);
  under_way_.erase(&exchange);
  if (!has_come) fail_with_reason(lock, waiting_for_);
  deadline_.reset();
  waiting_for_ = -1;
  exchange.moving_.clear();
  exchange.to_.clear();
  exchange.from_.clear();
  if (!has_come) throw_lost(std::chrono::duration<double>(Clock::now() - start).count());
}

}  // namespace

std::unique_ptr<Communicator> make_gloo_communicator(c10::intrusive_ptr<c10d::Store> store, const std::string& name,
                                                     const GlooSettings& settings) {
  if (settings.size == 1) return solo_communicator();
  return std::make_unique<GlooCommunicator>(store, name, settings);
}

}  // namespace tandem::device
