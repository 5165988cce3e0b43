#include "mesh/meeting.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/sha256.h"
#include "mesh/sealed_store.h"

namespace tandem::mesh {

namespace {

using base::Clock;
using std::chrono::milliseconds;

// Rank 0 gives up first, and reports the reason to all; the others wait a little longer for its message.
constexpr milliseconds kLongerThanRank0{3000};
constexpr milliseconds kFarewell{2000};  // time that rank 0 stays for others to read why all end
constexpr milliseconds kFirstPause{2}, kLastPause{100};

const char* const kDigest = "digest";

std::string key_of(int rank) { return fmt::format("rank/{}", rank); }
std::string farewell_of(int rank) { return fmt::format("left/{}", rank); }

std::string duration(double seconds) {
  return seconds < 120.0 ? fmt::format("{:g} s", seconds) : fmt::format("{:g} minutes", seconds / 60.0);
}

// Rank 0 answers all ranks with it: they are alike, or it says why all of them end.
struct Digest {
  std::string random = "";  // random digits of all ranks, one after the other
  std::string user_error = "", environment_error = "";

  bool is_error() const { return !user_error.empty() || !environment_error.empty(); }
  std::string text() const {
    return base::Json({{"random", random}, {"user_error", user_error}, {"environment_error", environment_error}})
        .dump(-1, ' ', /*ensure_ascii=*/false, base::Json::error_handler_t::replace);
  }
  static Digest of(const std::string& text) {
    try {
      const base::Json json = base::Json::parse(text);
      return {.random = json.at("random").get<std::string>(),
              .user_error = json.at("user_error").get<std::string>(),
              .environment_error = json.at("environment_error").get<std::string>()};
    } catch (const base::Json::exception&) {
      throw EnvironmentError("rank 0 does not say how the ranks were started; give all hosts the same program");
    }
  }
};

class Meeting {
 public:
  Meeting(c10d::Store& store, const RankFacts& facts, const MeetingSettings& settings)
      : store_(store), facts_(facts), settings_(settings) {}

  std::string agree() {
    store_.set(key_of(settings_.rank), text_of(facts_));
    const Digest digest = settings_.rank == 0 ? answer_all() : read_answer();
    if (digest.is_error()) {
      leave(settings_.size);
      if (!digest.user_error.empty()) throw UserError(digest.user_error);
      throw EnvironmentError(digest.environment_error);
    }
    return base::sha256(digest.random);
  }

 private:
  Clock::time_point give_up_at() const {
    const auto patience = milliseconds(static_cast<int64_t>(settings_.timeout_s * 1000.0));
    return begin_ + patience + (settings_.rank == 0 ? milliseconds(0) : kLongerThanRank0);
  }

  Digest answer_all() {
    wait_for_all();
    Digest digest;
    try {
      std::vector<RankFacts> ranks;
      for (int rank = 0; rank < settings_.size; ++rank) ranks.push_back(facts_of(read(key_of(rank), rank)));
      digest.user_error = disagreement(ranks);
      for (const RankFacts& facts : ranks) {
        TANDEM_ENV_CHECK(facts.random.size() == facts_.random.size(), "a rank's random digits are no digits of ours");
        digest.random += facts.random;
      }
    } catch (const ForeignValue& error) {  // another secret ends every rank, and each of them must read it
      digest.user_error = error.what();
    } catch (const UserError& error) {
      digest.user_error = error.what();
    } catch (const EnvironmentError& error) {  // and so does a forged message
      digest.environment_error = error.what();
    }
    store_.set(kDigest, digest.text());
    return digest;
  }

  // Returns what `rank` wrote there. Throws UserError if it was given a secret and this one was not.
  std::string read(const std::string& key, int rank) {
    std::string text = store_.get_to_str(key);
    TANDEM_USER_CHECK(settings_.has_secret || !looks_sealed(text),
                      fmt::format("rank {} was started with TANDEM_SECRET_FILE, rank {} without; set it for all ranks",
                                  rank, settings_.rank));
    return text;
  }

