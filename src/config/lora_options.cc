#include "config/lora_options.h"

#include "base/check.h"

namespace tandem::config {

void LoraOptions::visit(options::Options& options) {
  const char* const group = "LoRA";
  options
      .option(
          rank, "lora-rank", group,
          "train a LoRA adapter of this rank, and leave the weights of --hf-checkpoint as they are; unset: train all "
          "weights")
      .at_least(1)
      .at_most(1 << 20);
  options
      .option(alpha, "lora-alpha", group,
              "alpha of LoRA: what an adapter adds is scaled by alpha / --lora-rank; unset: 16")
      .greater_than(0.0)
      .at_most(1e6);
  options.option(use_rslora, "use-rslora", group,
                 "divide --lora-alpha by the square root of --lora-rank, and not by the rank itself (rank-stabilised "
                 "LoRA): what an adapter adds does not get smaller as the rank grows");
  options
      .option(target_modules, "target-modules", group,
              "modules that get an adapter: all-linear, which leaves out the experts of a sparse model, or names like "
              "q_proj,v_proj; unset: all-linear")
      .one_or_more();
  options
      .option(modules_to_save, "modules-to-save", group,
              "modules that are trained whole next to the adapter and saved with it, like embed_tokens,lm_head; unset: "
              "none")
      .one_or_more();
  options
      .option(dropout, "lora-dropout", group,
              "share of the inputs of each adapter that a training step drops, multiplying the others by 1 / (1 - "
              "share); sampling, scoring and evaluation drop none; unset: 0, or that of the adapter that is trained on")
      .at_least(0.0)
      .less_than(1.0);
}

void LoraOptions::check() const {
  TANDEM_USER_CHECK(rank || !alpha, "--lora-alpha: needs --lora-rank, without which all weights are trained");
  TANDEM_USER_CHECK(rank || !use_rslora, "--use-rslora: needs --lora-rank, without which all weights are trained");
  TANDEM_USER_CHECK(rank || !dropout, "--lora-dropout: needs --lora-rank, without which all weights are trained");
  TANDEM_USER_CHECK(rank || target_modules.empty(),
                    "--target-modules: needs --lora-rank, without which all weights are trained");
  TANDEM_USER_CHECK(rank || modules_to_save.empty(),
                    "--modules-to-save: needs --lora-rank, without which all weights are trained");
}

}  // namespace tandem::config
