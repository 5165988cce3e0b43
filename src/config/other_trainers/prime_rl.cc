// Maps keys of prime-rl's configuration to our flags: those of its loss and of its asynchrony.
#include <array>

#include "config/other_trainers/other_trainers.h"

namespace tandem::config {

namespace {

constexpr auto kNamesOfPrimeRl = std::to_array<OtherName>({
    {"trainer.loss.type", "`--pg-loss-type dppo_tv --loss-agg-mode token-mean`", "for `default`; no `ipo`"},
    {"trainer.loss.dppo_mask_low", "`--eps-clip`", "with `--pg-loss-type dppo_tv`"},
    {"trainer.loss.dppo_mask_high", "`--eps-clip-high`", "with `--pg-loss-type dppo_tv`"},
    {"trainer.loss.kl_tau", "`--behavior-kl-coef`", "1e-3 in prime-rl, 0 here"},
    {"trainer.loss.adv_tau", "none", "advantages have no factor of their own"},
    {"orchestrator.max_off_policy_steps", "`--partial-rollout --max-weight-staleness`",
     "no group is dropped for its age: the run waits for it ([ASYNC.md](ASYNC.md))"},
    {"orchestrator.oversampling_factor", "`--over-sampling-batch-size`", "groups in flight, with `--partial-rollout`"},
});

}  // namespace

std::span<const OtherName> names_of_prime_rl() { return kNamesOfPrimeRl; }

}  // namespace tandem::config
