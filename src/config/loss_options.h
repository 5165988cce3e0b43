// Which policy loss, and the reference that its KL compares with. The constants' meaning: docs/LOSSES.md.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/options.h"
#include "rl/loss_config.h"

namespace tandem::config {

struct LossOptions {
  rl::LossConfig loss;
  bool use_kl_loss = false;
  std::string ref_load;  // unset: --hf-checkpoint, as it is at the start
  // Rollouts after which the reference becomes the policy as it is then; unset: never.
  std::optional<int64_t> ref_update_interval;

  void visit(base::Options& options);
  // The reference is scored for the KL's metrics too, with --use-kl-loss at coefficient 0.
  bool needs_reference() const { return use_kl_loss || loss.kl_coef > 0.0; }
  // UserError when two of these flags contradict: then `loss` with a divisor passes rl::check_loss_config.
  void check() const;

 private:
  void visit_policy_term(base::Options& options);
  void visit_other_terms(base::Options& options);
  void visit_corrections(base::Options& options);
  void visit_advantages(base::Options& options);
  void visit_reward_shaping(base::Options& options);
  void check_reference() const;
};

}  // namespace tandem::config
