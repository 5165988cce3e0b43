#include "config/optimizer_options.h"

#include <fmt/format.h>

#include "base/check.h"
#include "base/size.h"

namespace tandem::config {

void OptimizerOptions::visit(base::Options& options) {
  const char* const group = "optimizer";
  options.option(lr, "lr", group, "learning rate").at_least(0.0);
  options.option(min_lr, "min-lr", group, "where a decay ends").at_least(0.0);
  options.option(lr_decay_style, "lr-decay-style", group, "schedule after the warm-up")
      .one_of({"constant", "linear", "cosine"});
  options.option(lr_warmup_iters, "lr-warmup-iters", group, "optimizer steps of linear warm-up")
      .at_least(0)
      .at_most(base::kMaxCount);
  options.option(lr_decay_iters, "lr-decay-iters", group, "optimizer steps until --min-lr; 0: the whole run")
      .at_least(0)
      .at_most(base::kMaxCount);
  options.option(weight_decay, "weight-decay", group, "AdamW's, on matrices").at_least(0.0);
  options.option(weight_decay_all, "weight-decay-all", group, "on norms too, as torch's AdamW does");
  options.option(adam_beta1, "adam-beta1", group, "").at_least(0.0).at_most(0.9999999);
  options.option(adam_beta2, "adam-beta2", group, "").at_least(0.0).at_most(0.9999999);
  options.option(adam_eps, "adam-eps", group, "").greater_than(0.0);
  options.option(clip_grad, "clip-grad", group, "global norm that gradients are clipped to; 0: off").at_least(0.0);
  options
      .option(max_grad_norm_skip, "max-grad-norm-skip", group,
              "skip an optimizer step whose gradient norm is above this; 0: only those that are not finite")
      .at_least(0.0);
  options.option(skip_zero_gradient, "skip-zero-gradient", group,
                 "a gradient of exactly 0 changes no weight: momentum and weight decay wait for the next one");
  const char* const memory = "training memory";
  options.option(max_tokens_per_gpu, "max-tokens-per-gpu", memory, "packed tokens of one micro-batch")
      .at_least(1)
      .at_most(base::kMaxCount);
  options.option(logprob_chunk_rows, "logprob-chunk-rows", memory, "rows of logits that exist at once")
      .at_least(1)
      .at_most(base::kMaxCount);
  options
      .option(
          recompute_granularity, "recompute-granularity", memory,
          "full: run --recompute-num-layers blocks twice; none: keep all activations; auto: as --activation-bytes asks")
      .one_of({"auto", "none", "full"})
      .does_not_affect_results();
  options.option(recompute_num_layers, "recompute-num-layers", memory, "blocks that are run twice; 0 with full: all")
      .at_least(0)
      .at_most(base::kMaxCount)
      .does_not_affect_results();
  options.option(activation_bytes, "activation-bytes", memory, "memory for kept activations; 0: no limit")
      .at_least(0)
      .at_most(base::kMaxBytes)
      .does_not_affect_results();
}

void OptimizerOptions::check() const {
  TANDEM_USER_CHECK(min_lr == 0.0 || lr_decay_style != "constant",
                    fmt::format("--min-lr {}: --lr-decay-style constant never decays to it; give linear or cosine, or "
                                "leave --min-lr out",
                                min_lr));
}

int64_t OptimizerOptions::recompute_layers(int64_t num_layers) const {
  TANDEM_USER_CHECK(recompute_granularity == "full" || recompute_num_layers == 0,
                    fmt::format("--recompute-num-layers {}: needs --recompute-granularity full", recompute_num_layers));
  TANDEM_USER_CHECK(
      recompute_num_layers <= num_layers,
      fmt::format("--recompute-num-layers {}: the model has {} layers", recompute_num_layers, num_layers));
  if (recompute_granularity == "none") return 0;
  if (recompute_granularity == "auto") return -1;
  return recompute_num_layers == 0 ? num_layers : recompute_num_layers;
}

}  // namespace tandem::config
