#include "sampling/processes/connections.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <exception>
#include <iterator>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/bell.h"
#include "base/check.h"
#include "base/log.h"
#include "base/message_text.h"
#include "mesh/hosts.h"
#include "mesh/local_socket.h"

namespace tandem::sampling {

namespace {

constexpr double kFarewell = 2.0;   // seconds that a worker has to answer Stop
constexpr double kBeatEvery = 1.0;  // seconds
constexpr std::chrono::milliseconds kBetweenAccepts{200};

Connections::Settings with_shown_weights(Connections::Settings settings, const WeightFeed* weights) {
  if (weights == nullptr) return settings;
  settings.welcome.shown_trained = weights->words(/*is_base=*/false);
  settings.welcome.shown_base = weights->words(/*is_base=*/true);
  return settings;
}

// Clears the words by which memory is mapped: on another machine they mean nothing, or something else.
void forget_words(Welcome& welcome) {
  for (auto* const words : {&welcome.shown_trained, &welcome.shown_base}) std::fill(words->begin(), words->end(), "");
}

// Does `work` with one worker, which is gone if that fails.
template <typename Worker, typename Work>
void attempt(Worker& worker, const Work& work) {
  try {
    work();
  } catch (const EnvironmentError& error) {
    worker.state = decltype(worker.state)::kGone;
    worker.why_gone = error.what();
  }
}

}  // namespace

Connections::Connections(Settings settings, WeightFeed* weights)
    : settings_(with_shown_weights(std::move(settings), weights)),
      weights_(weights),
      listener_(settings_.address, settings_.door, settings_.silence_s),
      started_(settings_.launcher_descriptor),
      num_exceptions_(std::uncaught_exceptions()) {
  // Ranks that train see by their mesh that rank 0 runs, and need no beats.
  if (weights_ != nullptr) beats_ = std::jthread([this](const std::stop_token& end) { beat_until(end); });
}

Connections::~Connections() {
  beats_ = {};  // the thread has ended
  if (std::uncaught_exceptions() > num_exceptions_) return;
  accept_new();  // workers that have only just come
  for (auto& [id, worker] : workers_) {
    if (worker.is_rank) continue;
    try {
      worker.channel->send(to_bytes(Stop{}));
      // A socket that is closed with unread bytes in it loses the bytes that were sent last.
      for (const auto begin = base::Clock::now(); base::seconds_since(begin) < kFarewell;) {
        const std::optional<std::string> frame = worker.channel->receive(kFarewell);
        if (frame && std::holds_alternative<Leaving>(message_of(*frame))) break;
      }
    } catch (const EnvironmentError&) {  // it is gone already
    }
  }
}

void Connections::beat_until(const std::stop_token& end) {
  while (!end.stop_requested()) {
    std::this_thread::sleep_for(kBetweenAccepts);
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock) continue;  // whoever has the lock sends beats
    try {
      accept_new();
      beat();
    } catch (const EnvironmentError&) {  // poll() meets it too, and says it
    }
  }
}

void Connections::beat() {
  if (base::seconds_since(last_beat_) < kBeatEvery) return;
  last_beat_ = base::Clock::now();
  for (auto& [id, worker] : workers_) {
    pollfd polled = {worker.channel->descriptor(), POLLOUT, 0};
    if (worker.is_rank) continue;
    const bool takes_it = worker.state != State::kGone && ::poll(&polled, 1, 0) == 1 && polled.revents == POLLOUT;
    if (takes_it) attempt(worker, [&channel = worker.channel] { channel->send(to_bytes(Alive{})); });
  }
}

std::vector<groups::SamplerId> Connections::ready() const {
  const std::scoped_lock lock(mutex_);
  std::vector<groups::SamplerId> result;
  for (const auto& [id, worker] : workers_) {
    if (worker.state == State::kReady) result.push_back(id);
  }
  return result;
}

std::string Connections::how_to_join() const {
  if (port() == 0) return "--rollout-join";
  return fmt::format("--rollout-join, or --rollout-join-address {}:{} on another machine", settings_.door.address,
                     port());
}

