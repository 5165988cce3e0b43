// Checks that what a run is told when it does not learn speaks of this run's own flags, model and data.
#include "run/health_settings.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace tandem::run {
namespace {

using Change = std::function<void(config::TrainConfig&)>;

class HealthSettingsTest : public testing::Test {
 protected:
  HealthSettingsTest() {
    config_.reward.rm_type = {"exact"};
    config_.rollout_batch_size = 3;
    config_.rollout.n_samples_per_prompt = 4;
    config_.global_batch_size = 6;  // two optimizer steps for each rollout
    model_.eos_token_ids = {473, 471};
    prompts_.prompts.resize(5);
  }

  // Returns the settings of 8 optimizer steps, after a change of the flags.
  rl::HealthSettings settings(const Change& change = {}) const {
    config::TrainConfig changed = config_;
    if (change) change(changed);
    return signal_settings(changed, model_, prompts_, /*num_rollouts=*/4, /*num_steps=*/8);
  }

  config::TrainConfig config_;
  model::ModelConfig model_;
  session::PromptSet prompts_;
};

TEST_F(HealthSettingsTest, CountStepsAndRollouts) {
  const rl::HealthSettings found = settings([](config::TrainConfig& config) {
    config.optimizer.schedule.max_lr = 3e-6;
    config.optimizer.schedule.warmup_steps = 5;
  });
  EXPECT_EQ(found.lr, 3e-6);
  EXPECT_EQ(found.lr_warmup_steps, 5);
  EXPECT_EQ(found.num_steps, 8);
  EXPECT_EQ(found.num_rollouts, 4);
}

TEST_F(HealthSettingsTest, NameTheGraderAsTheUserGaveIt) {
  EXPECT_EQ(settings().grader, "--rm-type exact");
  EXPECT_EQ(settings().lowest_reward, 0.0);
  const Change use_function = [](config::TrainConfig& config) {
    config.reward.rm_type.clear();
    config.reward.custom_rm_path = {"reward.py:reward"};
  };
  EXPECT_EQ(settings(use_function).grader, "--custom-rm-path reward.py:reward");
  EXPECT_FALSE(settings(use_function).lowest_reward.has_value()) << "a function may give anything";
  const rl::HealthSettings generated =
      settings([](config::TrainConfig& config) { config.custom_generate.function = "agent.py:run"; });
  EXPECT_EQ(generated.grader, "--rm-type exact") << "where it failed no function did";
  EXPECT_EQ(generated.generate, "--custom-generate-function-path agent.py:run");
}

TEST_F(HealthSettingsTest, KnowAServiceThatGradesAlone) {
  EXPECT_FALSE(settings().asks_service);
  EXPECT_TRUE(settings([](auto& config) { config.reward.rm_type = {"remote_rm"}; }).asks_service);
  EXPECT_FALSE(settings([](auto& config) { config.reward.rm_type = {"remote_rm", "exact"}; }).asks_service);
}

TEST_F(HealthSettingsTest, KnowWhetherTheContextMayCut) {
  model::ModelConfig model = model_;
  model.max_positions = 100;
  session::PromptSet prompts = prompts_;
  prompts.longest_tokens = 36;
  config::TrainConfig config = config_;
  config.rollout.max_response_len = 64;
  EXPECT_FALSE(signal_settings(config, model, prompts, 4, 8).context_may_cut);
  config.rollout.max_response_len = 65;
  EXPECT_TRUE(signal_settings(config, model, prompts, 4, 8).context_may_cut);
  config.rollout.max_response_len = 64;
  config.rollout.max_context_len = 99;
  EXPECT_TRUE(signal_settings(config, model, prompts, 4, 8).context_may_cut);
}

TEST_F(HealthSettingsTest, KnowTheRewardThatIsZeroAndTheFunctionThatMayCut) {
  EXPECT_FALSE(settings().gives_only_zero);
  EXPECT_EQ(settings().generate, "");
  const Change use_none = [](config::TrainConfig& config) { config.reward.rm_type = {"none"}; };
  EXPECT_TRUE(settings(use_none).gives_only_zero);
  const rl::HealthSettings with_function = settings([&](config::TrainConfig& config) {
    use_none(config);
    config.custom_generate.function = "agent.py:run";
  });
  EXPECT_FALSE(with_function.gives_only_zero) << "the function may give a reward";
  EXPECT_EQ(with_function.generate, "--custom-generate-function-path agent.py:run");
}

TEST_F(HealthSettingsTest, SayWhetherASamplesAdvantageDependsOnItsGroup) {
  EXPECT_TRUE(settings().compares_group);
  EXPECT_FALSE(settings([](auto& config) { config.loss.loss.disable_rewards_normalization = true; }).compares_group);
  EXPECT_FALSE(settings([](auto& config) { config.loss.loss.advantage_estimator = "reinforce"; }).compares_group);
}

TEST_F(HealthSettingsTest, SayWhatChangesRewards) {
  EXPECT_FALSE(settings().has_penalties);
  EXPECT_TRUE(settings([](auto& config) { config.loss.loss.kl_coef = 0.1; }).has_penalties);
  EXPECT_TRUE(settings([](auto& config) { config.loss.loss.overlong_buffer_tokens = 8; }).has_penalties);
}

TEST_F(HealthSettingsTest, SayWhatCanEndACompletion) {
  EXPECT_TRUE(settings().can_stop);
  EXPECT_EQ(settings().eos_token_ids, "473, 471");
  EXPECT_FALSE(settings().has_stop_texts);
  model_.eos_token_ids.clear();
  EXPECT_FALSE(settings().can_stop);
  EXPECT_TRUE(settings([](auto& config) { config.rollout.stop_token_ids = {7}; }).can_stop);
  const rl::HealthSettings with_text = settings([](auto& config) { config.rollout.stop = {"\n"}; });
  EXPECT_TRUE(with_text.can_stop);
  EXPECT_TRUE(with_text.has_stop_texts);
  const rl::HealthSettings cut = settings([](auto& config) {
    config.rollout.ignore_eos = true;
    config.rollout.max_response_len = 12;
    config.rollout.temperature = 0.7;
  });
  EXPECT_TRUE(cut.ignore_eos);
  EXPECT_EQ(cut.max_response_tokens, 12);
  EXPECT_EQ(cut.temperature, 0.7);
}

TEST_F(HealthSettingsTest, SayWhetherTheUserTurnedTheHeaderOfTheAnswerOff) {
  const Change turn_off = [](config::TrainConfig& config) {
    config.data.apply_chat_template_kwargs = R"({"add_generation_prompt": false})";
  };
  EXPECT_TRUE(settings(turn_off).template_opens_answer);
  EXPECT_FALSE(settings(turn_off).template_told_not_to) << "the template opens the answer all the same";
  prompts_.template_opens_answer = false;
  EXPECT_TRUE(settings(turn_off).template_told_not_to);
  EXPECT_FALSE(settings().template_opens_answer);
  EXPECT_FALSE(settings().template_told_not_to) << "the template is to blame";
}

TEST_F(HealthSettingsTest, CountPromptsThatWereTooLong) {
  prompts_.num_too_long = 2;
  EXPECT_EQ(settings().num_prompts_dropped, 2);
  EXPECT_EQ(settings().num_prompts_read, 7);
}

TEST_F(HealthSettingsTest, NameTheFilterOfDynamicSampling) {
  EXPECT_EQ(settings().filter, "");
  EXPECT_FALSE(settings().has_filter_budget);
  const rl::HealthSettings filtered = settings([](config::TrainConfig& config) {
    config.dynamic_sampling.filter_path = "nonzero_std";
    config.dynamic_sampling.max_sampled_groups = 12;
  });
  EXPECT_EQ(filtered.filter, "nonzero_std");
  EXPECT_TRUE(filtered.has_filter_budget);
}

TEST_F(HealthSettingsTest, OfARunWithoutRolloutsAreItsLearningRateAlone) {
  config::OptimizerOptions optimizer;
  optimizer.schedule.max_lr = 2e-5;
  optimizer.schedule.warmup_steps = 1;
  const rl::HealthSettings found = signal_settings(optimizer, /*num_steps=*/9);
  EXPECT_EQ(found.lr, 2e-5);
  EXPECT_EQ(found.lr_warmup_steps, 1);
  EXPECT_EQ(found.num_steps, 9);
  EXPECT_EQ(found.num_rollouts, 0);
  EXPECT_EQ(found.grader, "");
}

}  // namespace
}  // namespace tandem::run
