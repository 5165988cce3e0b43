// Tests of a step's promises whatever the model: independence of the split, the same bits with and without
// recomputation, exactness of its log-probs, and the treatment of samples and steps that are unusable.
#include "trainer/trainer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <random>

#include "tandem/error.h"
#include "tests/trainer/fixture.h"
#include "trainer/policy_loss.h"
#include "trainer/score.h"
#include "trainer/trainer_plan.h"

namespace tandem::trainer {
namespace {

TrainerConfig all_terms() {
  TrainerConfig config;
  config.schedule.max_lr = 1e-2;
  config.temperature = 0.8;
  config.loss.kl_loss_coef = 0.05;
  config.loss.kl_loss_type = "low_var_kl";
  config.loss.entropy_coef = 0.01;
  return config;
}

struct Outcome {
  Metrics metrics;
  std::map<std::string, at::Tensor> gradients, weights;
};

// Takes one step of a fresh small model.
Outcome one_step(const TrainerConfig& config, const std::vector<rl::Sample>& samples, at::ScalarType dtype = at::kFloat,
                 const device::Ops& ops = test_ops()) {
  TestModel m = make_small_model(dtype, /*tied=*/true, ops);
  const std::unique_ptr<Trainer> trainer = make_trainer(config, *m.store, *m.model);
  Outcome outcome;
  outcome.metrics = trainer->step(pointers(samples));
  outcome.gradients = gradients(*trainer, *m.store);
  for (const auto& packed : m.store->layout().tensors) {
    outcome.weights[packed.name] = m.store->tensor(packed.name).clone();
  }
  return outcome;
}

void expect_same_bits(const std::map<std::string, at::Tensor>& a, const std::map<std::string, at::Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a) EXPECT_TRUE(tensor.equal(b.at(name))) << name;
}

std::vector<std::vector<float>> logprobs_of(const std::vector<rl::Sample>& samples, at::ScalarType dtype,
                                            const BatchConfig& batch = {}) {
  const TestModel m = make_small_model(dtype, /*tied=*/true, test_ops());
  return score(*m.model, pointers(samples), batch, all_terms().temperature).logprobs;
}

// Returns the same samples as groups of one: every completion with its own copy of the prompt.
std::vector<rl::Sample> unshared(std::vector<rl::Sample> samples) {
  for (size_t s = 0; s < samples.size(); ++s) samples[s].group_id = s;
  return samples;
}

TEST(Trainer, GradientDoesNotDependOnTheSplit) {
  for (uint32_t seed : {1, 2, 3}) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const std::vector<rl::Sample> samples = random_samples(seed, 4, 3);
    const Outcome whole = one_step(all_terms(), samples);
    for (const auto& [max_tokens, chunk_rows] : {std::pair{1, 1024}, {90, 1024}, {8192, 7}, {150, 16}}) {
      SCOPED_TRACE(testing::Message() << max_tokens << " tokens, " << chunk_rows << " rows");
      TrainerConfig config = all_terms();
      config.batch.max_tokens_per_gpu = max_tokens;
      config.batch.logprob_chunk_rows = chunk_rows;
      const Outcome split = one_step(config, samples);
      // These are float32 sums in another order; the largest gradient is the scale.
      EXPECT_LT(relative_difference(split.gradients, whole.gradients), 3e-6);
      for (const auto& [name, value] : whole.metrics) {
        EXPECT_NEAR(split.metrics.at(name), value, 1e-6 * std::max(1.0, std::abs(value))) << name;
      }
    }
  }
}

TrainerConfig choosing(const std::string& surrogate) {
  TrainerConfig config = all_terms();
  config.seed = 9;
  config.loss.pg_loss_type = surrogate;
  config.loss.clip_cov_ratio = 0.2;
  config.loss.clip_cov_lb = -1.0;
  config.loss.kl_cov_ratio = 0.3;
  config.loss.kl_cov_coef = 1.0;
  if (surrogate == "ppo") config.loss.top_entropy_quantile = 0.3;
  return config;
}

