// The engines of a replica: ranks that hold one copy of the model between them. Every rank has an engine over its part,
// and all of them compute the same steps and draw the same tokens. The first rank's is asked; the others do what it was
// asked, in the same order.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "device/communicator.h"
#include "rollout/engine.h"
#include "rollout/replica_calls.h"

namespace tandem::rollout {

// The first rank's engine, as its user sees it. What it is asked goes to the others with the next step, or with end().
// Weights are not: each rank's engine is given its own.
class LeadingEngine final : public Engine {
 public:
  // Both are borrowed. `hosts`: of the replica's ranks; PeerLost where one is gone. No group is in flight.
  LeadingEngine(Engine& engine, device::Communicator& hosts) : engine_(engine), hosts_(hosts) {}
  // The others' follow() returns. No group is in flight.
  void end();
  // Whether this rank says so, or one of the others (what their follow() was given). Between steps.
  bool any_says(bool mine);

  void add(GroupRequest request) override;
  void abort(uint64_t group_id) override;
  void abort_all() override;
  void release(uint64_t sample_id) override;
  void pause(PauseMode mode) override;
  void update_weights(const weights::WeightsView& view) override;  // BugError
  void resume() override;
  std::optional<rl::Group> next_finished() override;
  bool step() override;
  int64_t compact_kv() override;
  int64_t num_unfinished_groups() const override { return engine_.num_unfinished_groups(); }
  bool has_room() const override { return engine_.has_room(); }
  EngineStats stats() const override { return engine_.stats(); }
  void reset_stats() override { engine_.reset_stats(); }

 private:
  void send();

  Engine& engine_;
  device::Communicator& hosts_;
  std::vector<ReplicaCall> unsent_;
  int64_t num_in_ = 0;  // groups that were added and not taken
};

// On the other ranks: does what the first rank's engine is asked, until end(). What is finished is dropped. `says`:
// what this rank answers to any_says(); without it, no.
void follow(Engine& engine, device::Communicator& hosts, const std::function<bool()>& says = {});

}  // namespace tandem::rollout