std::optional<Failed> Connections::why_nobody_comes() {
  const std::scoped_lock lock(mutex_);
  if (!workers_.empty() || settings_.num_started == 0) return std::nullopt;
  const std::optional<bool> have_ended = started_.have_all_ended();
  if (have_ended.has_value() && !*have_ended) return std::nullopt;
  const bool are_seen_to_end = have_ended && settings_.are_all_here;
  if (failure_ && (are_seen_to_end || num_greeted_ >= settings_.num_started)) return failure_;
  if (!are_seen_to_end || has_one_joined_) return std::nullopt;
  constexpr int kUserCode = 2;
  const mesh::WorkerEnd end = started_.first_end().value_or(mesh::WorkerEnd{.how = "they have all ended"});
  return Failed{.why = fmt::format("no process that samples has joined the run, and none is left: {}; mend that and "
                                   "start the run again (others may join it with its flags and {})",
                                   end.how, how_to_join()),
                .is_users = end.code == kUserCode};
}

void Connections::wait_for_ranks(int64_t num_ranks, double timeout_s) {
  class NobodyWorksYet final : public Events {
    void joined(groups::SamplerId /*sampler*/) override {}
    void said(groups::SamplerId /*sampler*/, Message& /*message*/) override {
      TANDEM_ENV_CHECK(false, "it speaks before it is asked");
    }
    bool has_loans(groups::SamplerId /*sampler*/) const override { return false; }
    int64_t lost(groups::SamplerId /*sampler*/, bool /*has_left*/) override { return 0; }
  } events;
  const auto begin = base::Clock::now();
  while (std::ssize(ready()) < num_ranks) {
    TANDEM_ENV_CHECK(base::seconds_since(begin) < timeout_s,
                     fmt::format("{} of {} other ranks have connected to rank 0 within {:g} s "
                                 "(--distributed-timeout-minutes)",
                                 ready().size(), num_ranks, timeout_s));
    poll(0.1, events);
  }
}

void Connections::poll(double wait_s, Events& events, std::span<const int> news) {
  std::unique_lock lock(mutex_);
  beat();
  if (!take_messages(events)) {
    std::vector<int> descriptors(news.begin(), news.end());
    std::ranges::copy(listener_.descriptors(), std::back_inserter(descriptors));
    descriptors.push_back(channels_.descriptor());
    lock.unlock();
    base::wait_readable(descriptors, wait_s);
    lock.lock();
    accept_new();
    take_messages(events);
  }
  for (auto& [id, worker] : workers_) {
    if (worker.state != State::kReady || worker.is_rank) continue;
    if (!worker.is_copying && !events.has_loans(id)) continue;
    attempt(worker, [&] { check_heard(worker, worker.last_heard); });
  }
  remove_gone(events);
}

void Connections::accept_new() {
  while (std::unique_ptr<mesh::Channel> channel = listener_.accept()) {
    const groups::SamplerId id = next_id_++;
    channels_.add(channel->descriptor(), id);
    workers_[id] = {.channel = std::move(channel), .name = "a process that connects", .last_heard = base::Clock::now()};
  }
}

bool Connections::take_messages(Events& events) {
  bool has_come = false;
  const std::vector<int64_t> ready = channels_.ready();
  const std::unordered_set<int64_t> can_be_read(ready.begin(), ready.end());
  for (auto& [id, worker] : workers_) {
    if (!can_be_read.contains(id) && !worker.channel->may_have_more()) continue;
    attempt(worker, [&] {
      while (worker.state != State::kGone) {
        const std::optional<std::string> frame = worker.channel->receive(0.0);
        if (!frame) break;
        has_come = true;
        take_frame(id, worker, *frame, &events);
        if (!worker.channel) break;  // it was a worker's second connection
      }
    });
  }
  std::erase_if(workers_, [](const auto& entry) { return entry.second.channel == nullptr; });
  for (auto& [id, worker] : workers_) {
    if (are_weights_held_ || !can_join(worker)) continue;
    attempt(worker, [&, id = id] {
      if (let_join(id)) events.joined(id);
    });
  }
  return has_come;
}