// The tokens are chosen among all of the step: metrics of the loss have the same bits for any packing.
TEST(Trainer, ChosenTokensDoNotDependOnTheSplit) {
  for (const char* surrogate : {"clip_cov", "kl_cov", "ppo"}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      SCOPED_TRACE(testing::Message() << surrogate << " " << dtype);
      const std::vector<rl::Sample> samples = random_samples(17, 4, 3);
      const Outcome whole = one_step(choosing(surrogate), samples, dtype);
      for (const int64_t max_tokens : {1, 60, 150}) {
        TrainerConfig config = choosing(surrogate);
        config.batch.max_tokens_per_gpu = max_tokens;
        config.batch.logprob_chunk_rows = 7;
        const Outcome split = one_step(config, samples, dtype);
        for (const char* name : {"loss", "pg_loss", "pg_clipfrac", "entropy"}) {
          EXPECT_EQ(split.metrics.at(name), whole.metrics.at(name)) << name;
        }
        if (dtype == at::kFloat) {
          EXPECT_LT(relative_difference(split.gradients, whole.gradients), 3e-6);
        }
      }
      TrainerConfig plain = choosing(surrogate);
      plain.loss.pg_loss_type = "ppo";
      plain.loss.top_entropy_quantile = 1.0;
      EXPECT_NE(one_step(plain, samples, dtype).metrics.at("pg_loss"), whole.metrics.at("pg_loss"));
    }
  }
}

// A step with chosen tokens is a step over constant weights, or penalties, that are made from a pass before it.
TEST(Trainer, AStepChoosesByTheLogProbsAndEntropiesOfItsOwnWeights) {
  std::vector<rl::Sample> samples = random_samples(18, 4, 3);
  const TestModel m = make_small_model(at::kFloat, /*tied=*/true, test_ops());
  const Scores scores = score(*m.model, pointers(samples), {}, all_terms().temperature);
  for (const char* surrogate : {"clip_cov", "ppo"}) {
    const bool is_by_entropy = std::string(surrogate) == "ppo";
    TrainerConfig config = choosing(surrogate);
    const double entropy_coef = config.loss.entropy_coef;
    if (is_by_entropy) config.loss.entropy_coef = 0.0;
    const TokenChoices choices =
        choose_tokens(config.loss, pointers(samples), scores, {.seed = config.seed, .step = 0});
    int64_t num_out = 0, num_trained = 0;
    double entropy_of_others = 0.0;
    std::vector<rl::Sample> without = samples;
    for (size_t s = 0; s < samples.size(); ++s) {
      const rl::TokenChoice& choice = choices.at(&samples[s]);
      const std::vector<uint8_t>& out = choice.covariant.empty() ? choice.low_entropy : choice.covariant;
      for (size_t t = 0; t < out.size(); ++t) {
        num_trained += samples[s].is_trained(t) ? 1 : 0;
        num_out += out[t];
        if (samples[s].is_trained(t) && out[t] == 0) entropy_of_others += double{scores.entropy[s][t]};
        if (out[t] != 0) without[s].advantages[t] = 0.0;  // without a policy term; its KL and entropy stay
      }
    }
    ASSERT_GT(num_out, 0);
    TrainerConfig plain = config;
    plain.loss.pg_loss_type = "ppo";
    plain.loss.top_entropy_quantile = 1.0;
    const Outcome chosen = one_step(config, samples), expected = one_step(plain, without);
    expect_same_bits(chosen.gradients, expected.gradients);
    EXPECT_EQ(chosen.metrics.at("loss"), expected.metrics.at("loss"));
    const char* const metric = is_by_entropy ? "low_entropy_frac" : "clip_cov_frac";
    EXPECT_DOUBLE_EQ(chosen.metrics.at(metric), static_cast<double>(num_out) / static_cast<double>(num_trained));
    if (!is_by_entropy) continue;
    // The entropy bonus is the mean over the tokens that keep a policy term.
    const double bonus = entropy_coef * entropy_of_others / static_cast<double>(num_trained - num_out);
    ASSERT_GT(bonus, 0.0);
    EXPECT_NEAR(one_step(choosing(surrogate), samples).metrics.at("loss"), chosen.metrics.at("loss") - bonus, 1e-6);
  }
}

// The sum is ((0 + first) + second) + ..., each computed as if it were the only one of its step.
TEST(Trainer, MicroBatchesAreComputedByThemselvesAndAddedInTheirOrder) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    TrainerConfig config = all_terms();
    config.loss.loss_aggregation = "token-sum";  // this aggregation has no scale
    config.loss.entropy_coef = 0.0;              // its mean would be over all tokens of the step
    config.batch.max_tokens_per_gpu = 90;
    const std::vector<rl::Sample> samples = random_samples(1, 4, 3);
    const auto micro_batches = rl::split_into_micro_batches(pointers(samples), config.batch.split());
    ASSERT_GT(micro_batches.size(), 2U);
    std::map<std::string, at::Tensor> sum;
    for (const rl::MicroBatch& members : micro_batches) {
      std::vector<rl::Sample> alone;
      for (const int64_t s : members.samples) alone.push_back(samples[static_cast<size_t>(s)]);
      for (const auto& [name, gradient] : one_step(config, alone, dtype).gradients) {
        const auto [found, is_first] = sum.try_emplace(name, gradient);
        if (!is_first) found->second = found->second.add(gradient);
      }
    }
    expect_same_bits(one_step(config, samples, dtype).gradients, sum);
  }
}

