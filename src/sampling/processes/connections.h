// The processes that sample for rank 0, as it sees them: rollout workers, which join, get weights, are given work and
// are missed when they die, hang or leave; and the other ranks that train, which are there from the start. The calls
// come from one thread. Another thread, of this object, tells rollout workers every second that this process runs, also
// while it trains, so that a frozen rank 0 is missed. No torch.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/ready_set.h"
#include "mesh/agreement.h"
#include "mesh/channel.h"
#include "mesh/channel_listener.h"
#include "mesh/launch/launcher_link.h"
#include "sampling/processes/messages.h"
#include "sampling/weight_feed.h"

namespace tandem::sampling {

class Connections {
 public:
  struct Settings {
    std::string address;          // the name of the local socket at which rank 0 listens
    mesh::NetworkDoor door = {};  // for processes of other machines
    mesh::RankFacts facts = {};   // facts with which a worker's have to agree
    Welcome welcome = {};
    double silence_s = 60.0;                      // the longest silence of a worker that has loans
    std::optional<int> launcher_descriptor = {};  // descriptor of the launcher, from mesh::LaunchVariables
    int64_t num_started = 0;                      // workers that were started with the run; 0: all of them join it
    bool are_all_here = true;                     // they run on this machine, whose launcher sees them end
  };
  // Listens. `weights` is borrowed, and null if no rollout worker may join. Throws EnvironmentError if another process
  // listens for this run.
  Connections(Settings settings, WeightFeed* weights);
  // Tells workers that the run has ended. If it ends by an error, they see that it is gone.
  ~Connections();
  Connections(const Connections&) = delete;
  Connections& operator=(const Connections&) = delete;

  // Receives what happens to samplers. Whoever gives them work implements it.
  class Events {
   public:
    virtual ~Events() = default;
    virtual void joined(groups::SamplerId sampler) = 0;  // called when a worker has the newest weights
    virtual void said(groups::SamplerId sampler, Message& message) = 0;
    virtual bool has_loans(groups::SamplerId sampler) const = 0;
    // Called when a sampler is gone. Returns how many of its loans other samplers get.
    virtual int64_t lost(groups::SamplerId sampler, bool has_left) = 0;
  };
  // Waits until that many other ranks are there. Throws EnvironmentError if they are not within `timeout_s`.
  void wait_for_ranks(int64_t num_ranks, double timeout_s);
  // Waits at most `wait_s` for something to happen, or until one of the descriptors `news` is readable, and tells
  // `events` of what has happened.
  void poll(double wait_s, Events& events, std::span<const int> news = {});
  // Returns the workers that have joined and have the newest weights.
  std::vector<groups::SamplerId> ready() const;
  // A worker that cannot be reached is lost with the next poll().
  void send(groups::SamplerId worker, const Message& message);

  // Call it when the trainers' weights are new, while all ranks of the replica call their update. It gives the weights
  // to all workers that have joined, and waits until each has taken them, is gone, or was silent for too long. Those
  // that sample meanwhile do so until `pause`, which ends their rollout: it is called once pieces have been sent to
  // those that do not map the weights, and those that copy ahead have begun to. Another thread may call poll() until
  // `pause` returns, and lets workers sample while they are_copying(). Returns how many workers were sent them again,
  // because they did not come through another one.
  int64_t update_weights(const std::function<void()>& pause = [] {});
  // Returns whether workers copy new weights while they sample. One that is silent for too long does not.
  bool are_copying() const;

  // Says that the trainers change the weights until update_weights(): a worker that joins waits for it.
  void hold_weights();

  // Returns the port at which it listens for other machines, 0 if it does not.
  int port() const { return listener_.port(); }
  // Returns the flag by which a process joins, and that for other machines if it listens for them, for messages.
  std::string how_to_join() const;

  // Returns why no worker is there and none will come by itself: the last one failed, or those that were started with
  // the run ended before any had joined. Returns nullopt while one may come, or somebody may start another.
  std::optional<Failed> why_nobody_comes();