void Connections::take_frame(groups::SamplerId id, Worker& worker, std::string_view frame, Events* events) {
  worker.last_heard = base::Clock::now();
  Message message = message_of(frame);
  if (const auto* const hello = std::get_if<Hello>(&message)) {
    greet(worker, *hello);
  } else if (const auto* const rank = std::get_if<RankHello>(&message)) {
    TANDEM_ENV_CHECK(worker.state == State::kGreeting, "it greets twice");
    TANDEM_ENV_CHECK(weights_ == nullptr, "it is a rank that trains, of a run whose ranks do not sample");
    worker.name = fmt::format("rank {}", rank->rank);
    worker.is_rank = true;
    worker.state = State::kReady;
  } else if (const auto* const line = std::get_if<WeightLine>(&message)) {
    attach_line(worker, line->name);
  } else if (const auto* const prepared = std::get_if<Prepared>(&message);
             prepared != nullptr && worker.state == State::kPreparing) {
    worker.maps_weights = prepared->maps_weights;
    worker.copies_ahead = prepared->maps_weights && prepared->copies_ahead;
    worker.state = State::kWaiting;
  } else if (const auto* const took = std::get_if<TookWeights>(&message)) {
    TANDEM_ENV_CHECK(worker.is_to_take == took->version, "it took other weights than it was given");
    worker.is_to_take.reset();
    worker.is_copying = false;
  } else if (const auto* const copied = std::get_if<CopiedWeights>(&message)) {
    TANDEM_ENV_CHECK(worker.is_copying && worker.is_to_take == copied->version,
                     "it copied other weights than it was shown");
    worker.is_copying = false;
  } else if (std::holds_alternative<ChainBroken>(message)) {
    worker.is_chain_broken = true;
  } else if (std::holds_alternative<Leaving>(message)) {
    worker.state = State::kGone;
    worker.has_left = true;
    worker.why_gone = "was asked to stop, and leaves";
  } else if (const auto* const failed = std::get_if<Failed>(&message)) {
    failure_ = *failed;
    worker.has_failed = true;
    worker.state = State::kGone;
    worker.why_gone = failed->why;
  } else if (!std::holds_alternative<Alive>(message)) {
    TANDEM_ENV_CHECK(worker.state == State::kReady, "it speaks before it is asked");
    if (events != nullptr) events->said(id, message);
  }
}

void Connections::attach_line(Worker& line, const std::string& name) {
  TANDEM_ENV_CHECK(line.state == State::kGreeting, "it greets twice");
  const auto owner = std::ranges::find_if(workers_, [&](const auto& entry) {
    return entry.second.state != State::kGone && !name.empty() && entry.second.door.name == name;
  });
  TANDEM_ENV_CHECK(owner != workers_.end(), "it is a connection for weights to a process that is not there");
  channels_.remove(line.channel->descriptor());
  owner->second.line = std::move(line.channel);
}

void Connections::greet(Worker& worker, const Hello& hello) {
  TANDEM_ENV_CHECK(worker.state == State::kGreeting, "it greets twice");
  TANDEM_ENV_CHECK(weights_ != nullptr, "it wants to join a run whose ranks sample themselves (--colocate)");
  const mesh::RankFacts facts = mesh::facts_of(hello.facts);
  const bool is_here = hello.machine == mesh::machine_id();
  worker.door = hello.door;
  worker.name = fmt::format("rollout worker {} (process {}{})", num_greeted_++, hello.process,
                            is_here ? "" : " on " + facts.host);
  std::string why = mesh::disagreement({settings_.facts, facts});
  if (why.empty() && hello.weight_hash != weights_->hash())
    why = "its model has other weights than the run's (names, shapes or dtype); give it the same --hf-checkpoint";
  if (why.empty()) {
    const std::string others = mesh::other_kernels(settings_.facts, facts, worker.name);
    if (!others.empty()) base::log_warning("{}", others);
    Welcome welcome = settings_.welcome;
    if (!is_here) forget_words(welcome);
    worker.channel->send(to_bytes(welcome));
    worker.state = State::kPreparing;
    return;
  }
  worker.channel->send(to_bytes(Refused{why}));
  if (!has_one_joined_) failure_ = Failed{.why = why, .is_users = true};
  worker.state = State::kGone;
  worker.why_gone = "is refused: " + why;
}

