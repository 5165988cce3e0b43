// Draws rollouts from a seed: rewards, lengths, endings and advantages of a run that learns, for learning_health_test.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "rl/advantages.h"
#include "rl/learning_health.h"
#include "rl/losses.h"
#include "rl/sample.h"

namespace tandem::rl {

// Holds the parameters of a run. A test changes the one that it breaks.
struct SimulatedRun {
  explicit SimulatedRun(uint64_t seed) : random(seed) {
    const char* const estimators[] = {"grpo", "gspo", "rloo", "reinforce_plus_plus"};
    loss.advantage_estimator = estimators[draw(0, 3)];
    num_groups = draw(1, 16);
    num_per_group = draw(2, 8);
    num_groups = std::max(num_groups, (4 + num_per_group - 1) / num_per_group);
    accuracy = 0.2 + 0.01 * static_cast<double>(draw(0, 60));
    truncated_share = 0.01 * static_cast<double>(draw(0, 25));
    empty_share = 0.01 * static_cast<double>(draw(0, 2));
    graded_by_length = draw(0, 3) == 0;
    response_tokens = int64_t{1} << draw(4, 6);
    num_rollouts = draw(20, 60);
    steps_per_rollout = draw(1, 2);
    warmup_steps = draw(0, 10);
    decays = draw(0, 1) == 1;
    settings.grader = "--rm-type math";
    if (!graded_by_length) settings.lowest_reward = 0.0;
    settings.compares_group = find_estimator(loss).needs_group;
    settings.max_response_tokens = response_tokens;
    settings.eos_token_ids = "2";
    settings.num_prompts_read = 1000;
    settings.num_prompts_dropped = draw(0, 9);
    settings.lr = 1e-6;
    settings.lr_warmup_steps = warmup_steps;
    settings.num_steps = num_rollouts * steps_per_rollout;
  }

  int64_t draw(int64_t lowest, int64_t highest) {
    return std::uniform_int_distribution<int64_t>(lowest, highest)(random);
  }
  double uniform() { return std::uniform_real_distribution<double>()(random); }

  // Makes rollouts so large that two of them are evidence.
  void make_large_enough() {
    while (num_groups * num_per_group < 12) ++num_groups;
  }

  Sample sample(uint64_t group, double group_accuracy) {
    Sample result;
    result.group_id = group;
    result.prompt = make_prompt({1, 2, 3});
    const bool is_truncated = uniform() < truncated_share;
    const bool is_empty = !is_truncated && uniform() < empty_share;
    const int64_t length = is_truncated ? response_tokens : is_empty ? 1 : draw(4, response_tokens - 1);
    for (int64_t i = 0; i < length; ++i) result.completion.push_back(static_cast<int32_t>(draw(3, 500)));
    if (!is_truncated) result.completion.back() = 2;
    for (int64_t i = is_empty ? length : 0; i < length; ++i) {
      result.text += std::to_string(result.completion[static_cast<size_t>(i)]) + " ";
    }
    result.status = is_truncated ? SampleStatus::kTruncated : SampleStatus::kCompleted;
    result.loss_mask.assign(result.completion.size(), 1);
    result.reward = !is_truncated && uniform() < group_accuracy ? 1.0 : 0.0;
    if (graded_by_length) result.reward = static_cast<double>(length) / static_cast<double>(response_tokens);
    return result;
  }

  // Draws a rollout of a model that gets better: prompts differ, and all of them become easier.
  std::vector<Sample> rollout(int64_t index) {
    std::vector<Sample> samples;
    const double progress = static_cast<double>(index) / static_cast<double>(num_rollouts);
    for (int64_t g = 0; g < num_groups; ++g) {
      const double here = accuracy + (0.9 - accuracy) * progress;
      const double group_accuracy = std::clamp(here + 0.4 * (uniform() - 0.5), 0.05, 0.98);
      for (int64_t i = 0; i < num_per_group; ++i) {
        samples.push_back(sample(static_cast<uint64_t>(index * num_groups + g), group_accuracy));
      }
    }
    return samples;
  }

  double learning_rate(int64_t step) const {
    if (warmup_steps > 0 && step <= warmup_steps)
      return settings.lr * static_cast<double>(step) / static_cast<double>(warmup_steps);
    const double left = static_cast<double>(settings.num_steps - step) / static_cast<double>(settings.num_steps);
    return decays ? settings.lr * left : settings.lr;
  }

  std::mt19937_64 random;
  LossConfig loss;
  HealthSettings settings;
  int64_t num_groups, num_per_group, response_tokens, num_rollouts, steps_per_rollout, warmup_steps;
  double accuracy, truncated_share, empty_share;
  bool graded_by_length, decays;
};

}  // namespace tandem::rl