 private:
  // kWaiting: it is prepared, and the weights change; kTaking: it takes its first weights.
  enum class State : uint8_t { kGreeting, kPreparing, kWaiting, kTaking, kReady, kGone };
  struct Worker {
    std::unique_ptr<mesh::Channel> channel;
    std::string name;  // for messages
    State state = State::kGreeting;
    bool is_rank = false;  // it trains too
    bool has_joined = false, has_left = false, has_failed = false;
    bool maps_weights = false;                 // it copies weights from this process's memory
    bool copies_ahead = false;                 // it does so while it samples
    bool is_copying = false;                   // and does so now
    std::optional<uint64_t> is_to_take = {};   // version that was announced and that it has not taken yet
    WeightDoor door = {};                      // where another worker passes weights on to it
    std::shared_ptr<mesh::Channel> line = {};  // by which pieces of weights go to it; null where it maps them
    bool is_chain_broken = false;              // it has said that the chain which it is in is
    bool starts_chain = false;                 // other workers do not reach it
    std::string why_gone = {};
    base::Clock::time_point last_heard;
  };

  // Tells workers every second that this process runs. The loop of the thread beats_.
  void beat_until(const std::stop_token& end);
  // mutex_ is locked in all functions that follow and in every public one, so no frame is torn by a beat.
  void beat();
  void accept_new();
  // Returns whether something has come.
  bool take_messages(Events& events);
  // `events` is null between two rollouts: messages of the previous one are for nobody.
  void take_frame(groups::SamplerId id, Worker& worker, std::string_view frame, Events* events);
  // Gives a worker the connection that it has made for pieces of weights.
  void attach_line(Worker& line, const std::string& name);
  void greet(Worker& worker, const Hello& hello);
  // Throws EnvironmentError if it has said nothing for too long.
  void check_heard(const Worker& worker, base::Clock::time_point since) const;
  // Workers that map the memory copy it from show_weights() on.
  void show_weights(const std::vector<groups::SamplerId>& ids, bool is_base, bool is_ahead = false);
  // Shows the trained weights to the workers that copy ahead, which sample meanwhile.
  void show_ahead();
  void say_checksums(const std::vector<groups::SamplerId>& ids, bool is_base);
  void give_first_weights(groups::SamplerId id);
  // Returns whether it is prepared for weights, and there is a way for them.
  static bool can_join(const Worker& worker);
  // Makes a worker that can join one that samples. Returns whether it is.
  bool let_join(groups::SamplerId id);
  // Workers that do not map the weights get them in chains, so that they leave this machine once. Where a chain breaks,
  // those after that place get them in a chain of their own: not_reached() waits until all workers of the chains have
  // taken the weights, or are gone, or say that they get none, and returns these last ones.
  using WorkerChain = std::vector<groups::SamplerId>;
  std::vector<WorkerChain> tell_chains(const std::vector<groups::SamplerId>& ids);
  std::vector<groups::SamplerId> not_reached(const std::vector<WorkerChain>& chains);
  // Sends pieces to the first workers of chains. It needs no lock: the workers may speak meanwhile.
  void send_pieces(const std::vector<WorkerChain>& chains, bool is_base);
  bool send_piece(mesh::Channel& line, groups::SamplerId id, const Weights& piece, std::span<const std::byte> bytes);
  void give_in_chains(std::vector<groups::SamplerId> ids, bool with_base);
  std::vector<WorkerChain> chains_of(std::vector<groups::SamplerId> ids) const;
  void tell_places(const WorkerChain& chain);
  // Remembers who did not get weights from a worker that had them.
  void note_links(const WorkerChain& chain);
  std::vector<groups::SamplerId> ready_workers(const std::function<bool(const Worker&)>& is_meant) const;
  void wait_until_taken(const std::vector<groups::SamplerId>& ids);
  void wait_until_taken(groups::SamplerId id, base::Clock::time_point since);
  // Reads what a worker said before it was gone, which may lie unread if a message to it has failed first.
  void hear_last_words(groups::SamplerId id, Worker& worker);
  void remove_gone(Events& events);

  const Settings settings_;
  WeightFeed* const weights_;  // or null
  mesh::ChannelListener listener_;
  base::ReadySet channels_;             // the workers' sockets, by their number
  mutable std::recursive_mutex mutex_;  // recursive, because a receiver of events calls back
  base::Clock::time_point last_beat_ = base::Clock::now();
  std::map<groups::SamplerId, Worker> workers_;
  groups::SamplerId next_id_ = 0;
  mesh::StartedWorkers started_;
  std::optional<Failed> failure_;  // failure of the last one that was there
  bool has_one_joined_ = false;
  bool are_weights_held_ = false;
  uint64_t num_chains_ = 0;
  int64_t num_sent_again_ = 0;  // weights that did not reach a worker through another one, of the whole run
  int64_t num_greeted_ = 0;     // workers that have said who they are
  const int num_exceptions_;    // exceptions in flight when this object was made
  std::jthread beats_;          // runs if rollout workers may join; ends before what it uses
};

}  // namespace tandem::sampling
