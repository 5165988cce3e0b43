// Schedules end with the run unless told otherwise, and what contradicts itself is refused with its flag.
#include "config/optimizer_options.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/base/thrown.h"

namespace tandem::config {
namespace {

TEST(OptimizerOptions, ADecayBeginsAfterItsWarmupAndEndsWithTheRun) {
  OptimizerOptions options;
  options.schedule.warmup_steps = 10;
  EXPECT_EQ(options.run_schedule(5).decay_steps, 5) << "a constant rate has no decay that could be too short";
  options.schedule.decay_style = "cosine";
  EXPECT_EQ(options.run_schedule(11).decay_steps, 11);
  EXPECT_EQ(base::thrown_by([&] { options.run_schedule(10); }),
            "--lr-warmup-iters 10: --lr-decay-style cosine falls after it, until the run ends after 10 optimizer steps "
            "(--num-rollout, --num-epoch); lower it, or make the run longer");
  options.schedule.decay_steps = 10;
  EXPECT_EQ(base::thrown_by([&] { options.run_schedule(11); }),
            "--lr-decay-iters 10 must exceed --lr-warmup-iters 10 when --lr-decay-style is cosine");
  options.schedule.decay_steps = 40;
  EXPECT_EQ(options.run_schedule(11).decay_steps, 40);
}

TEST(OptimizerOptions, TheLowestRateNeedsADecayFromAHigherOne) {
  OptimizerOptions options;
  options.schedule.max_lr = 1e-6;
  options.schedule.min_lr = 1e-7;
  EXPECT_TRUE(base::thrown_by([&] { options.check(); }).starts_with("--min-lr 1e-07: --lr-decay-style constant"));
  options.schedule.decay_style = "linear";
  EXPECT_EQ(base::thrown_by([&] { options.check(); }), "");
  options.schedule.min_lr = 1e-5;
  EXPECT_TRUE(base::thrown_by([&] { options.check(); }).starts_with("--min-lr 1e-05: is above --lr 1e-06"));
}

TEST(OptimizerOptions, AWsdDecayHasItsOwnLength) {
  OptimizerOptions options;
  options.schedule.decay_style = "WSD";
  EXPECT_EQ(base::thrown_by([&] { options.check(); }),
            "--lr-decay-style WSD: needs --lr-wsd-decay-iters, the optimizer steps over which the rate falls");
  options.schedule.wsd_decay_steps = 5;
  EXPECT_EQ(base::thrown_by([&] { options.check(); }), "");
  EXPECT_EQ(options.run_schedule(5).decay_steps, 5);
  EXPECT_EQ(base::thrown_by([&] { options.run_schedule(4); }),
            "--lr-wsd-decay-iters 5: is more than the 4 optimizer steps up to the end of the run; lower it");
  options.schedule.decay_steps = 4;
  EXPECT_EQ(base::thrown_by([&] { options.run_schedule(9); }),
            "--lr-wsd-decay-iters 5: is more than the 4 optimizer steps up to the end of the decay (--lr-decay-iters); "
            "lower it");
  options.schedule.decay_style = "linear";
  EXPECT_EQ(base::thrown_by([&] { options.check(); }),
            "--lr-wsd-decay-iters 5: does nothing without --lr-decay-style WSD; give both");
}

TEST(OptimizerOptions, ABalanceLossIsThatOfEachSampleOfATrainedRouter) {
  OptimizerOptions options;
  options.router.balancing_type = "aux_loss";
  EXPECT_EQ(base::thrown_by([&] { options.check(); }), "") << "recipes name it with the coefficient 0";
  options.router.aux_loss_coeff = 1e-3;
  for (const char* type : {"aux_loss", "global_aux_loss"}) {
    options.router.balancing_type = type;
    EXPECT_TRUE(base::thrown_by([&] {
                  options.check();
                }).starts_with(std::string("--moe-router-load-balancing-type ") + type + ": the gradient would"));
    EXPECT_NE(base::thrown_by([&] { options.check(); }).find("give seq_aux_loss"), std::string::npos);
  }
  options.router.balancing_type = "none";
  EXPECT_TRUE(base::thrown_by([&] { options.check(); }).starts_with("--moe-aux-loss-coeff 0.001: does nothing with"));
  options.router.balancing_type = "seq_aux_loss";
  EXPECT_EQ(base::thrown_by([&] { options.check(); }), "");
  options.freeze_moe_router = true;
  EXPECT_TRUE(
      base::thrown_by([&] { options.check(); }).starts_with("--moe-aux-loss-coeff 0.001: balances routers, which"));
}

TEST(OptimizerOptions, LayersAreRecomputedAsTold) {
  OptimizerOptions options;
  EXPECT_EQ(options.recompute_layers(28), -1) << "auto: as many as --activation-bytes asks for";
  options.recompute_granularity = "none";
  EXPECT_EQ(options.recompute_layers(28), 0);
  options.recompute_num_layers = 3;
  EXPECT_EQ(base::thrown_by([&] { options.recompute_layers(28); }),
            "--recompute-num-layers 3: needs --recompute-granularity full; give it, or leave this one out");
  options.recompute_granularity = "full";
  EXPECT_EQ(options.recompute_layers(28), 3);
  EXPECT_EQ(base::thrown_by([&] { options.recompute_layers(2); }),
            "--recompute-num-layers 3: the model has 2 layers; give 2 or fewer, or leave it out to recompute all");
  options.recompute_num_layers = 0;
  EXPECT_EQ(options.recompute_layers(28), 28) << "0: all of them";
}

}  // namespace
}  // namespace tandem::config
