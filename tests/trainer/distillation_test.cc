// The loss of the whole distributions: divergences and gradients are those of TRL's function and of autograd in
// float64, whatever the split, and no model's logits of a batch ever exist.
#include "trainer/distillation.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/log.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "base/json.h"
#include "tandem/error.h"
#include "tests/golden/golden.h"
#include "tests/model/function_sink.h"
#include "tests/trainer/fixture.h"
#include "trainer/divergence.h"
#include "trainer/score.h"
#include "trainer/token_scores.h"
#include "trainer/varlen_attention.h"

namespace tandem::trainer {
namespace {

at::Tensor matrix(const base::Json& values, int64_t rows) {
  return at::tensor(values.get<std::vector<double>>(), at::kDouble).view({rows, -1});
}

double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  return a.to(at::kDouble).sub(b.to(at::kDouble)).abs().max().item<double>();
}

TEST(Divergence, AgreesWithTrlsFunctionAndItsGradientInFloat64) {
  const base::Json golden = base::read_json_file(golden::directory() + "/distillation/cases.json");
  const auto rows = golden.at("rows").get<int64_t>();
  const at::Tensor policy = matrix(golden.at("policy"), rows).to(at::kFloat);
  const at::Tensor teacher = matrix(golden.at("teacher"), rows).to(at::kFloat);
  ASSERT_EQ(golden.at("cases").size(), 20U);
  for (const base::Json& one : golden.at("cases")) {
    SCOPED_TRACE(one.dump().substr(0, 60));
    const Divergence result = divergence(policy, teacher.clone(), one.at("temperature").get<double>(),
                                         one.at("beta").get<double>(), one.at("top_k").get<int64_t>());
    EXPECT_LT(largest_difference(result.divergence_R, matrix(one.at("divergence"), rows).flatten()), 2e-5);
    EXPECT_LT(largest_difference(result.dlogits_RV, matrix(one.at("gradient"), rows)), 2e-5);
  }
}

// A vocabulary may be padded with ids that no tokenizer gives.
TEST(Divergence, LooksAtNoColumnBeyondThePolicysVocabulary) {
  const at::Tensor logits = at::arange(12, at::kFloat).view({2, 6}).sin();
  const at::Tensor teacher = at::arange(18, at::kFloat).view({2, 9}).cos();
  for (const int64_t top_k : {0, 3, 6}) {
    const Divergence padded = divergence(logits, teacher.clone(), 1.0, 0.5, top_k);
    const Divergence plain = divergence(logits, teacher.narrow(1, 0, 6).clone(), 1.0, 0.5, top_k);
    EXPECT_TRUE(padded.dlogits_RV.equal(plain.dlogits_RV));
    EXPECT_TRUE(padded.divergence_R.equal(plain.divergence_R));
    EXPECT_TRUE(logits.equal(at::arange(12, at::kFloat).view({2, 6}).sin())) << "the policy's logits are needed again";
  }
  EXPECT_THROW(divergence(teacher, logits.clone(), 1.0, 0.5, 0), BugError);
}

// A policy, and two teachers of other weights and another family.
struct School {
  School() {
    teachers.push_back(make_small_model(at::kFloat, true, test_ops(), "Qwen2ForCausalLM"));
    teachers.push_back(policy_like());
    teachers[1].change_weights(99);
  }
  static TestModel policy_like() { return make_small_model(at::kFloat, true, test_ops()); }
  // Every second group has the second teacher.
  TeacherOf teacher_of() const {
    return [this](const rl::Sample& sample) -> const model::Model& { return *teachers[sample.group_id % 2].model; };
  }
  std::vector<TestModel> teachers;
};

// Returns W with head(hidden) = hidden W, in float64.
at::Tensor head_of(const model::Model& model) {
  return model.head(at::eye(model.config().hidden, at::kFloat)).to(at::kDouble);
}

at::Tensor hidden_of(const model::Model& model, const PackedBatch& batch) {
  const at::NoGradGuard without_graph;
  VarlenAttention attention(model.ops(), batch);
  return model::forward_hidden(model, batch.ids_T, batch.positions_T, attention);
}

TEST(Distillation, TheGradientOfTheHiddenStatesIsThatOfAutogradInFloat64) {
  const School school;
  const TestModel policy = School::policy_like();
  model::FunctionSink sink([](const std::string&) { return model::GradientTarget(); });  // no weight's is looked at
  policy.model->set_gradient_sink(&sink);
  const std::vector<rl::Sample> samples = random_samples(11, 3, 2);
  rl::MicroBatch all;
  for (size_t i = 0; i < samples.size(); ++i) all.samples.push_back(static_cast<int64_t>(i));
  const PackedBatch batch = pack_micro_batch(pointers(samples), all, policy.config.vocab, test_ops());
  const at::Tensor normed_TE = hidden_of(*policy.model, batch), rows = batch.logit_rows_R.to(at::kLong);
  const int64_t num_targets = batch.num_targets();
  const at::Tensor weights = at::arange(num_targets, at::kFloat).cos();
  constexpr double kTemperature = 0.8;
  for (const double beta : {0.0, 0.3, 1.0}) {
    SCOPED_TRACE(beta);
    // The reference computes everything at once.
    at::Tensor hidden = normed_TE.to(at::kDouble).requires_grad_();
    const at::Tensor lp =
        at::log_softmax(at::matmul(hidden.index_select(0, rows), head_of(*policy.model)) / kTemperature, -1);
    std::vector<at::Tensor> of_teachers;
    for (const TestModel& teacher : school.teachers) {
      const at::Tensor taught = hidden_of(*teacher.model, batch).to(at::kDouble).index_select(0, rows);
      of_teachers.push_back(at::log_softmax(at::matmul(taught, head_of(*teacher.model)) / kTemperature, -1));
    }
    at::Tensor lq = of_teachers[0].clone();
    for (size_t s = 0; s < samples.size(); ++s) {
      const int64_t begin = batch.target_offsets[s], count = batch.target_offsets[s + 1] - begin;
      lq.narrow(0, begin, count).copy_(of_teachers[samples[s].group_id % 2].narrow(0, begin, count));
    }
    const at::Tensor p = at::exp(lp), q = at::exp(lq), lm = at::log((1.0 - beta) * p + beta * q);
    const at::Tensor divergence = beta == 0.0   ? (q * (lq - lp)).sum(-1)
                                  : beta == 1.0 ? (p * (lp - lq)).sum(-1)
                                                : (beta * q * (lq - lm) + (1.0 - beta) * p * (lp - lm)).sum(-1);
    (divergence * weights.to(at::kDouble)).sum().backward();
    const at::Tensor wanted = hidden.grad();
    ASSERT_GT(wanted.abs().max().item<double>(), 1e-3);

    rl::OpdConfig config{.is_on = true, .loss_coef = 1.0, .beta = beta};
    for (const int64_t chunk_rows : {int64_t{1024}, int64_t{7}, int64_t{1}}) {
      Distillation distillation(config, school.teacher_of(), batch);
      distillation.set_weights(weights);
      const ScoredGradient result = score_targets_with_backward(*policy.model, batch, normed_TE,
                                                                {.temperature = kTemperature, .chunk_rows = chunk_rows},
                                                                at::zeros({num_targets}), {}, &distillation);
      EXPECT_LT(largest_difference(result.scores.divergence_R, divergence.detach()), 1e-5) << chunk_rows;
      EXPECT_LT(largest_difference(result.dnormed_TE, wanted) / wanted.abs().max().item<double>(), 1e-5) << chunk_rows;
    }
  }
}

TrainerConfig distilling(double beta, int64_t top_k = 0) {
  TrainerConfig config;
  config.schedule.max_lr = 1e-2;
  config.temperature = 0.8;
  config.loss.opd = {.is_on = true, .loss_coef = 0.7, .beta = beta, .top_k = top_k};
  return config;
}

struct DistilledStep {
  Metrics metrics;
  std::map<std::string, at::Tensor> gradients;
};

DistilledStep distilled_step(const TrainerConfig& config, const std::vector<rl::Sample>& samples,
                             const TeacherOf& teacher_of, RolloutLogprobs logprobs = RolloutLogprobs::kOfOtherWeights) {
  TestModel m = School::policy_like();
  const std::unique_ptr<Trainer> trainer =
      make_trainer(config, *m.store, *m.model, std::nullopt, no_other_ranks(), teacher_of);
  DistilledStep outcome;
  outcome.metrics = trainer->step(pointers(samples), logprobs);
  outcome.gradients = gradients(*trainer, *m.store);
  return outcome;
}

void expect_near(const DistilledStep& a, const DistilledStep& b) {
  EXPECT_LT(relative_difference(a.gradients, b.gradients), 5e-6);
  for (const auto& [name, value] : b.metrics) {
    EXPECT_NEAR(a.metrics.at(name), value, 2e-6 * std::max(1.0, std::abs(value))) << name;
  }
}

TEST(Distillation, DoesNotDependOnTheSplitOrOnWhenTheGradientIsKnown) {
  const School school;
  std::vector<rl::Sample> samples = random_samples(5, 4, 2);
  const TestModel policy = School::policy_like();
  const Scores scores = score(*policy.model, pointers(samples), {}, 0.8);
  for (size_t i = 0; i < samples.size(); ++i) samples[i].rollout_logprobs = scores.logprobs[i];
  for (const int64_t top_k : {0, 5}) {
    const DistilledStep whole = distilled_step(distilling(0.3, top_k), samples, school.teacher_of());
    EXPECT_GT(whole.metrics.at("opd_loss"), 0.0);
    EXPECT_NEAR(whole.metrics.at("loss"), whole.metrics.at("pg_loss") + 0.7 * whole.metrics.at("opd_loss"), 1e-9);
    TrainerConfig split = distilling(0.3, top_k);
    split.batch.max_tokens_per_gpu = 90;
    split.batch.logprob_chunk_rows = 7;
    expect_near(distilled_step(split, samples, school.teacher_of()), whole);
    expect_near(distilled_step(split, samples, school.teacher_of(), RolloutLogprobs::kOfTheseWeights), whole);
  }
}

TEST(Distillation, APolicyThatIsItsTeacherHasNothingToLearn) {
  const TestModel teacher = School::policy_like();
  std::vector<rl::Sample> samples = random_samples(6, 2, 2);
  for (rl::Sample& sample : samples) sample.advantages = {0.0};
  const DistilledStep same = distilled_step(distilling(1.0), samples,
                                            [&](const rl::Sample&) -> const model::Model& { return *teacher.model; });
  EXPECT_EQ(same.metrics.at("opd_loss"), 0.0);
  EXPECT_EQ(same.metrics.at("zero_gradient"), 1.0);
}

TEST(Distillation, LogitsOfABatchNeverExist) {
  TestModel policy = School::policy_like(), other = School::policy_like();
  other.change_weights(7);
  WatchedModel watched(*policy.model), teacher(*other.model);
  TrainerConfig config = distilling(0.5);
  config.batch.logprob_chunk_rows = 5;
  const std::vector<rl::Sample> samples = random_samples(8, 3, 2);
  make_trainer(config, *policy.store, watched, std::nullopt, no_other_ranks(),
               [&](const rl::Sample&) -> const model::Model& { return teacher; })
      ->step(pointers(samples));
  EXPECT_EQ(watched.max_live_logit_rows(), 5);
  EXPECT_EQ(teacher.max_live_logit_rows(), 5);
}

TEST(Distillation, ATrainerWithoutATeacherIsABug) {
  TestModel m = School::policy_like();
  EXPECT_THROW(make_trainer(distilling(0.5), *m.store, *m.model), BugError);
}

}  // namespace
}  // namespace tandem::trainer