  Digest read_answer() {
    const auto left = std::chrono::ceil<milliseconds>(give_up_at() - Clock::now());
    try {
      store_.wait({kDigest}, std::max(left, milliseconds(1)));
    } catch (const std::exception&) {  // c10d's tells of sockets
      if (Clock::now() < give_up_at()) throw;
      give_up_waiting();
    }
    try {
      Digest digest = Digest::of(read(kDigest, 0));
      TANDEM_ENV_CHECK(digest.is_error() || has_own_digits(digest.random),
                       fmt::format("what rank 0 says to rank {} of {} is for the ranks of another launch; wait until "
                                   "that launch has ended, or give this one another MASTER_PORT",
                                   settings_.rank, settings_.size));
      return digest;
    } catch (const UserError&) {
      leave(0);  // last: rank 0 then ends, and the store with it
      throw;
    } catch (const EnvironmentError&) {
      const std::optional<std::string> fault = fault_of_rank_0();
      leave(0);
      if (fault) throw UserError(*fault);
      throw;
    }
  }

  // Returns the line that names rank 0 where it has another secret.
  std::optional<std::string> fault_of_rank_0() {
    if (!settings_.has_secret) return std::nullopt;
    try {
      store_.get(key_of(0));
    } catch (const ForeignValue& error) {
      return error.what();
    }
    return std::nullopt;
  }

  // Returns whether the answer is for this launch's ranks: this one's digits stand in their place.
  bool has_own_digits(const std::string& random) const {
    const size_t digits = facts_.random.size();
    return random.size() == digits * static_cast<size_t>(settings_.size) &&
           random.compare(digits * static_cast<size_t>(settings_.rank), digits, facts_.random) == 0;
  }

  void wait_for_all() {
    milliseconds pause = kFirstPause;
    for (int next = 0; next < settings_.size;) {
      if (store_.check({key_of(next)})) {
        ++next;
        continue;
      }
      if (Clock::now() >= give_up_at()) give_up_waiting();
      std::this_thread::sleep_for(pause);
      pause = std::min(pause * 2, kLastPause);
    }
  }

  // The others are told, too.
  [[noreturn]] void give_up_waiting() {
    std::vector<int> missing;
    for (int rank = 0; rank < settings_.size; ++rank) {
      if (!store_.check({key_of(rank)})) missing.push_back(rank);
    }
    const int here = settings_.size - static_cast<int>(missing.size());
    const std::string why = fmt::format(
        "rank{} {} of {}{} {} not joined within {} (--distributed-timeout-minutes); look whether they were started, "
        "and {}",
        missing.size() == 1 ? "" : "s", fmt::join(missing, ", "), settings_.size,
        settings_.party.empty() ? "" : " of " + settings_.party, missing.size() == 1 ? "has" : "have",
        duration(settings_.timeout_s), settings_.remedy);
    store_.set(kDigest, Digest{.environment_error = why}.text());
    leave(here);
    throw EnvironmentError(why);
  }

  // The store goes with rank 0, which therefore waits until so many ranks have read everything.
  void leave(int num_ranks) {
    store_.set(farewell_of(settings_.rank), std::string("left"));
    if (settings_.rank != 0) return;
    const auto give_up = Clock::now() + kFarewell;
    std::vector<int> here(static_cast<size_t>(settings_.size));
    for (int rank = 0; rank < settings_.size; ++rank) here[static_cast<size_t>(rank)] = rank;
    while (true) {
      std::erase_if(here, [&](int rank) { return store_.check({farewell_of(rank)}); });
      if (settings_.size - std::ssize(here) >= num_ranks || Clock::now() >= give_up) return;
      std::this_thread::sleep_for(kFirstPause);
    }
  }

  c10d::Store& store_;
  const RankFacts& facts_;
  const MeetingSettings& settings_;
  const Clock::time_point begin_ = Clock::now();
};

}  // namespace

std::string meet(c10d::Store& store, const RankFacts& facts, const MeetingSettings& settings) {
  return Meeting(store, facts, settings).agree();
}

}  // namespace tandem::mesh
