// Checks what a training run knows before it reads a weight or writes a byte.
#include "run/train_inputs.h"

#include <gtest/gtest.h>

#include "tandem/error.h"
#include "tests/run/small_run.h"

namespace tandem::run {
namespace {

TEST(TrainInputs, WritesNothing) {
  const base::TemporaryDirectory folder;
  config::TrainConfig config = small_config(folder);
  config.num_rollout.reset();
  config.num_epoch = 3;
  const TrainInputs inputs(config, {});
  EXPECT_EQ(inputs.num_rollouts, 3 * static_cast<int64_t>(inputs.prompts.prompts.size()) / kSmallPrompts);
  EXPECT_GT(inputs.plan.kv_cache_bytes, 0);
  EXPECT_FALSE(inputs.checkpoint.has_value());
  EXPECT_TRUE(inputs.result_inputs.contains("the file of --prompt-data"));
  EXPECT_EQ(inputs.reward_context().output_path, config.output.save + "/grader_output.txt");
  EXPECT_EQ(print_dry_run(inputs), 0);
  EXPECT_FALSE(base::directory_exists(config.output.save));
}

TEST(TrainInputs, RefusesWhatIsWrongBeforeAnythingIsWritten) {
  const base::TemporaryDirectory folder;
  const std::vector<std::pair<std::string, std::function<void(config::TrainConfig&)>>> mistakes = {
      {"--colocate", [](config::TrainConfig& config) { config.colocate = false; }},
      {"--custom-rm-path",
       [&](config::TrainConfig& config) { config.reward.custom_rm_path = {folder / "gone.py:reward"}; }},
      {"--rollout-stop-token-ids", [](config::TrainConfig& config) { config.rollout.stop_token_ids = {1 << 20}; }},
      {"--save-debug-rollout-data", [](config::TrainConfig& config) { config.output.save_debug_rollout_data = "one"; }},
      {"--load", [&](config::TrainConfig& config) { config.checkpoints.load = folder / "no_run"; }},
      {"--device-memory-bytes", [](config::TrainConfig& config) { config.memory.device_memory_bytes = 1 << 20; }},
  };
  for (const auto& [says, mistake] : mistakes) {
    config::TrainConfig config = small_config(folder);
    mistake(config);
    try {
      const TrainInputs inputs(config, {});
      ADD_FAILURE() << says << " was not refused";
    } catch (const UserError& error) {
      EXPECT_NE(std::string(error.what()).find(says), std::string::npos) << error.what();
    }
    EXPECT_FALSE(base::directory_exists(config.output.save)) << says;
  }
}

}  // namespace
}  // namespace tandem::run
