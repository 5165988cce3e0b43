// Flags of other trainers are refused with the reason.
#include "config/other_trainers/unsupported_flags.h"

#include <gtest/gtest.h>

#include <regex>
#include <sstream>

#include "base/files.h"
#include "base/json.h"
#include "config/train_config.h"
#include "options/options.h"
#include "tandem/error.h"

namespace tandem::config {
namespace {

TEST(UnsupportedFlags, AreRefusedWithTheirReason) {
  TrainConfig config;
  options::Options options;
  config.visit(options);
  options.require_only({});
  for (const UnsupportedFlag& flag : unsupported_flags()) options.unsupported(flag.name, flag.reason);
  for (const char* name : {"pipeline-model-parallel-size", "vllm-gpu-memory-utilization", "sglang-mem-fraction-static",
                           "wandb-key", "lora-type", "offload-rollout"}) {
    const UnsupportedFlag* const flag = find_unsupported_flag(name);
    ASSERT_NE(flag, nullptr) << name;
    try {
      options.parse({std::string("--") + name, "2"});
      FAIL() << name << " was accepted";
    } catch (const UserError& error) {
      EXPECT_NE(std::string(error.what()).find(flag->reason), std::string::npos) << error.what();
    }
  }
}

TEST(UnsupportedFlags, NameNothingThatTandemHas) {
  TrainConfig config;
  options::Options options;
  config.visit(options);
  const std::string text = options.config_text();
  for (const UnsupportedFlag& flag : unsupported_flags()) {
    EXPECT_EQ(text.find("\n" + std::string(flag.name) + " ="), std::string::npos) << flag.name;
  }
}

// slime_flags.txt holds every flag that slime/utils/arguments.py declares (THUDM/slime 624b824a, 21 August 2026,
// version 0.3.1). A user who brings a command of slime gets an answer for each flag, never that there is no such flag.
TEST(UnsupportedFlags, EveryFlagOfSlimeIsOursOrHasItsReason) {
  TrainConfig config;
  options::Options options;
  config.visit(options);
  const base::Json ours = options.values();
  std::istringstream names(base::read_file("tests/config/slime_flags.txt"));
  int num_names = 0;
  for (std::string name; std::getline(names, name); ++num_names) {
    const UnsupportedFlag* const refused = find_unsupported_flag(name);
    EXPECT_TRUE(ours.contains(name) || (refused != nullptr && refused->reason[0] != '\0')) << name;
  }
  EXPECT_EQ(num_names, 223);
  EXPECT_FALSE(ours.contains("no-such-flag") || find_unsupported_flag("no-such-flag") != nullptr);
}

TEST(UnsupportedFlags, ValuesThatAskForNothingAreHarmless) {
  EXPECT_TRUE(is_harmless(*find_unsupported_flag("pipeline-model-parallel-size"), "1"));
  EXPECT_FALSE(is_harmless(*find_unsupported_flag("pipeline-model-parallel-size"), "2"));
  EXPECT_FALSE(is_harmless(*find_unsupported_flag("pipeline-model-parallel-size"), std::nullopt));
  EXPECT_TRUE(is_harmless(*find_unsupported_flag("bf16"), std::nullopt));
  EXPECT_FALSE(is_harmless(*find_unsupported_flag("fp16"), std::nullopt));
  EXPECT_TRUE(is_harmless(*find_unsupported_flag("log-interval"), "1"));
  EXPECT_FALSE(is_harmless(*find_unsupported_flag("log-interval"), "100"));
  EXPECT_TRUE(is_harmless(*find_unsupported_flag("rollout-global-dataset"), std::nullopt));
  EXPECT_FALSE(is_harmless(*find_unsupported_flag("ckpt-format"), "torch_dist"));
  EXPECT_FALSE(is_harmless(*find_unsupported_flag("no-save-optim"), std::nullopt)) << "it is saved";
  EXPECT_TRUE(is_harmless(*find_unsupported_flag("lambd"), "1.0"));
  EXPECT_FALSE(is_harmless(*find_unsupported_flag("lambd"), "0.95"));
  EXPECT_TRUE(is_harmless(*find_unsupported_flag("recompute-method"), "block"));
  EXPECT_FALSE(is_harmless(*find_unsupported_flag("recompute-method"), "uniform")) << "its 1 is every layer";
  EXPECT_EQ(find_unsupported_flag("lr"), nullptr);
  EXPECT_EQ(find_unsupported_flag("custom-rm-path"), find_unsupported_flag("custom-anything"));
}

// "(1 is accepted)" stands only where it is true.
TEST(UnsupportedFlags, ReasonsThatNameAnAcceptedValueAreTrue) {
  static const std::regex kAccepted(R"(\((\w+) is accepted\))");
  int num_named = 0;
  for (const UnsupportedFlag& flag : unsupported_flags()) {
    std::cmatch named;
    if (!std::regex_search(flag.reason, named, kAccepted)) continue;
    ++num_named;
    EXPECT_TRUE(is_harmless(flag, named[1].str())) << flag.name << " " << named[1];
  }
  EXPECT_EQ(num_named, 10);
}

// A row with a '*' hides those below it.
TEST(UnsupportedFlags, EveryRowIsFoundByItsName) {
  for (const UnsupportedFlag& flag : unsupported_flags())
    EXPECT_EQ(find_unsupported_flag(flag.name), &flag) << flag.name;
}

// Other trainers do by default, when weights are sent, what Tandem always does.
TEST(UnsupportedFlags, HowWeightsAreSentAnywayIsAccepted) {
  const std::vector<std::string> accepted = {"--update-weights-interval", "1",    "--update-weight-mode=full",
                                             "--update-weight-transport", "nccl", "--check-weight-update-equal",
                                             "--use-fault-tolerance"};
  EXPECT_TRUE(without_harmless_flags(accepted).empty());
  const std::vector<std::string> refused = {
      "--update-weights-interval", "2", "--update-weight-mode=delta", "--update-weight-transport", "disk",
      "--update-weight-disk-dir",  "/x"};
  EXPECT_EQ(without_harmless_flags(refused), refused);
}

}  // namespace
}  // namespace tandem::config