void Connections::check_heard(const Worker& worker, base::Clock::time_point since) const {
  TANDEM_ENV_CHECK(base::seconds_since(std::max(since, worker.last_heard)) <= settings_.silence_s,
                   fmt::format("has said nothing for {:g} s (--rollout-health-check-timeout)", settings_.silence_s));
}

bool Connections::can_join(const Worker& worker) {
  return worker.state == State::kWaiting && (worker.maps_weights || worker.line);
}

bool Connections::let_join(groups::SamplerId id) {
  Worker& worker = workers_.at(id);
  worker.state = State::kTaking;
  give_first_weights(id);
  if (worker.state != State::kTaking) return false;
  worker.state = State::kReady;
  worker.has_joined = has_one_joined_ = true;
  base::log_info("{} has joined", worker.name);
  return true;
}

void Connections::hold_weights() {
  const std::scoped_lock lock(mutex_);
  are_weights_held_ = true;
}

int64_t Connections::update_weights(const std::function<void()>& pause) {
  const int64_t num_before = num_sent_again_;
  std::vector<groups::SamplerId> ids;
  std::vector<WorkerChain> chains;
  weights_->update(
      [&] {
        show_ahead();
        chains = tell_chains(ready_workers([](const Worker& worker) { return !worker.maps_weights; }));
        send_pieces(chains, /*is_base=*/false);
        if (are_copying()) weights_->checksums(/*is_base=*/false);  // nobody waits for them in the pause then
        pause();
        const std::scoped_lock lock(mutex_);
        show_weights(ready_workers([](const Worker& worker) { return worker.maps_weights && !worker.is_to_take; }),
                     /*is_base=*/false);
        ids = ready_workers([](const Worker& worker) { return worker.maps_weights; });
      },
      [&] {
        const std::scoped_lock lock(mutex_);
        say_checksums(ids, /*is_base=*/false);
        give_in_chains(not_reached(chains), /*with_base=*/false);
        wait_until_taken(ids);
        are_weights_held_ = false;
        for (auto& [id, worker] : workers_) {
          if (can_join(worker)) attempt(worker, [&, id = id] { let_join(id); });
        }
      });
  return num_sent_again_ - num_before;
}

std::vector<groups::SamplerId> Connections::ready_workers(const std::function<bool(const Worker&)>& is_meant) const {
  const std::scoped_lock lock(mutex_);
  std::vector<groups::SamplerId> result = ready();
  std::erase_if(result, [&](groups::SamplerId id) { return !is_meant(workers_.at(id)); });
  return result;
}

void Connections::show_ahead() {
  const std::scoped_lock lock(mutex_);
  show_weights(ready_workers([](const Worker& worker) { return worker.copies_ahead; }), /*is_base=*/false,
               /*is_ahead=*/true);
}

bool Connections::are_copying() const {
  return !ready_workers([](const Worker& worker) { return worker.is_copying; }).empty();
}

void Connections::give_first_weights(groups::SamplerId id) {
  if (!workers_.at(id).maps_weights) return give_in_chains({id}, /*with_base=*/weights_->has_adapter());
  for (const bool is_base : {true, false}) {
    if (is_base && !weights_->has_adapter()) continue;
    show_weights({id}, is_base);
    say_checksums({id}, is_base);
  }
  wait_until_taken({id});
}

void Connections::show_weights(const std::vector<groups::SamplerId>& ids, bool is_base, bool is_ahead) {
  const uint64_t version = weights_->version(is_base);
  const std::string message = to_bytes(CopyWeights{.is_base = is_base, .is_ahead = is_ahead, .version = version});
  for (const groups::SamplerId id : ids) {
    Worker& worker = workers_.at(id);
    if (!is_base) worker.is_to_take = version;
    worker.is_copying = is_ahead;
    attempt(worker, [&] { worker.channel->send(message); });
  }
}

