// Rank 0's side of a rollout: lends the samples and gradings of a pool to the samplers, its own and those in other
// processes, and takes back what they made. One message a loan. Single-threaded; no torch, and no weights.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "groups/group_pool.h"
#include "sampling/processes/connections.h"
#include "sampling/processes/messages.h"
#include "sampling/rollout_request.h"

namespace tandem::sampling {

class Sampler;

class Coordinator final : private Connections::Events {
 public:
  // The samplers of other processes, and for how many seconds a rollout may have no sampler at all.
  struct Others {
    Connections& connections;
    double timeout_s = 0.0;
  };
  // A coordinator lives for one rollout, whose number no other one has. All arguments are borrowed. `own` is this
  // process's sampler or null, `others` is unset if this process samples alone. The rollout has `num_samples` in flight
  // at once.
  Coordinator(const RolloutRequest& request, uint64_t number, groups::GroupPool& pool, Sampler* own,
              std::optional<Others> others, int64_t num_samples);
  // Tells the others that the rollout is over. No sampler is left in the pool.
  ~Coordinator() override;
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;

  // Lends what waits, lets the own sampler work a little, and hears the others. If nothing else is to do, it waits
  // until one of the descriptors `news` is readable, a tenth of a second at most. Throws EnvironmentError if there has
  // been no sampler for too long, and the last worker's UserError or EnvironmentError if no other is left
  // (Connections::why_nobody_comes).
  void serve(std::span<const int> news = {});
  // Makes all samplers give back what they have on loan as it is. Gradings go on.
  void pause();
  // Ends the group's loans: it is not wanted any more.
  void abort(size_t group);
  // Returns whether another rank was asked to stop.
  bool is_stop_asked() const { return is_stop_asked_; }

  // Counts the samplers that are there and those that were lost. `idle_share` is the share of their time in which they
  // had nothing to do while others had.
  struct Samplers {
    int64_t count = 0;
    double idle_share = 0.0;
    int64_t num_lost = 0;
  };
  // Holds the numbers of all samplers together.
  struct Numbers {
    SamplerNumbers counted;
    Samplers samplers;
  };
  Numbers numbers() const;

 private:
  static constexpr groups::SamplerId kOwn = -1;
  struct Known {             // a sampler of this rollout, those that are gone too
    int64_t num_wanted = 0;  // samples that it has asked for
    SamplerNumbers numbers = {};
    base::Clock::time_point joined, last_done;
    bool is_here = true;
  };

  void joined(groups::SamplerId id) override;
  void said(groups::SamplerId id, Message& message) override;
  bool has_loans(groups::SamplerId id) const override { return pool_.num_loans(id) > 0; }
  int64_t lost(groups::SamplerId id, bool has_left) override;
  template <typename Loan>
  void take_back(groups::SamplerId id, Loan loan);
  void lend();
  void lend_to_own();
  void lend_to_others();
  bool work_on_own();  // returns whether it has given anything back
  void check_that_somebody_samples();
  Samplers samplers() const;

  const RolloutRequest& request_;
  const uint64_t number_;
  groups::GroupPool& pool_;
  Sampler* const own_;
  const std::optional<Others> others_;
  const int64_t num_samples_;
  std::map<groups::SamplerId, Known> known_;
  bool is_stop_asked_ = false;
  int64_t num_lost_ = 0;
  std::optional<base::Clock::time_point> alone_since_;
  bool has_said_alone_ = false;
};

}  // namespace tandem::sampling
