// A sampler whose pool is in another process: asks rank 0 for samples over a channel, and gives back what it has made.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>

#include "base/clock.h"
#include "mesh/channel.h"
#include "sampling/processes/messages.h"
#include "sampling/sampler.h"

namespace tandem::sampling {

class PoolClient {
 public:
  // A client lives for one rollout. The channel and the sampler are borrowed. If the sampler was paused for new
  // weights, it has stood still since `still_since`.
  PoolClient(mesh::Channel& rank0, uint64_t rollout, Sampler& sampler,
             std::optional<base::Clock::time_point> still_since = std::nullopt)
      : rank0_(rank0), rollout_(rollout), sampler_(sampler), still_since_(still_since) {}

  // Takes a loan, or the end of one. Messages of other rollouts are dropped.
  void take(LendSamples& message);
  void take(LendGrading& message);
  void take(const Abort& message);
  void take(const Pause& message);

  // Waits at most `wait_s` for a message of rank 0, or until one of the descriptors `news` is readable, if there is
  // nothing to work on.
  std::optional<std::string> receive(double wait_s, std::span<const int> news = {});
  // Asks for samples, works a little, and says what is done.
  void work();

 private:
  // Returns the line that loans of a group borrow.
  const session::PromptLine* keep(uint64_t group, session::PromptLine& line);
  SamplerNumbers numbers() const {
    return {.stats = sampler_.stats(), .losses = sampler_.losses(), .still_seconds = still_s_};
  }

  mesh::Channel& rank0_;
  const uint64_t rollout_;
  Sampler& sampler_;
  std::optional<base::Clock::time_point> still_since_;
  double still_s_ = 0.0;
  std::map<uint64_t, session::PromptLine> lines_;  // by group
  base::Clock::time_point last_alive_;
};

}  // namespace tandem::sampling
