// Declares the options by which samples may be of older weights: completions that go on with newer weights where they
// were, and sampling while the run trains. docs/ASYNC.md describes them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "options/options.h"
#include "rl/loss_config.h"

namespace tandem::config {

struct AsyncOptions {
  bool partial_rollout = false;
  std::optional<int64_t> phase_tokens = {};          // most tokens that a completion gets in one phase
  std::optional<int64_t> max_weight_staleness = {};  // in rollouts
  std::string replay_schedule = {};                  // run whose schedule is replayed; "": none

  void visit(options::Options& options);
  // Throws UserError for options that need others, a bound that leaves no room for the groups in flight, and a loss
  // that must not train on samples of older weights. `groups_at_once` groups are in flight.
  void check(bool colocate, int64_t rollout_batch_size, int64_t groups_at_once, const rl::LossConfig& loss) const;

  // Returns whether other devices sample while the run trains.
  bool is_live(bool colocate) const { return !colocate && !phase_tokens && max_weight_staleness.value_or(0) > 0; }
  // Returns whether groups are in flight between two rollouts.
  bool keeps_groups(bool colocate) const { return partial_rollout || is_live(colocate); }
  // Returns the most tokens that a completion gets in one phase: by default a quarter of what it may have, which is
  // about twice what an average one has.
  int64_t tokens_of_phase(int64_t max_new_tokens) const;
  // Returns how many groups are in flight if the user does not say: with --partial-rollout two batches, or as many as
  // the bound allows, else one.
  int64_t default_groups_at_once(int64_t rollout_batch_size) const;
};

}  // namespace tandem::config
