// The engines of a replica, which is a tensor-parallel group of ranks. Every rank has an engine over its part of the
// model, and all of them compute the same steps and draw the same tokens. Calls go to the first rank's engine; the
// others make the same calls in the same order.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "device/communicator.h"
#include "rollout/engine.h"
#include "rollout/replica_calls.h"

namespace tandem::rollout {

// This is the first rank's engine as its user sees it. Its calls go to the other ranks with the next step, or with
// end(). Weights do not: each rank's engine is given its own.
class LeadingEngine final : public Engine {
 public:
  // Both are borrowed. `hosts` connects the hosts of the replica's ranks; calls throw PeerLost if one is gone. No group
  // is in flight.
  LeadingEngine(Engine& engine, device::Communicator& hosts) : engine_(engine), hosts_(hosts) {}
  // Makes the others' follow() return. No group is in flight.
  void end();
  // Returns whether this rank says so, or one of the others (by the `says` of its follow()). Call it between steps.
  bool any_says(bool mine);

  void add(GroupRequest request) override;
  void abort(uint64_t group_id) override;
  void abort_all() override;
  void release(uint64_t sample_id) override;
  void update_weights(const weights::WeightsView& view) override;  // BugError
  std::optional<rl::Group> next_finished() override;
  bool step() override;
  int64_t num_unfinished_groups() const override { return engine_.num_unfinished_groups(); }
  bool has_room() const override { return engine_.has_room(); }
  EngineStats stats() const override { return engine_.stats(); }
  void reset_stats() override { engine_.reset_stats(); }

 private:
  void send();

  Engine& engine_;
  device::Communicator& hosts_;
  std::vector<ReplicaCall> unsent_;
  int64_t num_in_ = 0;  // groups added and not taken
};

// Makes, on the other ranks, the calls of the first rank's engine, until end(). Finished groups are dropped. `says` is
// this rank's answer to any_says(); without it the answer is no.
void follow(Engine& engine, device::Communicator& hosts, const std::function<bool()>& says = {});

}  // namespace tandem::rollout
