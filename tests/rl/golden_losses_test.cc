// Every published loss case is either reproduced, value and gradient, by flags of the table, or listed with a reason.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <string_view>

#include "tests/golden/golden.h"
#include "tests/rl/golden_losses.h"

namespace tandem::rl {
namespace {

// Returns why no flags of ours give a case, by the end of its id (after "b0." or "b1."). docs/LOSSES.md has the same
// list.
std::optional<std::string> reason_left_out(const std::string& id) {
  const std::string name = id.substr(3);
  if (name == "trl.bnpo.accumulated") return "a mean of the micro-batches' token means: a function of the split";
  return std::nullopt;
}

struct Plan {
  LossConfig config;
  GoldenBatch batch;
  double loss_tolerance = 1e-9;  // relative to max(1, |loss|), against loss_f64
};

std::string text(const base::Json& params, const char* key) { return params.value(key, std::string()); }

// Applies verl's response mask after rejection: it removes sequences whose mean k3 between current and sampling policy
// is above 0.3.
void reject_sequences(GoldenBatch& batch) {
  for (size_t row = 0; row < kNumSamples; ++row) {
    double sum = 0.0, count = 0.0;
    for (size_t t = row * kNumTokens; t < (row + 1) * kNumTokens; ++t) {
      if (batch.mask[t] == 0) continue;
      const double d = double{batch.logprobs[t]} - double{batch.rollout_logprobs[t]};
      sum += std::exp(d) - 1.0 - d;
      count += 1.0;
    }
    if (count == 0.0 || sum / count <= 0.3) continue;
    for (size_t t = row * kNumTokens; t < (row + 1) * kNumTokens; ++t) batch.mask[t] = 0;
  }
}

void plan_verl(const base::Json& params, Plan& plan) {
  LossConfig& c = plan.config;
  std::string mode = text(params, "loss_mode");
  c.count_removed_samples = false;
  c.sequence_ratio_per_token = true;
  c.use_unbiased_kl = false;
  c.sample_mean_epsilon = 1e-8;
  c.loss_aggregation = text(params, "loss_agg_mode");
  c.loss_norm_tokens = params.value("loss_scale_factor", 24.0);
  c.eps_clip = params.at("clip_ratio_low");
  c.eps_clip_high = params.at("clip_ratio_high");
  if (params.contains("rollout_is_weights")) plan.batch.weights = golden().floats(text(params, "rollout_is_weights"));
  plan.batch.advantages = golden().doubles(text(params, "advantages"));
  plan.batch.with_reference = plan.batch.with_rollout = false;
  if (mode == "bypass_mode") {
    reject_sequences(plan.batch);
    mode = text(params.at("rollout_correction"), "loss_type") == "reinforce" ? "reinforce" : "vanilla";
    if (mode == "reinforce") {  // weighted by the current policy against the sampling one
      plan.batch.old_logprobs = plan.batch.logprobs;
      plan.batch.with_rollout = true;
      c.use_tis = true;
    } else {
      plan.batch.old_logprobs = plan.batch.rollout_logprobs;
    }
  }
  c.pg_loss_type = mode == "vanilla" ? "ppo" : (mode == "gpg" ? "reinforce" : mode);
  if (mode == "vanilla" || mode.starts_with("dppo")) c.eps_clip_c = params.at("clip_ratio_c");
  if (mode == "sapo") {  // verl's ignores the requested aggregation
    c.loss_aggregation = "seq-mean-token-mean";
    c.sapo_tau_pos = params.at("tau_pos");
    c.sapo_tau_neg = params.at("tau_neg");
  }
  if (mode == "geo_mean") {  // so does this one, and it counts rows without a token
    c.loss_aggregation = "seq-mean-token-mean";
    c.count_removed_samples = true;
  }
  if (mode == "dro") c.dro_beta = params.at("dro_beta");
}

void plan_trl(const std::string& id, const base::Json& params, Plan& plan) {
  static const std::map<std::string, std::string> kAggregations = {
      {"grpo", "seq-mean-token-mean"}, {"sapo", "seq-mean-token-mean"}, {"bnpo", "token-mean"},
      {"dapo", "token-mean"},          {"cispo", "token-mean"},         {"dr_grpo", "seq-mean-token-sum-norm"},
      {"vespo", "token-mean"},         {"luspo", "seq-mean-token-sum"}};
  LossConfig& c = plan.config;
  GoldenBatch& batch = plan.batch;
  c.eps_clip = params.at("epsilon");
  c.eps_clip_high = params.value("epsilon_high", -1.0);
  batch.with_rollout = false;
  const bool is_rloo = text(params, "trainer") == "RLOOTrainer";
  const std::vector<float> advantages =
      golden().floats(batch.name + (is_rloo ? ".trl.advantages.rloo" : ".trl.advantages.group"));
  for (size_t i = 0; i < batch.advantages.size(); ++i) batch.advantages[i] = double{advantages[i / kNumTokens]};
  if (is_rloo) {
    c.advantage_estimator = "rloo";
    batch.mask = golden().mask(batch.name + ".in.completion_mask");
    plan.loss_tolerance = 1e-5;  // the library summed the old log-probs in float32
    batch.with_reference = false;
    return;
  }
  const std::string type = text(params, "loss_type");
  c.loss_aggregation = kAggregations.at(type);
  c.loss_norm_tokens = 24.0;
  c.count_removed_samples = c.loss_aggregation != "token-mean";
  c.pg_loss_type = type == "cispo" || type == "sapo" || type == "vespo" ? type : "ppo";
  if (type == "cispo") c.cispo_max_ratio = c.eps_clip_high;
  if (type == "sapo") plan.loss_tolerance = 1e-7;  // its temperature is the float32 1.05
  if (text(params, "importance_sampling_level") == "sequence") c.pg_loss_type = "gspo";
  c.eps_clip_c = params.value("delta", 0.0);
  c.kl_loss_coef = params.at("beta");
  c.kl_loss_type = "k3";
  c.use_unbiased_kl = params.value("use_bias_correction_kl", true);
  batch.with_reference = c.kl_loss_coef > 0.0;
  c.entropy_coef = params.value("entropy_coef", 0.0);
  c.off_policy_mask_threshold = params.value("off_policy_mask_threshold", 0.0);
  c.top_entropy_quantile = params.value("top_entropy_quantile", 1.0);
  batch.with_rollout = c.off_policy_mask_threshold > 0.0;  // TRL's mask uses the sampling log-probs
  if (params.value("mask_truncated_completions", false)) batch.mask = golden().mask(batch.name + ".trl.mask_truncated");
  if (params.contains("vllm_importance_sampling_mode")) {
    const std::string name = batch.name + ".trl.is." + id.substr(id.find(".is.") + 4);
    const std::vector<float> weights = golden().floats(name);
    const bool per_token = weights.size() == batch.mask.size();
    for (size_t i = 0; i < batch.mask.size(); ++i) batch.weights.push_back(weights[per_token ? i : i / kNumTokens]);
  }
}

Plan make_plan(const base::Json& one) {
  Plan plan{.config = {}, .batch = GoldenBatch(golden(), one.at("batch").get<int64_t>())};
  if (one.at("library") == "verl") {
    plan_verl(one.at("params"), plan);
  } else {
    plan_trl(one.at("id"), one.at("params"), plan);
  }
  return plan;
}

void expect_gradient(const std::vector<double>& ours, const std::vector<float>& theirs, const std::string& what) {
  ASSERT_EQ(ours.size(), theirs.size()) << what;
  for (size_t i = 0; i < ours.size(); ++i) {
    ASSERT_NEAR(ours[i], theirs[i], 1e-6 + 1e-5 * std::abs(double{theirs[i]})) << what << " element " << i;
  }
}

// Checks two ranks: each one's loss is over global counts and times 2, "before the mean over ranks".
void expect_two_ranks(const base::Json& one, const Plan& plan) {
  const std::string id = one.at("id");
  std::vector<double> gradient(kNumSamples * kNumTokens, 0.0);
  for (int64_t rank = 0; rank < 2; ++rank) {
    const StepResult result = run_step(plan.config, plan.batch, rank * 8, 8);
    const double theirs = one.at("loss").at(static_cast<size_t>(rank));
    EXPECT_NEAR(2.0 * result.metrics.at("loss"), theirs, 1e-6 + 1e-5 * std::abs(theirs)) << id << " rank " << rank;
    for (size_t i = 0; i < gradient.size(); ++i) gradient[i] += 2.0 * result.dlogprobs[i];
  }
  expect_gradient(gradient, golden().floats(one.at("grad")), id);
}

// Compares metrics that verl and TRL have under other names, if both are means over tokens. Returns their number.
int64_t expect_library_metrics(const base::Json& one, const Plan& plan, const StepResult& result) {
  if (!one.contains("metrics")) return 0;
  static const std::pair<const char*, const char*> kNames[] = {{"actor/ppo_kl", "ppo_kl"},
                                                               {"actor/pg_clipfrac", "pg_clipfrac"},
                                                               {"clip_ratio/region_mean", "pg_clipfrac"},
                                                               {"kl", "kl"},
                                                               {"entropy", "entropy"},
                                                               {"policy_loss", "pg_loss"}};
  int64_t num_compared = 0;
  for (const auto& [theirs, ours] : kNames) {
    const bool is_always_token_mean = std::string_view(theirs) == ours && std::string_view(ours) != "policy_loss";
    if (!is_always_token_mean && loss_aggregation(plan.config) != Aggregation::kTokenMean) continue;
    // Bypass compares with the current policy; a sequence-level ratio is averaged over sequences in TRL.
    if (!one["metrics"].contains(theirs) || !result.metrics.contains(ours)) continue;
    if (find_surrogate(plan.config).ratio_level != RatioLevel::kToken) continue;
    if (one["params"].contains("rollout_correction")) continue;
    const double value = one["metrics"][theirs];
    EXPECT_NEAR(result.metrics.at(ours), value, 1e-6 + 1e-5 * std::abs(value)) << one.at("id") << " " << theirs;
    num_compared += is_always_token_mean ? 1 : 0;
  }
  return num_compared;
}

// Returns how many token means of KL and entropy the library gave too.
int64_t expect_case(const base::Json& one) {
  const std::string id = one.at("id");
  Plan plan = make_plan(one);
  check_loss_config(plan.config);
  if (one.at("params").contains("dp_size")) {
    expect_two_ranks(one, plan);
    return 0;
  }
  const StepResult result = run_step(plan.config, plan.batch);
  const double exact = one.at("loss_f64");
  EXPECT_NEAR(result.metrics.at("loss"), exact, plan.loss_tolerance * std::max(1.0, std::abs(exact))) << id;
  expect_gradient(result.dlogprobs, golden().floats(one.at("grad")), id);
  if (one.contains("grad_entropy"))
    expect_gradient(result.dentropy, golden().floats(one.at("grad_entropy")), id + " entropy");
  return expect_library_metrics(one, plan, result);
}

TEST(GoldenLosses, EveryCaseIsReproducedOrNamedAsLeftOut) {
  int64_t num_reproduced = 0, num_left_out = 0, num_token_means = 0;
  for (const base::Json& one : golden().cases().at("losses")) {
    if (reason_left_out(one.at("id"))) {
      ++num_left_out;
      continue;
    }
    num_token_means += expect_case(one);
    ++num_reproduced;
  }
  EXPECT_GT(num_token_means, 10) << "kl and entropy under any aggregation";
  EXPECT_EQ(num_reproduced + num_left_out, 340);
  EXPECT_EQ(num_left_out, 2);
}

// tests/golden/trl_loss/make.py computed these with TRL's own function in float64, where the cases above do not tell
// two readings apart: `trl.dapo.off_policy_mask` is the same by the old and by the sampling log-probs, and the entropy
// bonus occurs there only with a mean over tokens, and over all of them.
TEST(GoldenLosses, TrlsMaskAndEntropyAreTrlsWhereOtherReadingsDiffer) {
  const std::map<std::string, std::string> aggregations = {{"dapo", "token-mean"},
                                                           {"grpo", "seq-mean-token-mean"},
                                                           {"dr_grpo", "seq-mean-token-sum-norm"},
                                                           {"luspo", "seq-mean-token-sum"}};
  const base::Json cases = base::read_json_file(golden::directory() + "/trl_loss/cases.json");
  ASSERT_EQ(cases.size(), 12U);
  for (const base::Json& one : cases) {
    GoldenBatch batch(golden(), one.at("batch").get<int64_t>());
    const std::vector<float> advantages = golden().floats(batch.name + ".trl.advantages.group");
    for (size_t i = 0; i < batch.advantages.size(); ++i) batch.advantages[i] = double{advantages[i / kNumTokens]};
    batch.with_reference = false;
    LossConfig config{.loss_aggregation = aggregations.at(one.value("loss_type", "dapo")), .eps_clip_high = 0.28};
    config.loss_norm_tokens = 24.0;
    config.count_removed_samples = config.loss_aggregation != "token-mean";
    config.off_policy_mask_threshold = one.value("threshold", 0.0);
    config.entropy_coef = one.value("entropy_coef", 0.0);
    config.top_entropy_quantile = one.value("top_entropy_quantile", 1.0);
    const std::string what = batch.name + " " + config.loss_aggregation;
    const StepResult result = run_step(config, batch);
    const double loss = one.at("loss");
    EXPECT_NEAR(result.metrics.at("loss"), loss, 1e-9 * std::max(1.0, std::abs(loss))) << what;
    expect_gradient(result.dlogprobs, one.at("grad").get<std::vector<float>>(), what);
    if (config.entropy_coef == 0.0) continue;
    const auto theirs = one.at("grad_entropy").get<std::vector<double>>();
    for (size_t i = 0; i < theirs.size(); ++i) {
      ASSERT_NEAR(result.dentropy[i], theirs[i], 1e-15) << what << " entropy, element " << i;
    }
  }
}

// tests/golden/token_choice/make.py computed these with verl's functions. A batch is one micro-batch there, which
// chooses as a step does here.
TEST(GoldenLosses, ClipCovAndKlCovAreVerlsOnOneMicroBatch) {
  const base::Json cases = base::read_json_file(golden::directory() + "/token_choice/cases.json");
  ASSERT_EQ(cases.size(), 28U);
  for (const base::Json& one : cases) {
    GoldenBatch batch(golden(), one.at("batch").get<int64_t>());
    batch.with_reference = false;
    const base::Json& params = one.at("params");
    const std::string mode = params.at("loss_mode");
    LossConfig config{.pg_loss_type = mode, .loss_aggregation = params.at("loss_agg_mode"), .eps_clip_high = 0.28};
    config.count_removed_samples = false;
    config.sample_mean_epsilon = 1e-8;
    config.clip_cov_ratio = params.value("clip_cov_ratio", config.clip_cov_ratio);
    config.clip_cov_lb = params.value("clip_cov_lb", config.clip_cov_lb);
    config.clip_cov_ub = params.value("clip_cov_ub", config.clip_cov_ub);
    config.kl_cov_ratio = params.value("kl_cov_ratio", config.kl_cov_ratio);
    config.kl_cov_coef = params.value("ppo_kl_coef", config.kl_cov_coef);
    const std::string what = batch.name + " " + base::dump_json(params);
    const StepResult result = run_step(config, batch);
    const double loss = one.at("loss");
    EXPECT_NEAR(result.metrics.at("loss"), loss, 1e-9 * std::max(1.0, std::abs(loss))) << what;
    expect_gradient(result.dlogprobs, one.at("grad").get<std::vector<float>>(), what);
    if (mode == "clip_cov") EXPECT_NEAR(result.metrics.at("clip_cov_frac"), one.at("chosen").get<double>(), 1e-6);
    if (mode == "kl_cov") EXPECT_GT(result.metrics.at("kl_cov_frac"), 0.0) << what;
  }
}

// Sets a row of tests/golden/off_policy: old = the proximal log-probs, sampled = those of the policy that sampled.
LossConfig config_of_correction(const base::Json& one) {
  const base::Json& params = one.at("params");
  LossConfig config{.eps_clip_high = 0.28, .eps_clip_c = 3.0, .use_unbiased_kl = false, .old_logprobs = "proximal"};
  const auto bound = [&](const char* key, double otherwise) {
    return params.at(key).is_null() ? otherwise : params.at(key).get<double>();
  };
  if (one.at("library") == "prime-rl") {
    config.old_logprobs = "rollout";
    config.pg_loss_type = "dppo_tv";
    config.eps_clip = params.at("dppo_mask_low");
    config.eps_clip_high = params.at("dppo_mask_high");
    config.eps_clip_c = 0.0;
    config.behavior_kl_coef = params.at("kl_tau");
  }
  config.loss_aggregation = one.at("library") == "slime" ? "seq-mean-token-mean" : "token-mean";
  config.count_removed_samples = one.at("library") == "slime";
  if (!params.contains("lower")) return config;
  config.use_tis = !params.at("upper").is_null();
  config.tis_clip = bound("upper", 2.0);
  config.tis_clip_low = bound("lower", 0.0);
  if (one.at("library") == "AReaL") {
    config.tis_level = params.at("level") == "sequence" ? "geometric" : "token";
    config.tis_mode = params.at("action") == "mask" ? "mask" : "truncate";
  }
  if (one.at("library") == "slime") {
    config.tis_level = params.at("level");
    config.tis_mode = params.at("mode") == "mask" ? "mask" : "truncate";
    if (params.at("mode") == "truncate") config.tis_clip_low = 0.0;  // slime's truncate has no lower bound
    config.tis_veto = params.at("veto");
    config.kl_loss_coef = params.at("kl_coef");
  }
  return config;
}

// verl rejects before the means are taken: the masks are the same. Its bounds are those of sampled - old.
void expect_rejection_mask(const base::Json& one) {
  const GoldenBatch batch(golden(), one.at("batch").get<int64_t>());
  const std::string option = one["params"].at("option");
  LossConfig config{.use_tis = true, .tis_mode = "reject"};
  config.tis_level = option == "token_k1" ? "token" : (option == "seq_sum_k1" ? "sequence" : "geometric");
  config.tis_clip_low = 1.0 / one["params"].at("upper").get<double>();
  config.tis_clip = 1.0 / one["params"].at("lower").get<double>();
  std::vector<uint8_t> mask = batch.mask;
  for (int64_t i = 0; i < kNumSamples; ++i) {
    const auto row = std::span(mask).subspan(static_cast<size_t>(i * kNumTokens), kNumTokens);
    reject_tokens(config, batch.row(i), row);
  }
  EXPECT_EQ(mask, one.at("mask").get<std::vector<uint8_t>>()) << batch.name << " " << option;
}

// tests/golden/off_policy/make.py computed these with the functions of AReaL, slime, verl and prime-rl.
TEST(GoldenLosses, CorrectionsOfOffPolicySamplesAreThoseOfTheProjects) {
  std::map<std::string, int> num_cases;
  for (const base::Json& one : base::read_json_file(golden::directory() + "/off_policy/cases.json")) {
    const std::string library = one.at("library");
    ++num_cases[library];
    if (library == "verl") {
      expect_rejection_mask(one);
      continue;
    }
    const std::string what = library + " " + base::dump_json(one.at("params"));
    GoldenBatch batch(golden(), one.at("batch").get<int64_t>());
    LossConfig config = config_of_correction(one);
    check_loss_config(config);
    if (library == "prime-rl") batch.old_logprobs = batch.rollout_logprobs;
    batch.with_reference = config.kl_loss_coef > 0.0;
    const StepResult result = run_step(config, batch);
    expect_gradient(result.dlogprobs, one.at("grad").get<std::vector<float>>(), what);
    if (library == "prime-rl") continue;  // its value is -r A, and here -sg(r) A logp: the gradients are the same
    const double loss = one.at("loss");
    EXPECT_NEAR(result.metrics.at("loss"), loss, 1e-6 * std::max(1.0, std::abs(loss))) << what;
  }
  EXPECT_EQ(num_cases, (std::map<std::string, int>{{"AReaL", 12}, {"prime-rl", 4}, {"slime", 20}, {"verl", 6}}));
}

// TRL's mask uses the log-probs that tokens were sampled with, slime's the old ones. In these batches the two differ.
TEST(GoldenLosses, OffPolicyMasksLookAtTheLogProbsThatTheyAreDefinedBy) {
  int64_t num_different = 0;
  for (int64_t k = 0; k < 2; ++k) {
    const GoldenBatch batch(golden(), k);
    // A sample is kept if A >= 0 or the mean of `behaviour` - current is at most the threshold.
    const auto masked_by = [&](const std::vector<float>& behaviour, double threshold) {
      GoldenBatch masked = batch;
      masked.weights.assign(batch.mask.size(), 1.0F);
      for (size_t row = 0; row < batch.mask.size(); row += kNumTokens) {
        double sum = 0.0, count = 0.0;
        for (size_t t = row; t < row + kNumTokens; ++t) {
          if (batch.mask[t] == 0) continue;
          sum += double{behaviour[t]} - double{batch.logprobs[t]};
          count += 1.0;
        }
        const bool is_far = sum / std::max(count, 1.0) > threshold;
        for (size_t t = row; t < row + kNumTokens; ++t) {
          if (is_far && batch.advantages[t] < 0) masked.weights[t] = 0.0F;
        }
      }
      return masked;
    };
    for (const double threshold : {0.001, 0.01, 0.02, 0.05}) {
      LossConfig none, by_old, by_sampled;
      by_old.use_opsm = true;
      by_old.opsm_delta = threshold;
      by_sampled.off_policy_mask_threshold = threshold;
      const StepResult old_result = run_step(none, masked_by(batch.old_logprobs, threshold));
      const StepResult sampled_result = run_step(none, masked_by(batch.rollout_logprobs, threshold));
      EXPECT_EQ(run_step(by_old, batch).dlogprobs, old_result.dlogprobs) << threshold;
      EXPECT_EQ(run_step(by_sampled, batch).dlogprobs, sampled_result.dlogprobs) << threshold;
      num_different += old_result.dlogprobs != sampled_result.dlogprobs ? 1 : 0;
    }
  }
  EXPECT_GT(num_different, 0);
}

TEST(GoldenLosses, CorrectionWeightsAgreeWithTheLibraries) {
  struct Correction {
    const char* tensor;
    const char* level;
    const char* mode;
    double low, high;
  };
  const Correction corrections[] = {
      {"verl.is.token_2", "token", "truncate", 0.0, 2.0},
      {"verl.is.sequence_2", "sequence", "truncate", 0.0, 2.0},
      {"verl.is.token_0.5_2", "token", "mask", 0.5, 2.0},
      {"trl.is.token_truncate.max2", "token", "truncate", 0.0, 2.0},
      {"trl.is.token_truncate.min0.5_max2", "token", "truncate", 0.5, 2.0},
      {"trl.is.token_mask.max2", "token", "mask", 0.0, 2.0},
      {"trl.is.token_mask.min0.5_max2", "token", "mask", 0.5, 2.0},
      {"trl.is.sequence_truncate.max2", "sequence", "truncate", 0.0, 2.0},
      {"trl.is.sequence_mask.max2", "sequence", "mask", 0.0, 2.0},
      {"trl.is.sequence_mask.min0.5_max2", "sequence", "mask", 0.5, 2.0},
  };
  for (const Correction& correction : corrections) {
    for (int64_t k = 0; k < 2; ++k) {
      GoldenBatch batch(golden(), k);
      const std::string tensor = batch.name + "." + correction.tensor;
      ASSERT_TRUE(golden().has(tensor)) << tensor;
      // With A = 1 and no clip, a REINFORCE gradient is minus the weight.
      LossConfig config{.pg_loss_type = "reinforce", .loss_aggregation = "token-sum", .use_tis = true};
      config.tis_level = correction.level;
      config.tis_mode = correction.mode;
      config.tis_clip_low = correction.low;
      config.tis_clip = correction.high;
      batch.advantages.assign(batch.advantages.size(), 1.0);
      const StepResult result = run_step(config, batch);
      const std::vector<float> theirs = golden().floats(tensor);
      const bool per_token = theirs.size() == batch.mask.size();
      for (size_t i = 0; i < batch.mask.size(); ++i) {
        if (batch.mask[i] == 0) continue;
        ASSERT_NEAR(-result.dlogprobs[i], theirs[per_token ? i : i / kNumTokens], 2e-6) << tensor << " element " << i;
      }
    }
  }
}

TEST(GoldenLosses, KlEstimatesAgreeInValueAggregateAndGradient) {
  const std::map<std::string, std::string> ours = {
      {"kl", "k1"}, {"mse", "k2"}, {"k3", "low_var_kl"}, {"k3+", "low_var_kl+"}};
  int64_t num_gradients = 0;
  for (const base::Json& one : golden().cases().at("kl")) {
    GoldenBatch batch(golden(), one.at("batch").get<int64_t>());
    batch.advantages.assign(batch.advantages.size(), 0.0);
    const std::string kind = one.at("params").at("kl_penalty");
    LossConfig config{.count_removed_samples = false,
                      .kl_loss_coef = 1.0,
                      .kl_loss_type = ours.contains(kind) ? ours.at(kind) : kind,
                      .use_unbiased_kl = false};
    config.loss_norm_tokens = 24.0;
    for (const auto& [mode, value] : one.at("aggregated").items()) {
      config.loss_aggregation = mode;
      const StepResult result = run_step(config, batch);
      const double theirs = value;
      EXPECT_NEAR(result.metrics.at("kl_loss"), theirs, 1e-6 + 1e-5 * std::abs(theirs)) << one.at("id") << " " << mode;
      EXPECT_EQ(result.metrics.at("kl_loss"), result.metrics.at("loss"));
      const std::string gradient = std::string(one.at("id")) + "." + mode + ".grad";
      if (!golden().has(gradient)) continue;
      ++num_gradients;
      expect_gradient(result.dlogprobs, golden().floats(gradient), gradient);
    }
  }
  EXPECT_EQ(num_gradients, 2 * 11 * 2);
}

TEST(GoldenLosses, EntropyAgreesInEveryAggregation) {
  for (int64_t k = 0; k < 2; ++k) {
    const GoldenBatch batch(golden(), k);
    for (const auto& [mode, value] : golden().cases().at("entropy").at(batch.name).items()) {
      LossConfig config{.loss_aggregation = mode, .count_removed_samples = false};
      config.loss_norm_tokens = 24.0;
      const double theirs = value;
      EXPECT_NEAR(run_step(config, batch).metrics.at("entropy_loss"), theirs, 1e-6 + 1e-5 * std::abs(theirs)) << mode;
    }
  }
}

}  // namespace
}  // namespace tandem::rl
