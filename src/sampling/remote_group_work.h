// Groups that processes which only sample work on: lent through the queue, and taken when they are graded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>

#include "base/clock.h"
#include "sampling/group_work.h"
#include "sampling/rank_message.h"
#include "sampling/rollout_queue.h"
#include "sampling/rollout_workers.h"

namespace tandem::sampling {

class RemoteGroupWork final : public GroupWork, private RolloutWorkers::Lender {
 public:
  // Borrowed. `number` is that of no other rollout.
  RemoteGroupWork(const RolloutRequest& request, uint64_t number, double patience_s, RolloutWorkers& workers,
                  Done done);
  ~RemoteGroupWork() override;

  void begin(size_t index, const session::PromptLine& line) override;
  // Waits for a tenth of a second at most. EnvironmentError: there has been no worker for too long; UserError or
  // EnvironmentError as the last worker had it, where no other is left (RolloutWorkers::why_nobody_comes).
  void advance() override;
  void abort(size_t index) override;
  void abort_all() override;
  void finish() override {}
  bool has_room() const override { return true; }

  int64_t num_under_way() const override { return queue_.num_waiting() + queue_.num_on_loan(); }
  int64_t num_in_sampler() const override { return num_under_way(); }
  int64_t num_sampled() const override { return num_done_; }
  int64_t num_graded() const override { return num_done_ * request_.n_samples_per_prompt; }
  int64_t num_cut() const override { return num_cut_; }
  rollout::EngineStats stats() const override;
  Losses losses() const override;
  Workers workers() const override;

 private:
  struct Worker {
    int64_t num_wanted = 0;  // groups that it has asked for
    rollout::EngineStats stats = {};
    Losses losses = {};
    base::Clock::time_point joined, last_done;
    bool is_here = true;
  };

  void joined(WorkerId id) override;
  void said(WorkerId id, WorkerMessage& message) override;
  bool has_loans(WorkerId id) const override { return queue_.has_loans(id); }
  int64_t lost(WorkerId id, bool has_left) override;
  void take(WorkerId id, const sampling::Done& message);
  void lend();
  void check_that_somebody_samples();

  const RolloutRequest& request_;
  const uint64_t number_;
  const double patience_s_;
  RolloutWorkers& workers_;
  const Done done_;
  RolloutQueue queue_;
  std::map<size_t, const session::PromptLine*> lines_;  // by index, of all groups
  std::map<WorkerId, Worker> known_;                    // of this rollout, those that are gone too
  int64_t num_done_ = 0, num_cut_ = 0, num_lost_ = 0;
  std::optional<base::Clock::time_point> alone_since_;
  bool has_said_alone_ = false;
};

}  // namespace tandem::sampling
