// Draws a rollout of a run whose completions go on over several rollouts (docs/ASYNC.md): in phases, or while the run
// trains.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "sampling/drawing.h"
#include "sampling/schedule_log.h"

namespace tandem::sampling {

// Holds what both have in common: groups in flight, of which a rollout takes the oldest that have ended.
class InFlightDrawing : public Drawing {
 public:
  TakenGroups take() override;
  void show_progress(const Coordinator& coordinator, report::Report& report) const override;

 protected:
  // All arguments are borrowed. The pool is that of the request's groups in flight.
  InFlightDrawing(const RolloutRequest& request, groups::LengthHistory* lengths);

  enum class Begins : uint8_t { kNow, kWithNextPhase };
  void begin_groups(Begins when);  // as many as may begin
  void begin_group(Begins when);
  void decide_about(size_t group);
  virtual std::vector<size_t> groups_to_take() const { return in_flight_.schedule.taken(); }

  const RolloutRequest& request_;
  const InFlightRequest& asked_;
  groups::InFlight& in_flight_;
  int64_t num_phases_ = 0;  // for this rollout

 private:
  InFlightNumbers numbers(const TakenGroups& taken) const;

  groups::LengthHistory* const lengths_;
};

// A phase gives every completion in flight at most so many more tokens. It is over when all have ended or used them up,
// and all groups that have ended are graded. Then enough groups have ended for the rollout, or the next phase begins.
class PhaseDrawing final : public InFlightDrawing {
 public:
  PhaseDrawing(const RolloutRequest& request, groups::LengthHistory* lengths) : InFlightDrawing(request, lengths) {}

  void draw() override;
  void decide(Coordinator& coordinator) override;
  // A rollout has a phase also where enough groups had ended before: so groups begin in each, and do not end together.
  bool is_over() const override { return num_phases_ > 0 && !is_in_phase_ && in_flight_.schedule.is_over(); }

 private:
  bool is_in_phase_ = false;
  std::vector<size_t> ended_;  // groups of this phase that are graded
};

// Samples what a log says (sampling/schedule_log.h), in one phase a rollout: each sample gets as many tokens of these
// weights as it had of them then. Groups that the filter dropped then are dropped with it, without a sample: the reason
// is "replayed". Groups that the log does not know of rest until it ends.
class ReplayDrawing final : public InFlightDrawing {
 public:
  ReplayDrawing(const RolloutRequest& request, groups::LengthHistory* lengths);

  void draw() override;
  void decide(Coordinator& coordinator) override;
  bool is_over() const override { return is_over_; }

 private:
  std::vector<size_t> groups_to_take() const override;

  const ScheduleLog& log_;
  const ScheduledRollout& scheduled_;
  bool is_over_ = false;
};

// Groups begin whenever there is room, and are decided about as they end, while the run trains on others. Samplers work
// until they are paused, when the weights are new.
class LiveDrawing final : public InFlightDrawing {
 public:
  LiveDrawing(const RolloutRequest& request, groups::LengthHistory* lengths);

  void draw() override { begin_groups(Begins::kNow); }
  void decide(Coordinator& coordinator) override;
  bool is_over() const override { return in_flight_.schedule.is_over(); }
};

}  // namespace tandem::sampling
