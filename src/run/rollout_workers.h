// The processes that only sample (workers), as the conductor of a run sees them: they join, get weights, are given work
// by whoever holds the queue, and are missed when they die, hang or leave. One thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "mesh/agreement.h"
#include "mesh/channel.h"
#include "mesh/started_workers.h"
#include "run/model_session.h"
#include "run/rollout_queue.h"
#include "run/worker_messages.h"

namespace tandem::run {

// The name of the socket at which the run with this --save listens.
std::string workers_address(const std::string& save);

class RolloutWorkers {
 public:
  struct Settings {
    std::string address;    // workers_address()
    mesh::RankFacts facts;  // a worker's have to agree
    Welcome welcome;
    double silence_s = 60.0;                   // that a worker may be silent for while it has groups
    int64_t piece_bytes = int64_t{512} << 20;  // of weights
    std::optional<int> workers_descriptor;     // mesh::LaunchVariables has it
  };
  // Listens. The session has weights, and is borrowed. EnvironmentError: another process listens for this run.
  RolloutWorkers(Settings settings, const ModelSession& session);
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

  // The weights in the session's store are new: gives them to all who have joined, and waits until each has taken them,
  // is gone, or was silent for too long.
  void update_weights();

  // Why none is there and none will come by itself: the last one failed, or those that were started with the run ended
  // before any had joined. Nothing while one may come, and where somebody may start another.
  std::optional<Failed> why_nobody_comes();

 private:
  enum class State : uint8_t { kGreeting, kPreparing, kTaking, kReady, kGone };  // kTaking: its first weights
  struct Worker {
    std::unique_ptr<mesh::Channel> channel;
    std::string name;  // for messages
    State state = State::kGreeting;
    bool has_joined = false, has_base = false, has_left = false, has_failed = false;
    bool maps_weights = false;                // it copies them from this process's memory
    std::optional<uint64_t> is_to_take = {};  // a version, which it has not taken yet
    std::string why_gone = {};
    base::Clock::time_point last_heard;
  };

  void accept_new();
  // Whether something has come.
  bool take_messages(Lender& lender);
  // Without a lender, between two rollouts: what is still said of the one before is for nobody.
  void take_frame(WorkerId id, Worker& worker, std::string_view frame, Lender* lender);
  void greet(Worker& worker, const Hello& hello);
  // EnvironmentError: neither it nor this process has said anything for too long.
  void check_heard(const Worker& worker, base::Clock::time_point since) const;
  void give_weights(const std::vector<WorkerId>& ids);
  void give_store(const weights::WeightStore& store, bool is_base, const std::vector<Worker*>& workers);
  void send_pieces(Worker& worker, const weights::WeightStore& store, bool is_base);
  void wait_until_taken(WorkerId id, base::Clock::time_point since);
  const WeightChecksums& checksums_of(const weights::WeightStore& store, bool is_base);
  void remove_gone(Lender& lender);

  const Settings settings_;
  const ModelSession& session_;
  const std::string weight_hash_;
  const mesh::OwnedDescriptor listener_;
  std::map<WorkerId, Worker> workers_;
  WorkerId next_id_ = 0;
  std::map<bool, WeightChecksums> checksums_;  // by is_base: of the weights as they are
  mesh::StartedWorkers started_;
  std::optional<Failed> failure_;  // of the last one that was there
  bool has_one_joined_ = false;
  const int num_exceptions_;  // when this was made
};

}  // namespace tandem::run
