// Maps keys of AReaL 1.0's configuration to our flags: those of its loss and of its asynchrony.
#include <array>

#include "config/other_trainers/other_trainers.h"

namespace tandem::config {

namespace {

constexpr auto kNamesOfAreal = std::to_array<OtherName>({
    {"actor.use_decoupled_loss", "`--old-logprobs proximal --use-tis`",
     "the weights are those of `rejection_sampling`; without it AReaL corrects nothing"},
    {"actor.prox_logp_method", "none",
     "always exact; a forward is made only where a rollout has several optimizer steps or tokens are rejected"},
    {"actor.recompute_logprob", "`--old-logprobs proximal`", "of use alone with `--use-tis`"},
    {"actor.rejection_sampling.level", "`--tis-level`", "`sequence` with `agg=mean`, its default, is `geometric`"},
    {"actor.rejection_sampling.agg", "`--tis-level`",
     "`mean` is `geometric`; `sum` decides as `sequence` does and weighs by the mean: not here, nor is `max`"},
    {"actor.rejection_sampling.action", "`--tis-mode`", "`mask` is `mask`, `clamp` `truncate`"},
    {"actor.rejection_sampling.metric", "none", "always `ratio`"},
    {"actor.rejection_sampling.upper", "`--tis-clip`", ""},
    {"actor.rejection_sampling.lower", "`--tis-clip-low`", ""},
    {"actor.behave_imp_weight_cap", "`--use-tis --tis-clip`",
     "no longer in AReaL; `--tis-clip 5 --tis-mode mask` was its default"},
    {"actor.behav_imp_weight_cap", "`--use-tis --tis-clip`",
     "no longer in AReaL; `--tis-clip 5 --tis-mode mask` was its default"},
    {"actor.behave_imp_weight_mode", "`--tis-mode`, `--tis-level`",
     "no longer in AReaL; `token_mask` is `--tis-mode mask`, `sequence_truncate` `--tis-level geometric`"},
    {"actor.eps_clip", "`--eps-clip`", ""},
    {"actor.eps_clip_higher", "`--eps-clip-high`", ""},
    {"actor.c_clip", "`--eps-clip-c`", ""},
    {"actor.importance_sampling_level", "`--pg-loss-type`", "`sequence` is `--pg-loss-type gspo`"},
    {"actor.use_sapo_loss", "`--pg-loss-type sapo`", ""},
    {"rollout.max_head_offpolicyness", "`--partial-rollout --max-weight-staleness`",
     "in rollouts; with `--rollout-num-gpus`, else in phases ([ASYNC.md](ASYNC.md))"},
    {"rollout.max_concurrent_rollouts", "`--over-sampling-batch-size`", "groups in flight, with `--partial-rollout`"},
});

}  // namespace

std::span<const OtherName> names_of_areal() { return kNamesOfAreal; }

}  // namespace tandem::config
