// Declares the options of the policy loss and of the reference that its KL compares with. docs/LOSSES.md explains the
// constants.
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
  std::string ref_load;  // unset: --hf-checkpoint as it is at the start
  // The reference becomes a copy of the policy after every so many rollouts; unset means never.
  std::optional<int64_t> ref_update_interval;
  std::string custom_advantage_path;  // FILE.py:function that computes advantages; "": --advantage-estimator alone

  void visit(base::Options& options);
  // Returns whether the reference is scored. That is so for the KL's metrics too, with --use-kl-loss at coefficient 0.
  bool needs_reference() const { return use_kl_loss || loss.kl_coef > 0.0; }
  // Throws UserError when two of these flags contradict; otherwise `loss` with a divisor passes rl::check_loss_config.
  void check() const;

 private:
  void visit_policy_term(base::Options& options);
  void visit_other_terms(base::Options& options);
  void visit_corrections(base::Options& options);
  void visit_advantages(base::Options& options);
  void visit_reward_shaping(base::Options& options);
  void check_reward_aggregation() const;
  void check_reference() const;
};

}  // namespace tandem::config