TEST(Trainer, SharedPromptsChangeNoLogProbAndNoGradient) {
  for (uint32_t seed : {4, 5, 6}) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const std::vector<rl::Sample> samples = random_samples(seed, 3, 4);
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      EXPECT_EQ(logprobs_of(samples, dtype), logprobs_of(unshared(samples), dtype));
    }
    const Outcome shared = one_step(all_terms(), samples), separate = one_step(all_terms(), unshared(samples));
    EXPECT_EQ(shared.metrics.at("loss"), separate.metrics.at("loss"));
    EXPECT_LT(relative_difference(shared.gradients, separate.gradients), 3e-6);
  }
}

TEST(Trainer, LogProbsDoNotDependOnTheBatch) {
  for (uint32_t seed : {7, 8}) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const std::vector<rl::Sample> samples = random_samples(seed, 5, 2);
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      const std::vector<std::vector<float>> whole = logprobs_of(samples, dtype);
      EXPECT_EQ(logprobs_of(samples, dtype, {.max_tokens_per_gpu = 1}), whole);
      EXPECT_EQ(logprobs_of(samples, dtype, {.logprob_chunk_rows = 3}), whole);
      for (size_t s = 0; s < samples.size(); ++s) {
        ASSERT_EQ(whole[s].size(), samples[s].completion.size());
        EXPECT_EQ(logprobs_of({samples[s]}, dtype)[0], whole[s]);
      }
    }
  }
}

TEST(Trainer, RecomputedBlocksGiveTheSameBits) {
  const std::vector<rl::Sample> samples = random_samples(9, 3, 3);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const Outcome kept = one_step(all_terms(), samples, dtype);
    for (const auto& [recompute_layers, activation_bytes] : {std::pair{1, 0}, {3, 0}, {-1, 1}}) {
      SCOPED_TRACE(testing::Message() << recompute_layers << " layers");
      TrainerConfig config = all_terms();
      config.recompute_layers = recompute_layers;
      config.batch.activation_bytes = activation_bytes;
      expect_same_bits(one_step(config, samples, dtype).gradients, kept.gradients);
    }
  }
}

TEST(Trainer, RunsABlockAgainOnlyWhereItsGraphWasDropped) {
  const std::vector<rl::Sample> samples = random_samples(10, 3, 3);
  const auto block_runs = [&](int64_t recompute_layers, int64_t activation_bytes) {
    TestModel m = make_small_model(at::kFloat, true, test_ops());
    WatchedModel watched(*m.model);
    TrainerConfig config = all_terms();
    config.recompute_layers = recompute_layers;
    config.batch.activation_bytes = activation_bytes;
    make_trainer(config, *m.store, watched)->step(pointers(samples));
    return watched.num_block_runs();
  };
  EXPECT_EQ(block_runs(0, 0), 3);
  EXPECT_EQ(block_runs(2, 0), 3 + 2);
  EXPECT_EQ(block_runs(-1, 0), 3) << "no limit";
  EXPECT_EQ(block_runs(-1, 1), 3 + 3) << "a limit that nothing fits";
}

TEST(Trainer, LogitsOfAWholeBatchNeverExist) {
  const std::vector<rl::Sample> samples = random_samples(11, 4, 4);
  int64_t num_targets = 0;
  for (const rl::Sample& sample : samples) num_targets += static_cast<int64_t>(sample.completion.size());
  ASSERT_GT(num_targets, 100);
  const auto run = [&](int64_t chunk_rows) {
    TestModel m = make_small_model(at::kFloat, true, test_ops());
    WatchedModel watched(*m.model);
    TrainerConfig config = all_terms();
    config.batch.logprob_chunk_rows = chunk_rows;
    make_trainer(config, *m.store, watched)->step(pointers(samples));
    EXPECT_LE(watched.max_live_logit_rows(), chunk_rows);
    return watched.num_logit_rows();
  };
  EXPECT_EQ(run(10), 2 * num_targets) << "computed again in backward";
  EXPECT_EQ(run(100000), num_targets) << "kept: they fit one chunk";
}

