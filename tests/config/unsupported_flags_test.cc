// Flags of other trainers are refused with the reason.
#include "config/unsupported_flags.h"

#include <gtest/gtest.h>

#include "base/options.h"
#include "config/train_config.h"
#include "tandem/error.h"

namespace tandem::config {
namespace {

TEST(UnsupportedFlags, AreRefusedWithTheirReason) {
  TrainConfig config;
  base::Options options;
  config.visit(options);
  options.require_only({});
  for (const UnsupportedFlag& flag : unsupported_flags()) options.unsupported(flag.name, flag.reason);
  for (const char* name : {"tensor-model-parallel-size", "vllm-gpu-memory-utilization", "sglang-mem-fraction-static",
                           "use-wandb", "partial-rollout", "lora-rank", "offload-rollout"}) {
    try {
      options.parse({std::string("--") + name, "2"});
      FAIL() << name << " was accepted";
    } catch (const UserError& error) {
      EXPECT_NE(std::string(error.what()).find(find_unsupported_flag(name)->reason), std::string::npos) << error.what();
    }
  }
}

TEST(UnsupportedFlags, NameNothingThatTandemHas) {
  TrainConfig config;
  base::Options options;
  config.visit(options);
  const std::string text = options.config_text();
  for (const UnsupportedFlag& flag : unsupported_flags()) {
    EXPECT_EQ(text.find("\n" + std::string(flag.name) + " ="), std::string::npos) << flag.name;
  }
}

TEST(UnsupportedFlags, ValuesThatAskForNothingAreHarmless) {
  EXPECT_TRUE(is_harmless(*find_unsupported_flag("tensor-model-parallel-size"), "1"));
  EXPECT_FALSE(is_harmless(*find_unsupported_flag("tensor-model-parallel-size"), "2"));
  EXPECT_FALSE(is_harmless(*find_unsupported_flag("tensor-model-parallel-size"), std::nullopt));
  EXPECT_TRUE(is_harmless(*find_unsupported_flag("bf16"), std::nullopt));
  EXPECT_FALSE(is_harmless(*find_unsupported_flag("fp16"), std::nullopt));
  EXPECT_TRUE(is_harmless(*find_unsupported_flag("log-interval"), "1"));
  EXPECT_FALSE(is_harmless(*find_unsupported_flag("log-interval"), "100"));
  EXPECT_TRUE(is_harmless(*find_unsupported_flag("rollout-global-dataset"), std::nullopt));
  EXPECT_FALSE(is_harmless(*find_unsupported_flag("ckpt-format"), "torch_dist"));
  EXPECT_FALSE(is_harmless(*find_unsupported_flag("no-save-optim"), std::nullopt)) << "it is saved";
  EXPECT_TRUE(is_harmless(*find_unsupported_flag("lambd"), "1.0"));
  EXPECT_FALSE(is_harmless(*find_unsupported_flag("lambd"), "0.95"));
  EXPECT_EQ(find_unsupported_flag("lr"), nullptr);
  EXPECT_EQ(find_unsupported_flag("custom-rm-path"), find_unsupported_flag("custom-anything"));
}

// "1 is accepted" is said where it is true.
TEST(UnsupportedFlags, ReasonsThatNameAnAcceptedValueAreTrue) {
  for (const UnsupportedFlag& flag : unsupported_flags()) {
    if (std::string(flag.reason).find("(1 is accepted)") == std::string::npos) continue;
    EXPECT_TRUE(is_harmless(flag, "1")) << flag.name;
  }
}

}  // namespace
}  // namespace tandem::config
