// Which policy loss, and the reference that its KL term compares with. The constants' meaning: docs/LOSSES.md.
#pragma once

#include <string>

#include "base/options.h"
#include "rl/loss_config.h"

namespace tandem::run {

struct LossOptions {
  rl::LossConfig loss;
  bool use_kl_loss = false;
  std::string ref_load;  // unset: --hf-checkpoint, as it is at the start
  bool get_mismatch_metrics = false;

  void visit(base::Options& options);
  bool needs_reference() const { return loss.kl_loss_coef != 0.0; }
  // UserError when two flags contradict.
  void check() const;
};

}  // namespace tandem::run