TEST(Trainer, ReportsDifferenceZeroForItsOwnLogProbs) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    std::vector<rl::Sample> samples = random_samples(12, 4, 3);
    const std::vector<std::vector<float>> logprobs = logprobs_of(samples, dtype);
    for (size_t s = 0; s < samples.size(); ++s) samples[s].rollout_logprobs = logprobs[s];
    TestModel m = make_small_model(dtype, true, test_ops());
    TrainerConfig config = all_terms();
    config.loss.get_mismatch_metrics = true;
    config.batch.max_tokens_per_gpu = 77;
    const std::unique_ptr<Trainer> trainer = make_trainer(config, *m.store, *m.model);
    const Metrics first = trainer->step(pointers(samples));
    EXPECT_EQ(first.at("train_rollout_logprob_abs_diff"), 0.0);
    EXPECT_EQ(first.at("recomputed_logprob_abs_diff"), 0.0);
    EXPECT_EQ(first.at("ppo_kl"), 0.0);
    const Metrics second = trainer->step(pointers(samples));
    EXPECT_GT(second.at("train_rollout_logprob_abs_diff"), 1e-5) << "the weights have moved";
    EXPECT_EQ(second.at("recomputed_logprob_abs_diff"), second.at("train_rollout_logprob_abs_diff"));
  }
}

// The gradient may be taken after the log-probs or from those that the samples bring: it has the same bits, and logits
// are computed once.
TEST(Trainer, KnownLogProbsGiveTheSameBitsAndLogitsOnce) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    std::vector<rl::Sample> samples = random_samples(13, 4, 3);
    const std::vector<std::vector<float>> logprobs = logprobs_of(samples, dtype);
    int64_t num_targets = 0;
    for (size_t s = 0; s < samples.size(); ++s) {
      samples[s].rollout_logprobs = logprobs[s];
      num_targets += static_cast<int64_t>(samples[s].completion.size());
    }
    std::map<std::string, at::Tensor> afterwards;
    Metrics metrics;
    for (const auto of : {RolloutLogprobs::kOfOtherWeights, RolloutLogprobs::kOfTheseWeights}) {
      TestModel m = make_small_model(dtype, true, test_ops());
      WatchedModel watched(*m.model);
      TrainerConfig config = all_terms();
      config.batch.max_tokens_per_gpu = 77;
      config.batch.logprob_chunk_rows = 10;
      const std::unique_ptr<Trainer> trainer = make_trainer(config, *m.store, watched);
      const Metrics got = trainer->step(pointers(samples), of);
      if (of == RolloutLogprobs::kOfOtherWeights) {
        EXPECT_GT(watched.num_logit_rows(), num_targets);
        afterwards = gradients(*trainer, *m.store);
        metrics = got;
        continue;
      }
      EXPECT_EQ(watched.num_logit_rows(), num_targets);
      EXPECT_EQ(got, metrics);
      expect_same_bits(gradients(*trainer, *m.store), afterwards);
    }
  }
}

// In a rollout's first step Clip-Cov needs no pass of its own: the samples bring the log-probs, which are the same
// bits.
TEST(Trainer, KnownLogProbsChooseTheSameTokensWithoutAPass) {
  std::vector<rl::Sample> samples = random_samples(13, 4, 3);
  const std::vector<std::vector<float>> logprobs = logprobs_of(samples, at::kFloat);
  int64_t num_targets = 0;
  for (size_t s = 0; s < samples.size(); ++s) {
    samples[s].rollout_logprobs = logprobs[s];
    num_targets += static_cast<int64_t>(samples[s].completion.size());
  }
  std::map<std::string, at::Tensor> scored;
  Metrics metrics;
  for (const auto of : {RolloutLogprobs::kOfOtherWeights, RolloutLogprobs::kOfTheseWeights}) {
    TestModel m = make_small_model(at::kFloat, true, test_ops());
    WatchedModel watched(*m.model);
    const std::unique_ptr<Trainer> trainer = make_trainer(choosing("clip_cov"), *m.store, watched);
    const Metrics got = trainer->step(pointers(samples), of);
    EXPECT_GT(got.at("clip_cov_frac"), 0.0);
    if (of == RolloutLogprobs::kOfOtherWeights) {
      EXPECT_GE(watched.num_logit_rows(), 2 * num_targets);
      scored = gradients(*trainer, *m.store);
      metrics = got;
      continue;
    }
    EXPECT_EQ(watched.num_logit_rows(), num_targets);
    EXPECT_EQ(got, metrics);
    expect_same_bits(gradients(*trainer, *m.store), scored);
  }
}

