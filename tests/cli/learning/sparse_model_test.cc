// Checks sparse models through the program: what a run trains and records, what it keeps, how it resumes, and how flags
// of experts that other trainers have are answered.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "base/files.h"
#include "tests/cli/ranks/rank_runs.h"
#include "tests/cli/tiny_run.h"
#include "weights/safetensors.h"

namespace tandem::cli {
namespace {

const std::string kSparseModel = "tests/golden/models/qwen3-moe";

Arguments operator+(Arguments arguments, const Arguments& more) {
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

double number(const base::Json& record, const std::string& name) { return record.at(name).get<double>(); }

class SparseModel : public testing::Test {
 protected:
  SparseModel() : reward_(write_reward(folder_)) {}
  Arguments words(const std::string& save, const Arguments& more = {}) const {
    const Arguments arguments = train_arguments(save, Arguments{"--weight-decay", "0.1", "--weight-decay-all"} + more);
    return with_flag(with_custom_reward(arguments, reward_), "--hf-checkpoint", kSparseModel);
  }
  base::TemporaryDirectory folder_;
  std::string reward_;
};

// Returns the bytes of the tensors whose name ends so, of a file of weights.
std::string tensors_of(const std::string& path, const std::string& ending) {
  const weights::SafetensorsFile file(path);
  std::string bytes;
  for (const auto& [name, tensor] : file.tensors()) {
    if (!name.ends_with(ending)) continue;
    bytes += name;
    std::vector<std::byte> values(static_cast<size_t>(tensor.num_bytes()));
    file.read(tensor, 0, values);
    bytes.append(reinterpret_cast<const char*>(values.data()), values.size());
  }
  EXPECT_FALSE(bytes.empty()) << ending;
  return bytes;
}

std::string everything_of(const std::string& run) {
  return timeless_metrics(run) + weights_of(run) + optimizer_state(run);
}

void expect_exact_steps_with_load(const std::string& run, const std::string& which) {
  int steps = 0;
  for (const base::Json& record : json_lines(run + "/metrics.jsonl")) {
    if (!record.contains("train/step")) continue;
    SCOPED_TRACE(which + ", step " + std::to_string(steps));
    // The first step of a rollout is made with the weights that sampled it.
    if (steps++ % 2 == 0) {
      EXPECT_EQ(number(record, "train/train_rollout_logprob_abs_diff"), 0.0);
    } else {
      EXPECT_GT(number(record, "train/train_rollout_logprob_abs_diff"), 0.0);
    }
    EXPECT_GT(number(record, "train/grad_norm"), 0.0);
    // There are 8 experts, 2 of them for each token.
    EXPECT_GE(number(record, "moe/load_max_over_mean"), 1.0);
    EXPECT_LE(number(record, "moe/load_max_over_mean"), 4.0);
    EXPECT_GE(number(record, "moe/unused_experts"), 0.0);
    EXPECT_LE(number(record, "moe/unused_experts"), 6.0);
    EXPECT_GT(number(record, "moe/router_entropy"), 0.0);
    EXPECT_LT(number(record, "moe/router_entropy"), 2.08) << "ln 8";
    EXPECT_GT(number(record, "moe/top1_weight"), 0.5);
    EXPECT_LT(number(record, "moe/top1_weight"), 1.0);
  }
  EXPECT_EQ(steps, 4) << which;
}

TEST_F(SparseModel, TrainsExactlyOnPolicyAndResumesWithGrpoAndGspo) {
  std::vector<std::string> weights;
  for (const std::string estimator : {"grpo", "gspo"}) {
    for (const std::string dtype : {"float32", "bfloat16"}) {
      const std::string whole = folder_ / (estimator + dtype), cut = whole + "_cut", which = estimator + " " + dtype;
      Arguments flags = {"--advantage-estimator", estimator, "--dtype", dtype, "--save-interval", "1"};
      if (estimator == "grpo") flags = flags + Arguments{"--moe-aux-loss-coeff", "0.01", "--moe-per-layer-logging"};
      const Captured result = run(words(whole, flags));
      ASSERT_EQ(result.code, 0) << which << result.err;
      expect_exact_steps_with_load(whole, which);
      for (const base::Json& record : json_lines(whole + "/metrics.jsonl")) {
        EXPECT_EQ(record.contains("moe/aux_loss"), estimator == "grpo" && record.contains("train/step"));
        EXPECT_EQ(record.contains("moe/load_max_over_mean_layer_2"), record.contains("moe/aux_loss"));
      }
      ASSERT_EQ(run(with_flag(words(cut, flags), "--num-rollout", "1")).code, 0) << which;
      const Captured rest = run(words(cut, flags + Arguments{"--load", cut}));
      ASSERT_EQ(rest.code, 0) << which << rest.err;
      EXPECT_TRUE(everything_of(cut) == everything_of(whole)) << which;
      weights.push_back(weights_of(whole));
    }
  }
  EXPECT_TRUE(weights[0] != weights[2]) << "GSPO's ratios differ from GRPO's in a rollout's second step";
}

TEST_F(SparseModel, AFrozenRouterKeepsItsBitsInCheckpointAndExport) {
  const std::string router = ".mlp.gate.weight", expert = ".mlp.experts.3.up_proj.weight";
  const std::string whole = folder_ / "frozen", cut = folder_ / "cut", trained = folder_ / "trained";
  const Arguments flags = {"--freeze-moe-router", "--save-interval", "1"};
  const Captured result = run(words(whole, flags));
  ASSERT_EQ(result.code, 0) << result.err;
  ASSERT_EQ(run(words(trained)).code, 0);
  const auto of = [](const std::string& run, const std::string& ending) {
    return tensors_of(run + "/hf/latest/model.safetensors", ending);
  };
  const std::string start = kSparseModel + "/model.safetensors";
  EXPECT_TRUE(of(whole, router) == tensors_of(start, router));
  EXPECT_FALSE(of(whole, expert) == tensors_of(start, expert));
  EXPECT_FALSE(of(trained, router) == tensors_of(start, router));
  // It also does after a resume, and the checkpoint is that of the whole run.
  ASSERT_EQ(run(with_flag(words(cut, flags), "--num-rollout", "1")).code, 0);
  expect_one_line_failure(run(words(cut, {"--load", cut})), 2, "freeze-moe-router");
  const Captured rest = run(words(cut, flags + Arguments{"--load", cut}));
  ASSERT_EQ(rest.code, 0) << rest.err;
  EXPECT_TRUE(everything_of(cut) == everything_of(whole));
  // A router takes the same memory, frozen or not.
  const auto plan = [&](const Arguments& more) {
    Arguments arguments = words(folder_ / "none", more);
    arguments.front() = "plan";
    const Captured planned = run(arguments);
    EXPECT_EQ(planned.code, 0) << planned.err;
    return planned.out;
  };
  EXPECT_EQ(plan({"--freeze-moe-router"}), plan({}));
}

TEST_F(SparseModel, OnlyASparseModelHasARouterToFreezeOrToBalance) {
  const std::string dense = folder_ / "dense";
  expect_one_line_failure(run(with_flag(words(dense, {"--moe-aux-loss-coeff", "1e-3"}), "--hf-checkpoint", kModel)), 2,
                          "--moe-aux-loss-coeff 0.001: " + kModel + " is of Qwen3ForCausalLM, which has no router");
  expect_one_line_failure(run(with_flag(words(dense, {"--moe-per-layer-logging"}), "--hf-checkpoint", kModel)), 2,
                          "--moe-per-layer-logging: " + kModel + " is of Qwen3ForCausalLM, which has no router");
  expect_one_line_failure(run(words(dense, {"--moe-aux-loss-coeff", "1e-3", "--lora-rank", "4"})), 2,
                          "--moe-aux-loss-coeff 0.001: balances routers, which --lora-rank does not train");
  expect_one_line_failure(run(with_flag(words(dense, {"--freeze-moe-router"}), "--hf-checkpoint", kModel)), 2,
                          "--freeze-moe-router: " + kModel + " is of Qwen3ForCausalLM, which has no router");
  const Arguments shares = {"--rollout-expert-parallel", "--actor-num-gpus-per-node", "2", "--dry-run"};
  expect_one_line_failure(run(with_flag(words(dense, shares), "--hf-checkpoint", kModel)), 2,
                          "--rollout-expert-parallel: the model has no experts that devices could share");
  expect_one_line_failure(
      run(words(dense, shares + Arguments{"--lora-rank", "4", "--target-modules", "q_proj,gate_proj,up_proj"})), 2,
      "--rollout-expert-parallel with --target-modules of experts: experts with an adapter are not shared");
  expect_one_line_failure(run(words(dense, shares + Arguments{"--lora-rank", "4", "--dtype", "nf4"})), 2,
                          "--rollout-expert-parallel with --dtype nf4: quantised experts are not shared");
  EXPECT_FALSE(base::directory_exists(dense));
}

// A loss that balances experts has a sum over samples in it; and the ranks share experts while they sample.
TEST_F(SparseModel, TwoRanksThatShareExpertsRecordTheLoadOfOne) {
  const std::string one = folder_ / "one", two = folder_ / "two";
  for (const auto& [path, ranks] : {std::pair{one, 1}, std::pair{two, 2}}) {
    Arguments flags = {"--max-tokens-per-gpu", "120", "--moe-aux-loss-coeff", "0.1"};
    if (ranks > 1) flags.emplace_back("--rollout-expert-parallel");
    const Captured result = run_program(with_ranks(words(path, flags), ranks));
    ASSERT_EQ(result.code, 0) << result.err;
  }
  const auto loads = [](const std::string& run) {
    std::vector<double> numbers;
    for (const base::Json& record : json_lines(run + "/metrics.jsonl")) {
      for (const auto& [name, value] : record.items())
        if (name.starts_with("moe/")) numbers.push_back(value.get<double>());
    }
    return numbers;
  };
  EXPECT_EQ(loads(one).size(), 20U);
  EXPECT_EQ(loads(two), loads(one));
  EXPECT_TRUE(weights_of(two) == weights_of(one));
}

// A command of slime or Megatron for Qwen3-30B-A3B has these; they ask for what is done anyway.
TEST_F(SparseModel, FlagsOfExpertsThatChangeNothingAreAccepted) {
  const Captured result = run(words(folder_ / "none", {"--dry-run",
                                                       "--use-rollout-routing-replay",
                                                       "--moe-token-dispatcher-type",
                                                       "alltoall",
                                                       "--moe-grouped-gemm",
                                                       "--moe-permute-fusion",
                                                       "--moe-router-dtype",
                                                       "fp32",
                                                       "--moe-router-score-function",
                                                       "softmax",
                                                       "--moe-router-load-balancing-type",
                                                       "aux_loss",
                                                       "--moe-aux-loss-coeff",
                                                       "0",
                                                       "--moe-z-loss-coeff=0.0",
                                                       "--moe-router-bias-update-rate",
                                                       "0",
                                                       "--moe-router-num-groups",
                                                       "1",
                                                       "--moe-router-group-topk",
                                                       "1",
                                                       "--moe-router-topk-scaling-factor",
                                                       "1.0",
                                                       "--moe-input-jitter-eps",
                                                       "0",
                                                       "--moe-token-drop-policy",
                                                       "probs",
                                                       "--moe-enable-deepep",
                                                       "--moe-flex-dispatcher-backend",
                                                       "deepep",
                                                       "--moe-shared-expert-overlap",
                                                       "--overlap-moe-expert-parallel-comm",
                                                       "--moe-use-legacy-grouped-gemm",
                                                       "--moe-router-fusion",
                                                       "--expert-model-parallel-size",
                                                       "1",
                                                       "--expert-tensor-parallel-size",
                                                       "1"}));
  EXPECT_EQ(result.code, 0) << result.err;
}

TEST_F(SparseModel, FlagsOfExpertsThatAskForMoreAreRefusedWithTheReason) {
  const std::vector<std::pair<Arguments, std::string>> cases = {
      {{"--use-routing-replay"}, "--advantage-estimator gspo"},
      {{"--expert-model-parallel-size", "8"}, "--tensor-model-parallel-size"},
      {{"--expert-tensor-parallel-size", "4"}, "--tensor-model-parallel-size"},
      {{"--moe-extended-tp"}, "--tensor-model-parallel-size"},
      {{"--moe-router-load-balancing-type", "aux_loss", "--moe-aux-loss-coeff", "0.001"}, "give seq_aux_loss"},
      {{"--moe-aux-loss-coeff", "0.001", "--moe-router-load-balancing-type", "none"}, "leave one out"},
      {{"--moe-aux-loss-coeff", "0.001", "--freeze-moe-router"}, "leave one out"},
      {{"--moe-aux-loss-coeff", "-1"}, "at least 0"},
      {{"--moe-z-loss-coeff", "1e-3"}, "--freeze-moe-router"},
      {{"--moe-router-load-balancing-type", "sinkhorn"}, "seq_aux_loss"},
      {{"--moe-router-force-load-balancing"}, "largest logits"},
      {{"--moe-input-jitter-eps", "0.1"}, "no noise"},
      {{"--moe-expert-capacity-factor", "1.5"}, "no token is dropped"},
      {{"--moe-pad-expert-input-to-capacity"}, "no token is dropped"},
      {{"--moe-router-padding-for-fp8"}, "nothing is padded"},
      {{"--moe-router-dtype", "fp64"}, "float32, always"},
      {{"--moe-router-score-function", "sigmoid"}, "not in this version"},
      {{"--moe-router-enable-expert-bias"}, "not in this version"},
      {{"--moe-router-bias-update-rate", "1e-3"}, "not in this version"},
      {{"--moe-router-topk", "8"}, "config.json"},
      {{"--moe-router-pre-softmax"}, "config.json"},
      {{"--moe-ffn-hidden-size", "768"}, "config.json"},
      {{"--moe-layer-freq", "1"}, "config.json"},
      {{"--moe-shared-expert-intermediate-size", "512"}, "config.json"},
      {{"--num-experts", "128"}, "config.json"},
      {{"--moe-token-dispatcher-type", "carrier_pigeon"}, "no token is sent"},
      {{"--moe-deepep-num-sms", "20"}, "no token is sent"},
      {{"--moe-hybridep-num-sms", "16"}, "no token is sent"},
      {{"--moe-apply-probs-on-input"}, "weighted, not its input"},
      {{"--moe-layer-recompute"}, "--recompute-granularity full"},
      {{"--moe-use-upcycling"}, "dense model"},
      {{"--moe-upcycling-granularity", "2"}, "dense model"},
      {{"--moe-something-new"}, "docs/EXPERTS.md"}};
  for (const auto& [flags, says] : cases) {
    const Captured result = run(words(folder_ / "none", flags));
    expect_one_line_failure(result, 2, flags.front());
    EXPECT_NE(result.err.find(says), std::string::npos) << flags.front() << "\n" << result.err;
  }
}

}  // namespace
}  // namespace tandem::cli
