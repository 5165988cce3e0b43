// A sampler whose pool is in another process: asks rank 0 for samples over a channel, and gives back what it has made.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "base/clock.h"
#include "mesh/channel.h"
#include "sampling/messages.h"
#include "sampling/sampler.h"

namespace tandem::sampling {

class PoolClient {
 public:
  // A client lives for one rollout. The channel and the sampler are borrowed.
  PoolClient(mesh::Channel& rank0, uint64_t rollout, Sampler& sampler)
      : rank0_(rank0), rollout_(rollout), sampler_(sampler) {}

  // Takes a loan, or the end of one. Messages of other rollouts are dropped.
  void take(LendSamples& message);
  void take(LendGrading& message);
  void take(const Abort& message);
  void take(const Pause& message);

  // Waits at most `wait_s` for a message of rank 0, if there is nothing to work on.
  std::optional<std::string> receive(double wait_s);
  // Asks for samples, works a little, and says what is done.
  void work();

 private:
  // Returns the line that loans of a group borrow.
  const session::PromptLine* keep(uint64_t group, session::PromptLine& line);
  SamplerNumbers numbers() const { return {.stats = sampler_.stats(), .losses = sampler_.losses()}; }

  mesh::Channel& rank0_;
  const uint64_t rollout_;
  Sampler& sampler_;
  std::map<uint64_t, session::PromptLine> lines_;  // by group
  base::Clock::time_point last_alive_;
};

}  // namespace tandem::sampling