// Samples that other weights sampled, wholly or at first, lie among samples of these weights: known and computed
// gradients have the same bits together too, and the newest tokens have the trainer's own log-probs.
TEST(Trainer, SamplesOfSeveralVersionsTrainTogether) {
  std::vector<rl::Sample> samples = random_samples(13, 4, 3);
  const std::vector<std::vector<float>> logprobs = logprobs_of(samples, at::kFloat);
  int64_t num_targets = 0;
  for (size_t s = 0; s < samples.size(); ++s) {
    rl::Sample& sample = samples[s];
    const size_t length = sample.completion.size(), begin = s < 6 ? 0 : (s < 9 ? length / 2 : length);
    num_targets += static_cast<int64_t>(length);
    for (size_t t = begin; t < length; ++t) sample.rollout_logprobs[t] = logprobs[s][t];
    sample.versions = {{.begin = 0, .version = s < 6 ? 7U : 6U}};
    if (s >= 6 && s < 9) sample.versions.push_back({.begin = static_cast<int64_t>(begin), .version = 7});
  }
  for (const char* old : {"rollout", "proximal"}) {
    std::map<std::string, at::Tensor> afterwards;
    Metrics metrics;
    for (const auto of : {RolloutLogprobs::kOfOtherWeights, RolloutLogprobs::kOfTheseWeights}) {
      TestModel m = make_small_model(at::kFloat, true, test_ops());
      WatchedModel watched(*m.model);
      TrainerConfig config = all_terms();
      config.loss.old_logprobs = old;
      config.batch.max_tokens_per_gpu = 77;
      config.batch.logprob_chunk_rows = 10;
      const std::unique_ptr<Trainer> trainer = make_trainer(config, *m.store, watched);
      Metrics got = trainer->step(pointers(samples), of, /*version=*/7);
      EXPECT_GT(got.at("train_rollout_logprob_abs_diff"), 0.0);
      EXPECT_GT(got.at("on_policy_token_share"), 0.4);
      EXPECT_LT(got.at("on_policy_token_share"), 0.9);
      if (of == RolloutLogprobs::kOfOtherWeights) {
        EXPECT_EQ(watched.num_logit_rows(), 2 * num_targets);
        afterwards = gradients(*trainer, *m.store);
        metrics = got;
        continue;
      }
      EXPECT_LT(watched.num_logit_rows(), 2 * num_targets) << "those of the newest samples are known";
      EXPECT_EQ(got.at("on_policy_logprob_abs_diff"), 0.0);
      got.erase("on_policy_logprob_abs_diff");
      EXPECT_EQ(got, metrics);
      expect_same_bits(gradients(*trainer, *m.store), afterwards);
      if (std::string(old) == "proximal") {
        EXPECT_EQ(got.at("ppo_kl"), 0.0) << "the ratio is 1";
      }
    }
  }
}

TEST(Trainer, DoesNotDependOnTheNumberOfThreads) {
  const std::vector<rl::Sample> samples = random_samples(13, 4, 4);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const Outcome two = one_step(all_terms(), samples, dtype);
    const std::unique_ptr<device::Ops> single = device::make_cpu_ops("auto", 1);
    const Outcome one = one_step(all_terms(), samples, dtype, *single);
    expect_same_bits(one.weights, two.weights);
    EXPECT_EQ(one.metrics, two.metrics);
  }
}

TEST(Trainer, Bfloat16GradientsFollowFloat32) {
  const std::vector<rl::Sample> samples = random_samples(14, 4, 4);
  const Outcome bfloat16 = one_step(all_terms(), samples, at::kBFloat16), float32 = one_step(all_terms(), samples);
  double difference = 0, norm = 0;
  for (const auto& [name, gradient] : float32.gradients) {
    difference += bfloat16.gradients.at(name).sub(gradient).square().sum().item<double>();
    norm += gradient.square().sum().item<double>();
  }
  // The error is 2^-8 for each of some forty roundings on the way, and for the weights.
  EXPECT_LT(std::sqrt(difference / norm), 0.1);
}