void Connections::say_checksums(const std::vector<groups::SamplerId>& ids, bool is_base) {
  if (ids.empty()) return;
  const std::string checksums = to_bytes(
      WeightChecksums{.is_base = is_base, .version = weights_->version(is_base), .sums = weights_->checksums(is_base)});
  for (const groups::SamplerId id : ids) {
    Worker& worker = workers_.at(id);
    if (worker.state != State::kGone) attempt(worker, [&] { worker.channel->send(checksums); });
  }
}

// Workers of one machine stand beside each other, those of this one first: each machine is entered once.
std::vector<Connections::WorkerChain> Connections::chains_of(std::vector<groups::SamplerId> ids) const {
  const std::string here = mesh::local_place();
  std::ranges::stable_sort(ids, {}, [&](groups::SamplerId id) {
    const std::string& place = workers_.at(id).door.place;
    return std::pair(place != here, place);
  });
  std::vector<WorkerChain> chains;
  for (const groups::SamplerId id : ids) {
    if (chains.empty() || workers_.at(id).starts_chain) chains.emplace_back();
    chains.back().push_back(id);
  }
  return chains;
}

void Connections::give_in_chains(std::vector<groups::SamplerId> ids, bool with_base) {
  // The first of each chain takes them or is gone, so this ends.
  while (!ids.empty()) {
    const std::vector<WorkerChain> chains = tell_chains(ids);
    if (with_base) send_pieces(chains, /*is_base=*/true);
    send_pieces(chains, /*is_base=*/false);
    ids = not_reached(chains);
  }
}

std::vector<groups::SamplerId> Connections::not_reached(const std::vector<WorkerChain>& chains) {
  std::vector<groups::SamplerId> ids;
  for (const WorkerChain& chain : chains) std::ranges::copy(chain, std::back_inserter(ids));
  std::erase_if(ids, [this](groups::SamplerId id) { return !workers_.contains(id); });
  wait_until_taken(ids);
  for (const WorkerChain& chain : chains) note_links(chain);
  std::erase_if(ids, [&](groups::SamplerId id) {
    const Worker& worker = workers_.at(id);
    return !worker.is_to_take || worker.state == State::kGone;
  });
  if (!ids.empty()) {
    num_sent_again_ += std::ssize(ids);
    base::log_warning("new weights did not reach {} through another one; they are sent again",
                      base::counted(std::ssize(ids), "rollout worker"));
  }
  return ids;
}

void Connections::note_links(const WorkerChain& chain) {
  for (size_t i = 1; i < chain.size(); ++i) {
    if (!workers_.contains(chain[i - 1]) || !workers_.contains(chain[i])) continue;
    const Worker& before = workers_.at(chain[i - 1]);
    Worker& worker = workers_.at(chain[i]);
    if (!worker.is_chain_broken || before.state == State::kGone || before.is_to_take) continue;
    worker.starts_chain = true;
    base::log_warning(
        "{} is not reached by {}, and gets weights from the run itself; let workers reach each other's "
        "ports",
        worker.name, before.name);
  }
}

std::vector<Connections::WorkerChain> Connections::tell_chains(const std::vector<groups::SamplerId>& ids) {
  const std::scoped_lock lock(mutex_);
  std::vector<WorkerChain> chains = chains_of(ids);
  for (const WorkerChain& chain : chains) tell_places(chain);
  return chains;
}

void Connections::tell_places(const WorkerChain& chain) {
  ++num_chains_;
  for (size_t i = 0; i < chain.size(); ++i) {
    Worker& worker = workers_.at(chain[i]);
    Chain place = {.number = num_chains_, .is_first = i == 0};
    if (i + 1 < chain.size()) {
      place.next = workers_.at(chain[i + 1]).door;
      if (place.next.place != worker.door.place) place.next.name.clear();  // it would not be found
    }
    worker.is_chain_broken = false;
    worker.is_to_take = weights_->version(/*is_base=*/false);
    attempt(worker, [&] { worker.channel->send(to_bytes(place)); });
  }
}

