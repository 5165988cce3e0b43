// Checks the half of a run that learns: graded samples in, new weights out.
#include "run/learning/learner.h"

#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <cmath>

#include "checkpoint/checkpoints.h"
#include "report/sample_file.h"
#include "sampling/rollout_file.h"
#include "tests/run/small_run.h"
#include "trainer/score.h"

namespace tandem::run {
namespace {

// Returns a rollout as it comes from the engine, with rewards that differ within each group.
sampling::Rollout graded() {
  sampling::Rollout rollout;
  for (int64_t i = 0; i < kSmallPrompts * kSmallCompletions; ++i) {
    rl::Sample sample;
    sample.sample_id = static_cast<uint64_t>(i);
    sample.group_id = static_cast<uint64_t>(i / kSmallCompletions);
    sample.prompt = i % kSmallCompletions == 0 ? rl::make_prompt({1, 2, 3}) : rollout.samples.back().prompt;
    sample.completion = {static_cast<int32_t>(4 + i % 7), 5, static_cast<int32_t>(6 + i % 5)};
    sample.loss_mask = {1, 1, 1};
    sample.rollout_logprobs = {-1.0F, -2.0F, -3.0F};
    sample.reward = static_cast<double>(i % kSmallCompletions);
    sample.has_reward = true;
    rollout.grades.emplace_back();
    rollout.grades.back().sample_id = sample.sample_id;
    rollout.grades.back().reward = sample.reward;
    rollout.samples.push_back(std::move(sample));
  }
  return rollout;
}

void use_kl(config::TrainConfig& config, bool is_offloaded) {
  config.loss.use_kl_loss = true;
  config.loss.loss.kl_loss_coef = 0.1;
  config.model.dtype = "float32";
  config.memory.offload_reference = is_offloaded;
  config.memory.offload_optimizer = is_offloaded;
}

std::optional<report::Metrics> learn(SmallRun& run, Learner& learner, int64_t rollout_id,
                                     sampling::Rollout rollout = graded()) {
  const checkpoint::RunState start;
  Patience patience(
      run.inputs().config.checkpoints, run.inputs().directory,
      [&run] { return run.inputs().session.describe_not_finite(); }, start);
  run.memory().enter(memory::Phase::kTrain);
  learner.score_reference(rollout, run.log());
  learner.assign_advantages(rollout_id, rollout, run.log());
  const std::optional<report::Metrics> last = learner.optimizer_steps(rollout_id, rollout, patience, run.log());
  learner.update_reference(rollout_id + 1, run.log());
  return last;
}

using Logprobs = std::vector<std::vector<float>>;

Logprobs reference_scores(SmallRun& run, Learner& learner) {
  sampling::Rollout rollout = graded();
  run.memory().enter(memory::Phase::kTrain);
  learner.score_reference(rollout, run.log());
  Logprobs scores;
  for (const rl::Sample& sample : rollout.samples) scores.push_back(sample.ref_logprobs);
  return scores;
}

Logprobs policy_scores(SmallRun& run) {
  const sampling::Rollout rollout = graded();
  run.memory().enter(memory::Phase::kTrain);
  const std::unique_ptr<model::Model> model = run.inputs().session.make_model();
  return trainer::score(*model, rollout.views(), run.inputs().trainer.batch, run.inputs().trainer.temperature).logprobs;
}

void renew_reference(config::TrainConfig& config, bool is_offloaded, const std::string& dtype) {
  config.loss.loss.kl_coef = 0.1;
  config.loss.ref_update_interval = 2;
  config.model.dtype = dtype;
  config.memory.offload_reference = is_offloaded;
}

at::Tensor some_weight(SmallRun& run) { return run.inputs().session.view()["layers.0.qkv"]; }

TEST(Learner, MakesTheOptimizerStepsOfARollout) {
  SmallRun run;
  Learner learner(run.inputs(), run.memory());
  const at::Tensor before = some_weight(run).clone();
  const uint64_t version = run.inputs().session.trained().version();
  learner.trainer().restore({.updates = 2, .steps = 2});
  const std::optional<report::Metrics> last = learn(run, learner, /*rollout_id=*/1);
  ASSERT_TRUE(last.has_value());
  EXPECT_FALSE(at::equal(some_weight(run), before));
  EXPECT_EQ(run.inputs().session.trained().version(), version + 2);
  const std::vector<base::Json> records = run.records("train/step");
  ASSERT_EQ(records.size(), 2U);
  EXPECT_EQ(records[0]["train/step"], 2);
  EXPECT_EQ(records[1]["train/step"], 3);
  EXPECT_EQ(records[1]["train/loss"], last->at("train/loss"));
  const report::Metrics rollout = run.log().take();
  EXPECT_EQ(rollout.at("rollout/raw_reward"), 1.5);
  EXPECT_TRUE(rollout.contains("perf/actor_train_time"));
}

// Earlier rollouts may have had another number of steps.
TEST(Learner, NumbersStepsFromThoseThatTheCheckpointCounts) {
  SmallRun run;
  Learner learner(run.inputs(), run.memory());
  learner.trainer().restore({.updates = 6, .steps = 7});
  ASSERT_TRUE(learn(run, learner, /*rollout_id=*/1).has_value());
  const std::vector<base::Json> records = run.records("train/step");
  ASSERT_EQ(records.size(), 2U);
  EXPECT_EQ(records[0]["train/step"], 7);
  EXPECT_EQ(records[1]["train/step"], 8);
}

TEST(Learner, ComparesWithTheWeightsThatTheRunBeganWith) {
  std::vector<std::vector<float>> logprobs;
  for (const bool is_offloaded : {false, true}) {
    SmallRun run([&](config::TrainConfig& config) { use_kl(config, is_offloaded); });
    Learner learner(run.inputs(), run.memory());
    for (int64_t rollout_id = 0; rollout_id < 2; ++rollout_id) {
      sampling::Rollout rollout = graded();
      run.memory().enter(memory::Phase::kTrain);
      learner.score_reference(rollout, run.log());
      logprobs.push_back(rollout.samples.front().ref_logprobs);
      ASSERT_EQ(logprobs.back().size(), 3U);
      EXPECT_EQ(logprobs.back(), logprobs.front()) << "the weights have changed, the reference has not";
      ASSERT_TRUE(learn(run, learner, rollout_id).has_value());
    }
  }
}

TEST(Learner, TheReferenceBecomesThePolicyEveryInterval) {
  for (const bool is_offloaded : {false, true}) {
    SmallRun run([&](config::TrainConfig& config) { renew_reference(config, is_offloaded, "bfloat16"); });
    Learner learner(run.inputs(), run.memory());
    const Logprobs start = reference_scores(run, learner);
    EXPECT_EQ(start, policy_scores(run));
    ASSERT_TRUE(learn(run, learner, 0).has_value());
    EXPECT_EQ(reference_scores(run, learner), start) << "not after the first rollout";
    EXPECT_FALSE(run.log().take().contains("perf/ref_model_update_time"));
    ASSERT_TRUE(learn(run, learner, 1).has_value());
    const Logprobs renewed = reference_scores(run, learner);
    EXPECT_NE(renewed, start);
    EXPECT_EQ(renewed, policy_scores(run)) << "the policy behind the second";
    EXPECT_TRUE(run.log().take().contains("perf/ref_model_update_time"));
    ASSERT_TRUE(learn(run, learner, 2).has_value());
    EXPECT_EQ(reference_scores(run, learner), renewed) << "and not the policy of later";
  }
}

TEST(Learner, ACheckpointBringsTheReferenceBack) {
  for (const std::string dtype : {"float32", "bfloat16"}) {
    const base::TemporaryDirectory folder;
    const checkpoint::Checkpoints checkpoints(folder / "run");
    base::make_directories(checkpoints.folder());
    Logprobs scores;
    {
      SmallRun run([&](config::TrainConfig& config) { renew_reference(config, false, dtype); });
      Learner learner(run.inputs(), run.memory());
      checkpoint::RunState state;
      std::vector<checkpoint::SavedTensor> tensors;
      learner.save(state, tensors);
      EXPECT_EQ(state.reference_step, 0);
      EXPECT_TRUE(tensors.empty()) << "it is that of --hf-checkpoint still";
      for (int64_t rollout_id = 0; rollout_id < 3; ++rollout_id) {
        ASSERT_TRUE(learn(run, learner, rollout_id).has_value());
      }
      state.step = 3;
      learner.save(state, tensors);
      EXPECT_EQ(state.reference_step, 2);
      scores = reference_scores(run, learner);
      checkpoints.save(3, state.to_json(), tensors);
      checkpoints.save(4,
                       [&] {
                         state.step = 4;
                         return state.to_json();
                       }(),
                       {});
    }
    for (const bool is_offloaded : {false, true}) {
      SmallRun run([&](config::TrainConfig& config) { renew_reference(config, is_offloaded, dtype); });
      run.inputs().checkpoint.emplace(checkpoints.open(3));
      Learner learner(run.inputs(), run.memory());
      EXPECT_EQ(reference_scores(run, learner), scores) << dtype << is_offloaded;
      EXPECT_NE(policy_scores(run), scores) << "the policy is the checkpoint's other part";
      checkpoint::RunState state;
      std::vector<checkpoint::SavedTensor> tensors;
      learner.save(state, tensors);
      EXPECT_EQ(state.reference_step, 2) << "the next checkpoint holds it too";
      EXPECT_FALSE(tensors.empty());
      run.inputs().checkpoint.emplace(checkpoints.open(4));  // the checkpoint names a reference and holds none
      EXPECT_THROW(Learner(run.inputs(), run.memory()), UserError);
    }
  }
}

// Returns graded samples of the run's weights, which are version 5 from now on, with the log-probs that they have.
sampling::Rollout sampled_by_version_5(SmallRun& run, const Logprobs& policy) {
  run.inputs().session.trained().set_version(5);
  sampling::Rollout rollout = graded();
  rollout.is_sampled = true;
  for (size_t i = 0; i < rollout.samples.size(); ++i) {
    rollout.samples[i].rollout_logprobs = policy[i];
    rollout.samples[i].versions = {{.begin = 0, .version = 5}};
  }
  return rollout;
}

// The weights that are trained are those before the first of the two steps: both compare with their log-probs, which
// need a forward only for samples that older weights began.
TEST(Learner, ProximalLogProbsAreThoseBeforeTheFirstStep) {
  for (const bool has_older : {false, true}) {
    SmallRun run([](config::TrainConfig& config) {
      config.loss.loss.old_logprobs = "proximal";
      config.loss.loss.use_tis = true;
    });
    Learner learner(run.inputs(), run.memory());
    const Logprobs policy = policy_scores(run);
    sampling::Rollout rollout = sampled_by_version_5(run, policy);
    for (size_t i = 1; has_older && i < rollout.samples.size(); i += 2) {
      rl::Sample& sample = rollout.samples[i];
      sample.versions = {{.begin = 0, .version = 4}, {.begin = 2, .version = 5}};
      for (size_t t = 0; t < 2; ++t) sample.rollout_logprobs[t] -= 0.5F;
    }
    const checkpoint::RunState start;
    Patience patience(
        run.inputs().config.checkpoints, run.inputs().directory,
        [&run] { return run.inputs().session.describe_not_finite(); }, start);
    learner.assign_advantages(0, rollout, run.log());
    ASSERT_TRUE(learner.optimizer_steps(0, rollout, patience, run.log()).has_value());
    for (size_t i = 0; i < policy.size(); ++i) EXPECT_EQ(rollout.samples[i].proximal_logprobs, policy[i]) << i;
    EXPECT_EQ(run.log().take().contains("perf/log_probs_time"), has_older);
    const std::vector<base::Json> steps = run.records("train/step");
    ASSERT_EQ(steps.size(), 2U);
    EXPECT_EQ(steps[0].at("train/ppo_kl"), 0.0);
    EXPECT_NE(steps[1].at("train/ppo_kl"), 0.0);
    for (const base::Json& step : steps) {
      // Two of three tokens of every second sample have the weight exp(0.5).
      EXPECT_NEAR(step.at("train/tis").get<double>(), has_older ? 1.0 + (std::exp(0.5) - 1.0) / 3.0 : 1.0, 1e-6);
      EXPECT_EQ(step.contains("train/on_policy_token_share"), has_older);
      if (has_older) {
        EXPECT_NEAR(step.at("train/on_policy_token_share").get<double>(), 2.0 / 3.0, 1e-12);
      }
    }
    EXPECT_EQ(steps[0].contains("train/on_policy_logprob_abs_diff"), has_older);
    if (has_older) {
      EXPECT_EQ(steps[0].at("train/on_policy_logprob_abs_diff"), 0.0);
    }
    EXPECT_FALSE(steps[1].contains("train/on_policy_logprob_abs_diff"));
  }
}

// slime masks these tokens as it samples: means, whitening and the KL of the reward leave them out.
TEST(Learner, TokensOfOlderWeightsCountAsIfTheirLossMaskWereZero) {
  std::vector<report::Metrics> rollouts;
  std::vector<std::vector<base::Json>> steps;
  std::vector<std::vector<float>> weights;
  for (const bool has_flag : {true, false}) {
    SmallRun run([&](config::TrainConfig& config) {
      config.async.partial_rollout = true;
      config.loss.loss.mask_off_policy = has_flag;
      config.loss.loss.normalize_advantages = true;
      config.loss.loss.entropy_coef = 0.01;
      config.loss.loss.kl_coef = 0.1;
    });
    Learner learner(run.inputs(), run.memory());
    sampling::Rollout rollout = sampled_by_version_5(run, policy_scores(run));
    for (size_t i = 1; i < rollout.samples.size(); i += 2) {
      rl::Sample& sample = rollout.samples[i];
      sample.versions = {{.begin = 0, .version = 4}};  // all of its tokens are older, or all but the last
      const size_t num_older = i == 1 ? 3 : 2;
      if (num_older == 2) sample.versions.push_back({.begin = 2, .version = 5});
      for (size_t t = 0; t < num_older; ++t) {
        sample.rollout_logprobs[t] -= 0.5F;
        if (!has_flag) sample.loss_mask[t] = 0;
      }
    }
    learner.mask_older_tokens(rollout);
    ASSERT_TRUE(learn(run, learner, 0, rollout).has_value());
    report::Metrics& metrics = rollouts.emplace_back(run.log().take());
    std::erase_if(metrics, [](const auto& entry) { return entry.first.starts_with("perf/"); });
    for (base::Json& record : steps.emplace_back(run.records("train/step"))) record.erase("time_s");
    const at::Tensor weight = some_weight(run).to(at::kFloat).flatten();
    weights.emplace_back(weight.const_data_ptr<float>(), weight.const_data_ptr<float>() + weight.numel());
  }
  EXPECT_EQ(rollouts[0], rollouts[1]);
  EXPECT_EQ(steps[0], steps[1]);
  EXPECT_EQ(weights[0], weights[1]);
  EXPECT_FALSE(steps[0].at(0).contains("train/on_policy_token_share")) << "all that is left is on policy";
  EXPECT_LT(rollouts[0].at("rollout/response_len/mean"), rollouts[0].at("rollout/response_lengths"));
}

TEST(Learner, EpochsOverARolloutAreTheSameStepsAgain) {
  std::vector<std::vector<float>> weights;
  for (const int64_t epochs : {int64_t{1}, int64_t{3}}) {
    SmallRun run([&](config::TrainConfig& config) { config.num_epochs_per_rollout = epochs; });
    Learner learner(run.inputs(), run.memory());
    for (int64_t rollout_id = 0; rollout_id < 3 / epochs; ++rollout_id) {
      ASSERT_TRUE(learn(run, learner, rollout_id).has_value());
    }
    const std::vector<base::Json> records = run.records("train/step");
    ASSERT_EQ(records.size(), 6U);
    for (size_t i = 0; i < records.size(); ++i) EXPECT_EQ(records[i]["train/step"], i);
    const at::Tensor weight = some_weight(run).to(at::kFloat);
    weights.emplace_back(weight.const_data_ptr<float>(), weight.const_data_ptr<float>() + weight.numel());
  }
  EXPECT_EQ(weights[0], weights[1]) << "three rollouts of the same samples, or one of three epochs";
}

TEST(Learner, CompletionsThatWereCutHaveNoPartInTheLoss) {
  SmallRun run([](config::TrainConfig& config) { config.loss.loss.mask_truncated_completions = true; });
  Learner learner(run.inputs(), run.memory());
  sampling::Rollout rollout = graded();
  for (rl::Sample& sample : rollout.samples) sample.status = rl::SampleStatus::kTruncated;
  const at::Tensor before = some_weight(run).clone();
  ASSERT_TRUE(learn(run, learner, 0, std::move(rollout)).has_value());
  EXPECT_TRUE(at::equal(some_weight(run), before));
  const report::Metrics metrics = run.log().take();
  EXPECT_EQ(metrics.at("rollout/truncated_masked"), kSmallPrompts * kSmallCompletions);
  EXPECT_EQ(metrics.at("rollout/removed"), kSmallPrompts * kSmallCompletions);
}

// Samples share their group's prompt in the file's rollout too, so they are packed and summed in the same order.
TEST(Learner, ARolloutReadFromItsFileTrainsToTheSameBits) {
  const base::TemporaryDirectory folder;
  const sampling::Rollout written = graded();
  report::write_samples(folder / "0.jsonl", written.samples, written.grades, report::SampleDetail::kFull);
  std::vector<report::Metrics> metrics;
  std::vector<std::vector<float>> weights;
  for (const bool is_read : {false, true}) {
    SmallRun run;
    Learner learner(run.inputs(), run.memory());
    const sampling::RolloutBounds bounds = {.num_samples = kSmallPrompts * kSmallCompletions,
                                            .vocab = run.inputs().session.config().vocab,
                                            .context_tokens = run.inputs().plan.context_tokens};
    sampling::Rollout rollout = is_read ? sampling::read_rollout(folder / "0.jsonl", bounds) : graded();
    EXPECT_TRUE(rl::share_prompt(rollout.samples[0], rollout.samples[1]));
    EXPECT_FALSE(rl::share_prompt(rollout.samples[kSmallCompletions - 1], rollout.samples[kSmallCompletions]));
    metrics.push_back(learn(run, learner, 0, std::move(rollout)).value());
    const at::Tensor weight = some_weight(run).to(at::kFloat);
    weights.emplace_back(weight.const_data_ptr<float>(), weight.const_data_ptr<float>() + weight.numel());
  }
  EXPECT_EQ(metrics[0], metrics[1]);
  EXPECT_EQ(weights[0], weights[1]);
}

TEST(Learner, AnAbandonedStepReturnsNothingAndChangesNothing) {
  // No signal has come, which counts as 0 seconds ago.
  SmallRun run([](config::TrainConfig& config) { config.checkpoints.stop_grace_seconds = -1.0; });
  Learner learner(run.inputs(), run.memory());
  const at::Tensor before = some_weight(run).clone();
  EXPECT_FALSE(learn(run, learner, 0).has_value());
  EXPECT_TRUE(at::equal(some_weight(run), before));
}

}  // namespace
}  // namespace tandem::run