TEST(Trainer, ARemovedSampleCountsButHasNoGradient) {
  std::vector<rl::Sample> samples = random_samples(15, 2, 2);
  std::vector<rl::Sample> others(samples.begin(), samples.end() - 1);
  samples.back().remove = true;
  TrainerConfig config = all_terms();
  config.loss.entropy_coef = 0.0;  // its mean is over the tokens that are trained, so the removed ones do not count
  const Outcome with = one_step(config, samples), without = one_step(config, others);
  std::map<std::string, at::Tensor> scaled;
  for (const auto& [name, gradient] : without.gradients) scaled[name] = gradient.mul(3.0 / 4.0);
  EXPECT_LT(relative_difference(with.gradients, scaled), 3e-6);
}

TEST(Trainer, SamplesWithoutTokensAreHarmless) {
  std::vector<rl::Sample> samples = random_samples(16, 3, 2);
  const auto clear = [](rl::Sample& sample) {
    sample.completion.clear();
    sample.rollout_logprobs.clear();
    sample.ref_logprobs.clear();
    sample.loss_mask.clear();
    sample.advantages.clear();
  };
  clear(samples[1]);
  clear(samples[4]);
  clear(samples[5]);  // clears a whole group
  const Outcome outcome = one_step(all_terms(), samples);
  EXPECT_TRUE(std::isfinite(outcome.metrics.at("loss")));
  EXPECT_GT(outcome.metrics.at("grad_norm"), 0.0);
  for (const rl::Sample& sample : samples) {
    EXPECT_EQ(logprobs_of(samples, at::kFloat)[&sample - samples.data()].size(), sample.completion.size());
  }
}

TEST(Trainer, WithoutSignalOnlyTheDecayMovesWeightsWhereThatIsAskedFor) {
  std::vector<rl::Sample> samples = random_samples(17, 3, 3);
  for (rl::Sample& sample : samples) sample.advantages.assign(sample.completion.size(), 0.0);
  TrainerConfig config;
  config.schedule.max_lr = 1e-2;
  config.adamw.weight_decay = 0.1;
  config.gradient.skip_zero_gradient = false;
  const Outcome outcome = one_step(config, samples);
  EXPECT_EQ(outcome.metrics.at("grad_norm"), 0.0);
  EXPECT_EQ(outcome.metrics.at("zero_gradient"), 1.0);
  const TestModel fresh = make_small_model(at::kFloat, true, test_ops());
  for (const auto& packed : fresh.store->layout().tensors) {
    const double factor = packed.shape.size() == 2 ? 1.0 - 1e-3 : 1.0;
    EXPECT_TRUE(outcome.weights.at(packed.name).allclose(fresh.store->tensor(packed.name).mul(factor), 1e-6, 0.0));
  }
}

// After a step with signal, momentum and weight decay would keep moving the weights.
TEST(Trainer, AGradientOfZeroChangesNothingButTheStepCount) {
  std::vector<rl::Sample> samples = random_samples(17, 3, 3);
  std::vector<rl::Sample> silent = samples;
  for (rl::Sample& sample : silent) sample.advantages.assign(sample.completion.size(), 0.0);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    TestModel m = make_small_model(dtype, true, test_ops());
    TrainerConfig config;
    config.schedule.max_lr = 1e-2;
    const std::unique_ptr<Trainer> trainer = make_trainer(config, *m.store, *m.model);
    EXPECT_EQ(trainer->step(pointers(samples)).at("zero_gradient"), 0.0);
    std::map<std::string, at::Tensor> before;
    for (const auto& [name, tensor] : named_state(*trainer)) before[name] = tensor.clone();
    for (const auto& packed : m.store->layout().tensors) before[packed.name] = m.store->tensor(packed.name).clone();
    for (int64_t i = 1; i <= 3; ++i) {
      const Metrics metrics = trainer->step(pointers(silent));
      EXPECT_EQ(metrics.at("grad_norm"), 0.0);
      EXPECT_EQ(metrics.at("zero_gradient"), 1.0);
      EXPECT_EQ(metrics.at("step_skipped"), 0.0) << "nothing went wrong";
      EXPECT_EQ(trainer->progress(), (OptimizerProgress{.updates = 1, .steps = 1 + i}));
      EXPECT_EQ(m.store->version(), 1U);
      for (const auto& [name, tensor] : named_state(*trainer)) EXPECT_TRUE(tensor.equal(before.at(name))) << name;
      for (const auto& packed : m.store->layout().tensors) {
        EXPECT_TRUE(m.store->tensor(packed.name).equal(before.at(packed.name))) << packed.name;
      }
    }
    trainer->step(pointers(samples));
    EXPECT_EQ(m.store->version(), 2U);
  }
}

