// The metrics that vime logs agree with a float64 computation of its definitions (golden metrics.b0, metrics.b1).
#include <gtest/gtest.h>

#include "rl/metrics.h"
#include "tests/rl/golden_losses.h"

namespace tandem::rl {
namespace {

class GoldenMetrics : public testing::TestWithParam<std::tuple<int64_t, bool>> {
 protected:
  bool per_token() const { return std::get<1>(GetParam()); }
  GoldenBatch batch() const { return {golden(), std::get<0>(GetParam())}; }
  LossConfig config() const {
    LossConfig config{
        .calculate_per_token_loss = per_token(), .eps_clip = 0.2, .eps_clip_high = 0.28, .use_unbiased_kl = false};
    config.use_rollout_logprobs = false;  // the golden old log-probs are recomputed ones
    return config;
  }
  void expect(const StepResult& result, const char* ours, const std::string& name) const {
    const base::Json& table = golden().cases().at("metrics").at("b" + std::to_string(std::get<0>(GetParam())));
    const double theirs = table.at(name).at(per_token() ? "per_token" : "per_rollout");
    ASSERT_TRUE(result.metrics.contains(ours)) << ours;
    EXPECT_NEAR(result.metrics.at(ours), theirs, 1e-9) << name;
  }
};

TEST_P(GoldenMetrics, DefaultLossReportsVimesNumbers) {
  const StepResult result = run_step(config(), batch());
  expect(result, "pg_loss", "pg_loss");
  expect(result, "loss", "pg_loss");
  expect(result, "pg_clipfrac", "pg_clipfrac");
  expect(result, "ppo_kl", "ppo_kl");
  expect(result, "entropy_loss", "entropy_loss");
  expect(result, "kl_loss", "kl_loss_low_var_kl");
  expect(result, "train_rollout_logprob_abs_diff", "train_rollout_logprob_abs_diff");
  expect(result, "ois", "ois");
  expect(result, "tis", "tis");
  expect(result, "tis_abs", "tis_abs");
  expect(result, "tis_clipfrac", "tis_clipfrac_0_2");
}

TEST_P(GoldenMetrics, EngineLogProbsAsOldOnesCompareWithTheCurrentPolicy) {
  LossConfig engine = config();
  engine.use_rollout_logprobs = true;
  const StepResult result = run_step(engine, batch());
  expect(result, "train_rollout_logprob_abs_diff", "train_rollout_logprob_abs_diff_current");
  EXPECT_FALSE(result.metrics.contains("tis")) << "nothing to correct, nothing to report";
}

TEST_P(GoldenMetrics, DualClipTisAndSequenceRatioReportVimesNumbers) {
  LossConfig dual = config();
  dual.eps_clip_c = 3.0;
  expect(run_step(dual, batch()), "pg_loss", "pg_loss_dual_clip_3");
  LossConfig tis = config();
  tis.use_tis = true;
  expect(run_step(tis, batch()), "pg_loss", "pg_loss_tis_0_2");
  LossConfig gspo = config();
  gspo.advantage_estimator = "gspo";
  expect(run_step(gspo, batch()), "ppo_kl", "ppo_kl_gspo");
}

TEST_P(GoldenMetrics, EveryKlEstimateReportsVimesNumbers) {
  for (const char* kind : {"k1", "k2", "k3", "low_var_kl", "abs"}) {
    LossConfig kl = config();
    kl.kl_loss_type = kind;
    expect(run_step(kl, batch()), "kl_loss", std::string("kl_loss_") + kind);
  }
}

TEST_P(GoldenMetrics, ReducerIsVimesReducer) {
  const GoldenBatch b = batch();
  Reducer reducer(per_token());
  for (size_t at = 0; at < b.mask.size(); at += kNumTokens) {
    reducer.add(std::span(b.mask).subspan(at, kNumTokens), std::span<const float>(b.entropy).subspan(at, kNumTokens));
  }
  StepResult result;
  result.metrics["entropy"] = reducer.value();
  expect(result, "entropy", "entropy_loss");
}

INSTANTIATE_TEST_SUITE_P(Batches, GoldenMetrics, testing::Combine(testing::Values(0, 1), testing::Bool()));

}  // namespace
}  // namespace tandem::rl