void Connections::wait_until_taken(const std::vector<groups::SamplerId>& ids) {
  const base::Clock::time_point given = base::Clock::now();
  for (const groups::SamplerId id : ids) wait_until_taken(id, given);
}

void Connections::wait_until_taken(groups::SamplerId id, base::Clock::time_point since) {
  Worker& worker = workers_.at(id);
  attempt(worker, [&] {
    while (worker.is_to_take && !worker.is_chain_broken && worker.state != State::kGone) {
      const double silent_s = base::seconds_since(std::max(since, worker.last_heard));
      beat();
      if (const auto frame = worker.channel->receive(std::clamp(settings_.silence_s - silent_s, 0.0, kBeatEvery))) {
        take_frame(id, worker, *frame, /*events=*/nullptr);
      } else {
        check_heard(worker, since);
      }
    }
  });
}

void Connections::send_pieces(const std::vector<WorkerChain>& chains, bool is_base) {
  std::map<groups::SamplerId, std::shared_ptr<mesh::Channel>> lines;
  {
    const std::scoped_lock lock(mutex_);
    for (const WorkerChain& chain : chains) {
      if (const auto first = workers_.find(chain.front()); first != workers_.end())
        lines[first->first] = first->second.line;
    }
  }
  if (lines.empty()) return;
  weights_->send(is_base, [&](const Weights& piece, std::span<const std::byte> bytes) {
    {
      const std::scoped_lock lock(mutex_);
      beat();
    }
    std::erase_if(lines, [&](const auto& entry) { return !send_piece(*entry.second, entry.first, piece, bytes); });
  });
}

// Returns false if the worker cannot be reached, and is gone.
bool Connections::send_piece(mesh::Channel& line, groups::SamplerId id, const Weights& piece,
                             std::span<const std::byte> bytes) {
  try {
    line.send(to_bytes(piece));
    line.send_bytes(bytes);
    return true;
  } catch (const EnvironmentError& error) {
    const std::scoped_lock lock(mutex_);
    const auto found = workers_.find(id);
    if (found != workers_.end() && found->second.state != State::kGone) {
      found->second.state = State::kGone;
      found->second.why_gone = error.what();
    }
    return false;
  }
}

void Connections::send(groups::SamplerId id, const Message& message) {
  const std::scoped_lock lock(mutex_);
  Worker& worker = workers_.at(id);
  if (worker.state != State::kReady) return;
  attempt(worker, [&] { worker.channel->send(to_bytes(message)); });
}

void Connections::hear_last_words(groups::SamplerId id, Worker& worker) {
  try {
    while (const std::optional<std::string> frame = worker.channel->receive(0.0)) {
      const Message message = message_of(*frame);
      const bool is_last = std::holds_alternative<Leaving>(message) || std::holds_alternative<Failed>(message);
      if (is_last) return take_frame(id, worker, *frame, /*events=*/nullptr);
    }
  } catch (const EnvironmentError&) {  // it left no last words
  }
}

void Connections::remove_gone(Events& events) {
  for (auto it = workers_.begin(); it != workers_.end();) {
    auto& [id, worker] = *it;
    if (worker.state != State::kGone) {
      ++it;
      continue;
    }
    TANDEM_ENV_CHECK(!worker.is_rank, fmt::format("{}, which samples too, is gone: {}", worker.name, worker.why_gone));
    if (!worker.has_left && !worker.has_failed) hear_last_words(id, worker);
    std::string line = worker.name + ": " + worker.why_gone;
    const int64_t num_loans = worker.has_joined ? events.lost(id, worker.has_left) : 0;
    if (num_loans > 0) line += fmt::format("; others get the {} that it had", base::counted(num_loans, "loan"));
    if (worker.has_left) {
      base::log_info("{}", line);
    } else {
      base::log_warning("{}", line);
    }
    if (worker.has_joined && !worker.has_failed) failure_.reset();
    it = workers_.erase(it);
  }
}

}  // namespace tandem::sampling