TEST(Trainer, ANonFiniteGradientStopsBeforeTheWeightsChange) {
  std::vector<rl::Sample> samples = random_samples(18, 2, 2);
  TestModel m = make_small_model(at::kFloat, true, test_ops());
  const std::unique_ptr<Trainer> trainer = make_trainer(all_terms(), *m.store, *m.model);
  const at::Tensor before = m.store->tensor("layers.0.qkv").clone();
  std::vector<rl::Sample> bad = samples;
  bad[0].advantages.assign(bad[0].completion.size(), NAN);
  bad[0].loss_mask.assign(bad[0].completion.size(), 1);
  EXPECT_EQ(trainer->step(pointers(bad)).at("step_skipped"), 1.0);
  EXPECT_TRUE(m.store->tensor("layers.0.qkv").equal(before));
  EXPECT_EQ(trainer->progress(), (OptimizerProgress{.updates = 0, .steps = 1}));
  EXPECT_EQ(m.store->version(), 0U);
  trainer->step(pointers(samples));
  EXPECT_TRUE(m.store->tensor("layers.0.qkv").isfinite().all().item<bool>());
  EXPECT_FALSE(m.store->tensor("layers.0.qkv").equal(before));
  EXPECT_EQ(m.store->version(), 1U);
}

// Whatever goes wrong in any sample, weights, masters and moments keep every bit, and healthy steps follow between.
TEST(Trainer, AStepThatGoesWrongChangesNoBit) {
  constexpr int kInjections = 1000;
  int num_wrong = 0;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    TestModel m = make_small_model(dtype, true, test_ops());
    TrainerConfig config = all_terms();
    config.gradient.max_grad_norm_skip = 1e4;
    const std::unique_ptr<Trainer> trainer = make_trainer(config, *m.store, *m.model);
    trainer->step(pointers(random_samples(30, 2, 2)));
    std::mt19937_64 random(31);
    for (int i = 0; num_wrong < (dtype == at::kFloat ? kInjections / 2 : kInjections); ++i) {
      SCOPED_TRACE("injection " + std::to_string(i));
      std::map<std::string, at::Tensor> before;
      for (const auto& [name, tensor] : named_state(*trainer)) before[name] = tensor.clone();
      for (const auto& packed : m.store->layout().tensors) before[packed.name] = m.store->tensor(packed.name).clone();
      const uint64_t version = m.store->version();
      const int64_t updates = trainer->progress().updates, steps = trainer->progress().steps;

      std::vector<rl::Sample> samples = random_samples(static_cast<uint32_t>(100 + i), 2, 2);
      rl::Sample& bad = samples[random() % samples.size()];
      bad.loss_mask.assign(bad.completion.size(), 1);
      bad.remove = false;
      const float values[] = {NAN, INFINITY, -INFINITY};
      const uint64_t kind = random() % 3;
      switch (kind) {
        case 0: bad.advantages.assign(bad.completion.size(), values[random() % 3]); break;
        case 1: bad.rollout_logprobs[random() % bad.completion.size()] = NAN; break;
        default: bad.advantages.assign(bad.completion.size(), random() % 2 == 0 ? 1e9 : -1e9);  // a spike
      }
      const Metrics metrics = trainer->step(pointers(samples));
      // A spike whose ratios the loss clips has no gradient: that step is healthy.
      if (kind == 2 && metrics.at("grad_norm") <= config.gradient.max_grad_norm_skip) {
        EXPECT_EQ(metrics.at("step_skipped"), 0.0);
        continue;
      }
      ++num_wrong;
      ASSERT_EQ(metrics.at("step_skipped"), 1.0) << "kind " << kind << ", norm " << metrics.at("grad_norm");
      for (const auto& [name, tensor] : named_state(*trainer)) ASSERT_TRUE(tensor.equal(before.at(name))) << name;
      for (const auto& packed : m.store->layout().tensors) {
        ASSERT_TRUE(m.store->tensor(packed.name).equal(before.at(packed.name))) << packed.name;
      }
      EXPECT_EQ(m.store->version(), version);
      EXPECT_EQ(trainer->progress(), (OptimizerProgress{.updates = updates, .steps = steps + 1}));
      if (i % 100 != 0) continue;
      EXPECT_EQ(trainer->step(pointers(random_samples(30, 2, 2))).at("step_skipped"), 0.0);
    }
  }
}

