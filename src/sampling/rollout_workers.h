// The processes that only sample (workers), as the conductor of a run sees them: they join, get weights, are given work
// by whoever holds the queue, and are missed when they die, hang or leave. For one thread. Another one, of this object,
// tells them and the launcher every second that this process runs, also while it trains: a conductor that is frozen is
// missed.
#pragma once

#include <cstdint>
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
#include "mesh/agreement.h"
#include "mesh/channel.h"
#include "mesh/channel_listener.h"
#include "mesh/launcher_link.h"
#include "sampling/replica_weights.h"
#include "sampling/rollout_queue.h"
#include "sampling/worker_messages.h"

namespace tandem::sampling {

class RolloutWorkers {
 public:
  struct Settings {
    std::string address;          // workers_address()
    mesh::NetworkDoor door = {};  // for those of other machines
    mesh::RankFacts facts;        // a worker's have to agree
    Welcome welcome;
    double silence_s = 60.0;                 // that a worker may be silent for while it has groups
    std::optional<int> launcher_descriptor;  // mesh::LaunchVariables has it
    int64_t num_started = 0;                 // that were started with the run
    bool are_all_here = true;                // on this machine, whose launcher sees them end
  };
  // Listens. The weights are borrowed. EnvironmentError: another process listens for this run.
  RolloutWorkers(Settings settings, ReplicaWeights& weights);
  // Tells them that the run has ended; where it ends by an error, they see that it is gone.
  ~RolloutWorkers();
  RolloutWorkers(const RolloutWorkers&) = delete;
  RolloutWorkers& operator=(const RolloutWorkers&) = delete;

  // Who gives them work.
  class Lender {
   public:
    virtual ~Lender() = default;
    virtual void joined(WorkerId worker) = 0;  // it has the newest weights
    virtual void said(WorkerId worker, WorkerMessage& message) = 0;
    virtual bool has_loans(WorkerId worker) const = 0;
    // It is gone; returns how many groups go to others.
    virtual int64_t lost(WorkerId worker, bool has_left) = 0;
  };
  // Waits so long at most for something to happen, and tells the lender of it.
  void poll(double wait_s, Lender& lender);
  // Those that have joined and the newest weights.
  std::vector<WorkerId> ready() const;
  // A worker that cannot be reached is lost with the next poll().
  void send(WorkerId worker, const WorkerMessage& message);

  // The trainers' weights are new, and all ranks of the replica call their update: gives them to all who have joined,
  // and waits until each has taken them, is gone, or was silent for too long.
  void update_weights();

  // Where it listens for other machines; 0: it does not.
  int port() const { return listener_.port(); }

  // Why none is there and none will come by itself: the last one failed, or those that were started with the run ended
  // before any had joined. Nothing while one may come, and where somebody may start another.
  std::optional<Failed> why_nobody_comes();

 private:
  enum class State : uint8_t { kGreeting, kPreparing, kTaking, kReady, kGone };  // kTaking: its first weights
  struct Worker {
    std::unique_ptr<mesh::Channel> channel;
    std::string name;  // for messages
    State state = State::kGreeting;
    bool has_joined = false, has_left = false, has_failed = false;
    bool maps_weights = false;                // it copies them from this process's memory
    std::optional<uint64_t> is_to_take = {};  // a version, which it has not taken yet
    std::string why_gone = {};
    base::Clock::time_point last_heard;
  };

  // While the conductor is busy with something else.
  void beat_until(const std::stop_token& end);
  // All that follow, and every public function, have mutex_ locked; so no frame is torn by a beat.
  void beat();
  void accept_new();
  // Whether something has come.
  bool take_messages(Lender& lender);
  // Without a lender, between two rollouts: what is still said of the one before is for nobody.
  void take_frame(WorkerId id, Worker& worker, std::string_view frame, Lender* lender);
  void greet(Worker& worker, const Hello& hello);
  // EnvironmentError: neither it nor this process has said anything for too long.
  void check_heard(const Worker& worker, base::Clock::time_point since) const;
  // Those that map the memory copy it from show_weights() on, and while others are given pieces.
  void show_weights(const std::vector<WorkerId>& ids, bool is_base);
  void give_weights(const std::vector<WorkerId>& ids, bool is_base);
  void give_first_weights(WorkerId id);
  void send_pieces(Worker& worker, bool is_base);
  void wait_until_taken(const std::vector<WorkerId>& ids);
  void wait_until_taken(WorkerId id, base::Clock::time_point since);
  // Of one that is gone: what it said before may lie unread where a message to it has failed first.
  void hear_last_words(WorkerId id, Worker& worker);
  void remove_gone(Lender& lender);

  const Settings settings_;
  ReplicaWeights& weights_;
  mesh::ChannelListener listener_;
  mutable std::recursive_mutex mutex_;  // a lender that is called calls back
  base::Clock::time_point last_beat_ = base::Clock::now();
  std::map<WorkerId, Worker> workers_;
  WorkerId next_id_ = 0;
  mesh::StartedWorkers started_;
  std::optional<Failed> failure_;  // of the last one that was there
  bool has_one_joined_ = false;
  int64_t num_greeted_ = 0;   // that have said who they are
  const int num_exceptions_;  // when this was made
  std::jthread beats_;        // ends before what it uses
};

}  // namespace tandem::sampling
