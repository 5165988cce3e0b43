#include "config/optimizer_options.h"

#include <fmt/format.h>

#include "base/check.h"
#include "base/message_text.h"
#include "base/size.h"

namespace tandem::config {

constexpr int64_t kMostOfAGroup = 64;  // devices of a host; a longer chain would be added up between hosts anyway

void OptimizerOptions::visit(options::Options& options) {
  const char* const group = "optimizer";
  options.option(schedule.max_lr, "lr", group, "learning rate").at_least(0.0).finite();
  options.option(schedule.min_lr, "min-lr", group, "learning rate that a decay ends at").at_least(0.0).finite();
  options.option(schedule.decay_style, "lr-decay-style", group, "how the learning rate falls after the warm-up")
      .one_of(trainer::kDecayStyles);
  options
      .option(schedule.warmup_steps, "lr-warmup-iters", group,
              "optimizer steps in which the learning rate rises from 0 to --lr")
      .at_least(0)
      .at_most(base::kMaxCount);
  options
      .option(schedule.decay_steps, "lr-decay-iters", group,
              "optimizer step, counted from the start of the run, at which a decay reaches --min-lr; 0: the run's last")
      .at_least(0)
      .at_most(base::kMaxCount)
      // A checkpoint compares the step itself, so that a longer run may name the one at which the first decay ended.
      .does_not_affect_results()
      .used_if([this] { return schedule.decay_style != "constant"; }, "a --lr-decay-style that falls");
  options
      .option(schedule.wsd_decay_style, "lr-wsd-decay-style", group,
              "how the learning rate falls at the end of --lr-decay-style WSD")
      .one_of(trainer::kWsdDecayStyles)
      .used_if([this] { return schedule.decay_style == "WSD"; }, "--lr-decay-style WSD");
  options
      .option(schedule.wsd_decay_steps, "lr-wsd-decay-iters", group,
              "optimizer steps over which the learning rate of --lr-decay-style WSD falls; before them it is --lr")
      .at_least(0)
      .at_most(base::kMaxCount);
  options.option(adamw.weight_decay, "weight-decay", group, "weight decay of AdamW, on embeddings and projections")
      .at_least(0.0);
  options
      .option(adamw.weight_decay_all, "weight-decay-all", group,
              "apply weight decay to norms and biases too, as torch's AdamW does")
      .used_if([this] { return adamw.weight_decay > 0.0; }, "--weight-decay above 0");
  options.option(adamw.beta1, "adam-beta1", group, "decay of AdamW's first moment").at_least(0.0).less_than(1.0);
  options.option(adamw.beta2, "adam-beta2", group, "decay of AdamW's second moment").at_least(0.0).less_than(1.0);
  options.option(adamw.eps, "adam-eps", group, "number that AdamW adds to the denominator of an update")
      .greater_than(0.0);
  options.option(gradient.clip_grad, "clip-grad", group, "global norm that gradients are clipped to; 0: no clipping")
      .at_least(0.0);
  options
      .option(gradient.max_grad_norm_skip, "max-grad-norm-skip", group,
              "skip an optimizer step whose gradient norm is above this; 0: only those that are not finite")
      .at_least(0.0);
  options
      .option(gradient.skip_zero_gradient, "skip-zero-gradient", group,
              "a gradient of exactly 0 changes no weight: momentum and weight decay wait for the next one")
      .default_was_new();
  visit_routers(options);
  visit_memory(options);
}

void OptimizerOptions::visit_routers(options::Options& options) {
  const char* const group = "optimizer";
  options.option(freeze_moe_router, "freeze-moe-router", group,
                 "the routers of a sparse model keep their weights, while everything else is trained");
  options
      .option(router.aux_loss_coeff, "moe-aux-loss-coeff", group,
              "coefficient of a loss that pushes the load of a sparse model's experts towards equality, in each sample "
              "by itself; 0: off")
      .at_least(0.0)
      .finite();
  options
      .option(router.balancing_type, "moe-router-load-balancing-type", group,
              "loss that --moe-aux-loss-coeff is the coefficient of: seq_aux_loss, or none; the others are accepted "
              "with the coefficient 0")
      .one_of(trainer::kBalancingTypes)
      .does_not_affect_results();  // with a coefficient it has one value
  options
      .option(router.logs_layers, "moe-per-layer-logging", group,
              "report the load of a sparse model's experts for each layer, and not only for the worst one")
      .does_not_affect_results();
}

void OptimizerOptions::visit_memory(options::Options& options) {
  const char* const group = "training memory";
  visit_batch(batch, options, group);
  options
      .option(
          batch.gradient_sum_group, "gradient-sum-group", group,
          "add up the gradients of so many neighbouring micro-batches first, then these sums; with the devices of a "
          "host, less goes between hosts")
      .at_least(1)
      .at_most(kMostOfAGroup);
  options
      .option(recompute_granularity, "recompute-granularity", group,
              "how many layers are recomputed in the backward pass: none keeps all activations, full recomputes "
              "--recompute-num-layers layers, auto as many as --activation-bytes asks for")
      .one_of({"auto", "none", "full"})
      .does_not_affect_results();
  options
      .option(recompute_num_layers, "recompute-num-layers", group,
              "recomputed layers with --recompute-granularity full; 0: all layers")
      .at_least(0)
      .at_most(base::kMaxCount)
      .does_not_affect_results();
  options
      .option(batch.activation_bytes, "activation-bytes", group,
              "bytes of activations that may be kept with --recompute-granularity auto; 0: no limit")
      .bytes()
      .at_least(0)
      .at_most(base::kMaxBytes)
      .does_not_affect_results();
}

void visit_batch(trainer::BatchConfig& batch, options::Options& options, const std::string& group) {
  options
      .option(batch.max_tokens_per_gpu, "max-tokens-per-gpu", group,
              "packed tokens of one forward (training: of one micro-batch)")
      .at_least(1)
      .at_most(base::kMaxCount);
  options
      .option(
          batch.micro_batches_multiple, "micro-batches-multiple", group,
          "micro-batches of a step are rounded up to a multiple of this, so that as many devices have the same work")
      .at_least(1)
      .at_most(base::kMaxCount);
  options
      .option(batch.logprob_chunk_rows, "logprob-chunk-rows", group,
              "rows of logits that exist at once while log-probs are computed")
      .at_least(1)
      .at_most(base::kMaxCount);
}

namespace {

void check_routers(const OptimizerOptions& options) {
  const trainer::RouterConfig& router = options.router;
  if (!router.balances()) return;
  TANDEM_USER_CHECK(router.balancing_type != "none",
                    fmt::format("--moe-aux-loss-coeff {}: does nothing with --moe-router-load-balancing-type none; "
                                "leave one out",
                                router.aux_loss_coeff));
  TANDEM_USER_CHECK(
      router.balancing_type == "seq_aux_loss",
      fmt::format("--moe-router-load-balancing-type {}: the gradient would depend on which samples share a micro-batch "
                  "or a step; give seq_aux_loss, which balances each sample by itself",
                  router.balancing_type));
  TANDEM_USER_CHECK(!options.freeze_moe_router,
                    fmt::format("--moe-aux-loss-coeff {}: balances routers, which --freeze-moe-router keeps as they "
                                "are; leave one out",
                                router.aux_loss_coeff));
}

}  // namespace

void OptimizerOptions::check() const {
  TANDEM_USER_CHECK(
      schedule.min_lr == 0.0 || schedule.decay_style != "constant",
      fmt::format("--min-lr {}: --lr-decay-style constant never decays to it; give linear, cosine or WSD, "
                  "or leave --min-lr out",
                  schedule.min_lr));
  TANDEM_USER_CHECK(schedule.min_lr <= schedule.max_lr,
                    fmt::format("--min-lr {}: is above --lr {}, which a decay begins with; lower it", schedule.min_lr,
                                schedule.max_lr));
  const bool is_wsd = schedule.decay_style == "WSD";
  TANDEM_USER_CHECK(!is_wsd || schedule.wsd_decay_steps > 0,
                    "--lr-decay-style WSD: needs --lr-wsd-decay-iters, the optimizer steps over which the rate falls");
  TANDEM_USER_CHECK(is_wsd || schedule.wsd_decay_steps == 0,
                    fmt::format("--lr-wsd-decay-iters {}: does nothing without --lr-decay-style WSD; give both",
                                schedule.wsd_decay_steps));
  check_routers(*this);
}

trainer::Schedule OptimizerOptions::run_schedule(int64_t total_steps) const {
  trainer::Schedule run = schedule;
  const bool ends_with_run = run.decay_steps == 0;
  if (ends_with_run) run.decay_steps = total_steps;
  const bool falls = run.decay_style != "constant";
  TANDEM_USER_CHECK(!falls || !ends_with_run || run.decay_steps > run.warmup_steps,
                    fmt::format("--lr-warmup-iters {}: --lr-decay-style {} falls after it, until the run ends after {} "
                                "(--num-rollout, --num-epoch); lower it, or make the run longer",
                                run.warmup_steps, run.decay_style, base::counted(total_steps, "optimizer step")));
  TANDEM_USER_CHECK(!falls || run.decay_steps > run.warmup_steps,
                    fmt::format("--lr-decay-iters {} must exceed --lr-warmup-iters {} when --lr-decay-style is {}",
                                run.decay_steps, run.warmup_steps, run.decay_style));
  TANDEM_USER_CHECK(
      run.decay_style != "WSD" || run.wsd_decay_steps <= run.decay_steps,
      fmt::format("--lr-wsd-decay-iters {}: is more than the {} optimizer steps up to the end of the "
                  "{}; lower it",
                  run.wsd_decay_steps, run.decay_steps, ends_with_run ? "run" : "decay (--lr-decay-iters)"));
  return run;
}

int64_t OptimizerOptions::recompute_layers(int64_t num_layers) const {
  TANDEM_USER_CHECK(
      recompute_granularity == "full" || recompute_num_layers == 0,
      fmt::format("--recompute-num-layers {}: needs --recompute-granularity full; give it, or leave this one out",
                  recompute_num_layers));
  TANDEM_USER_CHECK(
      recompute_num_layers <= num_layers,
      fmt::format(
          "--recompute-num-layers {}: the model has {} layers; give {} or fewer, or leave it out to recompute all",
          recompute_num_layers, num_layers, num_layers));
  if (recompute_granularity == "none") return 0;
  if (recompute_granularity == "auto") return -1;
  return recompute_num_layers == 0 ? num_layers : recompute_num_layers;
}

}  // namespace tandem::config