TEST(Trainer, ClipsToTheNormAndSaysSo) {
  const std::vector<rl::Sample> samples = random_samples(19, 2, 3);
  TrainerConfig config = all_terms();
  config.gradient.clip_grad = 0.0;
  const Outcome free = one_step(config, samples);
  EXPECT_EQ(free.metrics.at("grad_clipped"), 0.0);
  config.gradient.clip_grad = free.metrics.at("grad_norm") / 4;
  const Outcome clipped = one_step(config, samples);
  EXPECT_EQ(clipped.metrics.at("grad_clipped"), 1.0);
  EXPECT_EQ(clipped.metrics.at("grad_norm"), free.metrics.at("grad_norm")) << "reported before clipping";
  expect_same_bits(clipped.gradients, free.gradients);
}

TEST(Trainer, ARestoredTrainerTakesTheSameNextStep) {
  const std::vector<rl::Sample> first = random_samples(20, 2, 3), second = random_samples(21, 2, 3);
  TrainerConfig config = all_terms();
  config.schedule.decay_style = "cosine";
  config.schedule.decay_steps = 5;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    TestModel a = make_small_model(dtype, true, test_ops()), b = make_small_model(dtype, true, test_ops());
    const std::unique_ptr<Trainer> run = make_trainer(config, *a.store, *a.model);
    run->step(pointers(first));
    const std::unique_ptr<Trainer> resumed = make_trainer(config, *b.store, *b.model);
    for (const auto& [name, tensor] : named_state(*resumed)) tensor.copy_(named_state(*run).at(name));
    resumed->restore(run->progress());
    EXPECT_EQ(resumed->step(pointers(second)), run->step(pointers(second)));
    for (const auto& packed : a.store->layout().tensors) {
      EXPECT_TRUE(a.store->tensor(packed.name).equal(b.store->tensor(packed.name))) << packed.name;
    }
  }
}

// The order is the one in which checkpoint files have always held the state.
TEST(Trainer, StateIsOrderedByKindAndThenByName) {
  TestModel m = make_small_model(at::kBFloat16, true, test_ops());
  const std::unique_ptr<Trainer> trainer = make_trainer({}, *m.store, *m.model);
  std::vector<std::string> names, sorted;
  for (const auto& [kind, packed, tensor, row_begin] : trainer->state()) {
    names.push_back(std::string(to_string(kind)) + "." + packed->name);
    EXPECT_EQ(tensor.sizes().vec(), packed->shape) << names.back();
    EXPECT_EQ(tensor.scalar_type(), at::kFloat) << names.back();
  }
  for (const auto& [name, tensor] : named_state(*trainer)) sorted.push_back(name);
  EXPECT_EQ(names, sorted);
  EXPECT_EQ(names.size(), 3 * m.store->layout().tensors.size());
}

TEST(Trainer, WhatOptionsRefuseIsABug) {
  TestModel m = make_small_model(at::kFloat, true, test_ops());
  const std::vector<std::function<void(TrainerConfig&)>> changes = {
      [](TrainerConfig& c) { c.batch.max_tokens_per_gpu = 0; },
      [](TrainerConfig& c) { c.batch.micro_batches_multiple = 0; },
      [](TrainerConfig& c) { c.batch.gradient_sum_group = 0; },
      [](TrainerConfig& c) { c.batch.logprob_chunk_rows = 0; },
      [](TrainerConfig& c) { c.recompute_layers = 4; },
      [](TrainerConfig& c) { c.gradient.clip_grad = -1; },
      [](TrainerConfig& c) { c.adamw.beta2 = 1; },
      [](TrainerConfig& c) { c.schedule.decay_style = "wsd"; },
      [](TrainerConfig& c) { c.schedule.decay_style = "linear"; },  // a decay over no steps
      [](TrainerConfig& c) { c.schedule.min_lr = 1.0; },
      [](TrainerConfig& c) { c.loss.loss_type = "hinge"; },
  };
  for (size_t i = 0; i < changes.size(); ++i) {
    TrainerConfig config;
    changes[i](config);
    EXPECT_THROW(make_trainer(config, *m.store, *m.model), BugError) << "change " << i;
  }
  EXPECT_NO_THROW(make_trainer({}, *m.store, *m.model));
}

}  // namespace
}  // namespace tandem::trainer
