#include "tests/device/ranks/thread_communicator.h"

#include <fmt/format.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "base/check.h"
#include "device/exchange_pieces.h"

namespace tandem::device {
namespace {

constexpr std::chrono::seconds kLongestWait{60};

// One rank's side of an exchange with one other rank.
struct Side {
  std::vector<Piece> to, from;
};

// A rank's exchange: its sides with each other rank, until both have begun it.
struct Begun {
  std::vector<bool> is_done;  // [rank]
  bool fits = true;           // whether the lists of both sides fit
};

// The state that all ranks share. Of two ranks, the one that begins an exchange later copies for both.
struct Hub {
  explicit Hub(int size) : gone_for(static_cast<size_t>(size), -1) {}

  // The caller has locked mutex.
  void lose(int rank, int for_rank) {
    int& known = gone_for[static_cast<size_t>(rank)];
    if (known < 0) known = for_rank;
    changed.notify_all();
  }

  std::mutex mutex;
  std::condition_variable changed;
  std::vector<int> gone_for;  // [rank]: -1 while the rank is there, else the rank whose fault it was
  std::map<std::array<int64_t, 3>, Side> posted;  // (exchange, rank, other rank): until the other begins it
  std::map<std::array<int64_t, 2>, Begun> begun;  // (exchange, rank): until the rank has waited for it
};

[[noreturn]] void throw_lost(int64_t exchange, int rank, int lost) {
  if (lost == rank) throw PeerLost(fmt::format("exchange {}: aborted on this rank", exchange));
  throw PeerLost(fmt::format("exchange {}: rank {} is gone", exchange, lost));
}

// Returns whether the lists fit.
bool copy(const std::vector<Piece>& to, const std::vector<Piece>& from) {
  if (to.size() != from.size()) return false;
  for (size_t i = 0; i < to.size(); ++i) {
    if (to[i].bytes != from[i].bytes) return false;
    std::memcpy(from[i].data, to[i].data, static_cast<size_t>(to[i].bytes));
  }
  return true;
}

std::vector<Piece> pieces_with(int rank, const std::vector<Piece>& pieces) {
  std::vector<Piece> result;
  for (const Piece& piece : pieces) {
    if (piece.rank == rank) result.push_back(piece);
  }
  return result;
}

class ThreadExchange final : public Communicator::Exchange {
 public:
  ThreadExchange(std::shared_ptr<Hub> hub, int64_t number, int rank, TensorLists to, TensorLists from)
      : hub_(std::move(hub)), number_(number), rank_(rank), to_(std::move(to)), from_(std::move(from)) {}
  ~ThreadExchange() override {
    try {
      wait();
    } catch (const std::exception&) {  // wait() reports it
    }
  }

  void wait() override {
    std::unique_lock lock(hub_->mutex);
    const auto place = hub_->begun.find({number_, rank_});
    if (place == hub_->begun.end()) return;  // it was waited for already
    const Begun& begun = place->second;
    int lost = -1;
    const auto is_over = [&] {
      lost = find_lost(begun);
      return lost >= 0 || !find_pending(begun);
    };
    const bool in_time = hub_->changed.wait_for(lock, kLongestWait, is_over);
    const bool fits = begun.fits;
    hub_->begun.erase(place);
    for (int64_t other = 0; other < std::ssize(hub_->gone_for); ++other) hub_->posted.erase({number_, rank_, other});
    if (!in_time) throw PeerLost(fmt::format("exchange {}: no answer for {} s", number_, kLongestWait.count()));
    if (lost >= 0) {
      hub_->lose(rank_, lost);
      throw_lost(number_, rank_, lost);
    }
    TANDEM_CHECK(fits, "an exchange's lists do not fit those of another rank");
  }

 private:
  bool is_done(const Begun& begun, int64_t other) const { return begun.is_done[static_cast<size_t>(other)]; }

  bool find_pending(const Begun& begun) const {
    for (int64_t other = 0; other < std::ssize(hub_->gone_for); ++other) {
      if (other != rank_ && !is_done(begun, other)) return true;
    }
    return false;
  }

  // Returns the rank for whose sake this cannot end, or -1.
  int find_lost(const Begun& begun) const {
    for (int64_t other = 0; other < std::ssize(hub_->gone_for); ++other) {
      const bool matters = other == rank_ ? find_pending(begun) : !is_done(begun, other);
      if (matters && hub_->gone_for[static_cast<size_t>(other)] >= 0) return hub_->gone_for[static_cast<size_t>(other)];
    }
    return -1;
  }

  std::shared_ptr<Hub> hub_;
  int64_t number_;
  int rank_;
  TensorLists to_, from_;  // tensors held until wait()
};

class ThreadCommunicator final : public Communicator {
 public:
  ThreadCommunicator(std::shared_ptr<Hub> hub, int rank) : hub_(std::move(hub)), rank_(rank) {}
  ~ThreadCommunicator() override { abort(); }

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(std::ssize(hub_->gone_for)); }

  std::unique_ptr<Exchange> start_exchange(TensorLists to, TensorLists from) override {
    const std::vector<Piece> sent = pieces_of(*this, to), received = pieces_of(*this, from);
    const int64_t number = next_exchange_++;
    const std::scoped_lock lock(hub_->mutex);
    if (hub_->gone_for[static_cast<size_t>(rank_)] >= 0)
      throw_lost(number, rank_, hub_->gone_for[static_cast<size_t>(rank_)]);
    Begun& begun = hub_->begun[{number, rank_}];
    begun.is_done.assign(static_cast<size_t>(size()), false);
    for (int other = 0; other < size(); ++other) {
      if (other != rank_) meet(number, other, {pieces_with(other, sent), pieces_with(other, received)}, begun);
    }
    hub_->changed.notify_all();
    return std::make_unique<ThreadExchange>(hub_, number, rank_, std::move(to), std::move(from));
  }

  void abort() noexcept override {
    const std::scoped_lock lock(hub_->mutex);
    hub_->lose(rank_, rank_);
  }

 private:
  void meet(int64_t number, int other, Side mine, Begun& begun) {
    const auto place = hub_->posted.find({number, other, rank_});
    if (place == hub_->posted.end()) {
      hub_->posted[{number, rank_, other}] = std::move(mine);
      return;
    }
    const Side& theirs = place->second;
    const bool fits = copy(mine.to, theirs.from) & copy(theirs.to, mine.from);  // both run in any case
    Begun& theirs_begun = hub_->begun.at({number, other});
    begun.is_done[static_cast<size_t>(other)] = theirs_begun.is_done[static_cast<size_t>(rank_)] = true;
    begun.fits = begun.fits && fits;
    theirs_begun.fits = theirs_begun.fits && fits;
    hub_->posted.erase(place);
  }

  std::shared_ptr<Hub> hub_;
  int rank_;
  int64_t next_exchange_ = 0;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> thread_communicators(int size) {
  const auto hub = std::make_shared<Hub>(size);
  std::vector<std::unique_ptr<Communicator>> result;
  for (int rank = 0; rank < size; ++rank) result.push_back(std::make_unique<ThreadCommunicator>(hub, rank));
  return result;
}

}  // namespace tandem::device
