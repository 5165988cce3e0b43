// Tests against transformers' gradients and torch's AdamW (golden/reference), and against one whole step of TRL
// (golden/grpo_step).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <ostream>

#include "base/check.h"
#include "base/files.h"
#include "base/json.h"
#include "model/registry.h"
#include "tests/golden/golden.h"
#include "tests/trainer/fixture.h"
#include "tests/weights/tensor_files.h"
#include "trainer/score.h"

namespace tandem::trainer {
namespace {

using base::Json;

struct GoldenCase {
  std::string model;
  bool exact_ops;  // true: operations of this machine, else the reference
  const device::Ops& ops() const { return exact_ops ? test_ops() : reference_ops(); }
  friend void PrintTo(const GoldenCase& c, std::ostream* out) { *out << c.model << (c.exact_ops ? " cpu" : " aten"); }
};

// Returns every reference whose architecture has a forward.
std::vector<GoldenCase> golden_cases() {
  std::vector<GoldenCase> result;
  for (const std::string& model : base::list_directory(golden::directory() + "/reference")) {
    const Json config = base::read_json_file(golden::directory() + "/models/" + model + "/config.json");
    const auto architecture = config.at("architectures")[0].get<std::string>();
    if (model::supported_architectures().find(architecture) == std::string::npos) continue;
    for (const bool exact_ops : {true, false}) result.push_back({model, exact_ops});
  }
  return result;
}

std::string case_name(const testing::TestParamInfo<GoldenCase>& info) {
  std::string name = info.param.model + (info.param.exact_ops ? "_cpu" : "_aten");
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

// Makes samples of the rows of batch.*: the prompt ends before the first label, and the completion carries labels.
std::vector<rl::Sample> sft_samples(const std::map<std::string, at::Tensor>& golden) {
  const at::Tensor ids = golden.at("batch.input_ids"), labels = golden.at("batch.labels"),
                   attention_mask = golden.at("batch.attention_mask");
  std::vector<rl::Sample> samples;
  for (int64_t row = 0; row < ids.size(0); ++row) {
    rl::Sample sample;
    sample.group_id = sample.sample_id = static_cast<uint64_t>(row);
    std::vector<int32_t> prompt;
    const int64_t length = attention_mask[row].sum().item<int64_t>();
    for (int64_t t = 0; t < length; ++t) {
      const auto id = ids[row][t].item<int32_t>();
      const bool is_target = t > 0 && labels[row][t].item<int64_t>() != -100;
      TANDEM_CHECK(is_target || sample.completion.empty(), "a token without label inside a completion");
      (is_target ? sample.completion : prompt).push_back(id);
    }
    sample.prompt = rl::make_prompt(std::move(prompt));
    sample.loss_mask.assign(sample.completion.size(), 1);
    samples.push_back(std::move(sample));
  }
  return samples;
}

TrainerConfig golden_config() {
  TrainerConfig config;
  config.schedule.max_lr = 1e-3;
  config.adamw.weight_decay = 0.1;
  config.adamw.weight_decay_all = true;
  config.gradient.clip_grad = 1.0;
  config.loss.calculate_per_token_loss = true;
  return config;
}

// Calls f(HF name, its rows of a packed tensor).
template <typename TensorOf, typename F>
void for_each_parameter(const weights::WeightStore& store, TensorOf tensor_of, F f) {
  for (const weights::PackedTensor& packed : store.layout().tensors) {
    for (const weights::Slice& slice : packed.slices) {
      f(slice.hf_name, tensor_of(packed.name).narrow(0, slice.row_begin, slice.shape[0]).contiguous());
    }
  }
}

void expect_gradients(const Trainer& trainer, const weights::WeightStore& store,
                      const std::map<std::string, at::Tensor>& golden, double tolerance) {
  size_t num_compared = 0;
  const auto gradient = [&](const std::string& name) { return trainer.gradient(name); };
  for_each_parameter(store, gradient, [&](const std::string& name, const at::Tensor& ours) {
    const at::Tensor theirs = golden.at("grad." + name);
    ASSERT_EQ(ours.sizes(), theirs.sizes()) << name;
    EXPECT_LE(ours.sub(theirs).abs().max().item<double>(), tolerance) << name;
    ++num_compared;
  });
  const auto is_gradient = [](const auto& entry) { return entry.first.starts_with("grad."); };
  EXPECT_EQ(num_compared, std::count_if(golden.begin(), golden.end(), is_gradient));
}

// Returns how many elements of each head of the parameter have a gradient that is more than rounding, of which AdamW
// would make steps of full length: a bias of keys adds the same to all scores of a query where it is not rotated. 0:
// all have.
int64_t elements_of_head(const model::ModelConfig& config, const std::string& name) {
  return name.ends_with("k_proj.bias") && config.rotated_dims() < config.head_dim ? config.rotated_dims() : 0;
}

// `after` has sum, abs_sum and sampled values of each parameter, `places` the places of those values.
void expect_weights(const weights::WeightStore& store, const model::ModelConfig& config, const Json& after,
                    const Json& places) {
  size_t num_compared = 0;
  const auto weight = [&](const std::string& name) { return store.tensor(name); };
  for_each_parameter(store, weight, [&](const std::string& name, const at::Tensor& ours) {
    ++num_compared;
    const int64_t of_head = elements_of_head(config, name);
    const Json& theirs = after.at(name);
    const double sum = theirs.at("sum"), abs_sum = theirs.at("abs_sum");
    if (of_head == 0) {
      EXPECT_NEAR(ours.to(at::kDouble).sum().item<double>(), sum, 1e-3 + 1e-6 * std::abs(sum)) << name;
      EXPECT_NEAR(ours.to(at::kDouble).abs().sum().item<double>(), abs_sum, 1e-3 + 1e-6 * abs_sum) << name;
    }
    const Json& index = places.at(name).at("index");
    for (size_t i = 0; i < index.size(); ++i) {
      if (of_head != 0 && index[i].get<int64_t>() % config.head_dim >= of_head) continue;
      const auto value = ours.const_data_ptr<float>()[index[i].get<int64_t>()];
      EXPECT_NEAR(value, theirs.at("values")[i].get<double>(), 1e-5) << name << "[" << index[i] << "]";
    }
  });
  EXPECT_EQ(num_compared, after.size());
}

class Golden : public testing::TestWithParam<GoldenCase> {};

TEST_P(Golden, GradientsAndThreeAdamWStepsAreTransformers) {
  const std::string directory = golden::directory() + "/reference/" + GetParam().model;
  const std::map<std::string, at::Tensor> golden = weights::read_tensors(directory + "/reference.safetensors");
  const Json json = base::read_json_file(directory + "/reference.json");
  TestModel m = model::load_model(golden::directory() + "/models/" + GetParam().model, GetParam().ops());
  TrainerConfig config = golden_config();
  config.loss.loss_type = "sft_loss";
  const std::unique_ptr<Trainer> trainer = make_trainer(config, *m.store, *m.model);
  const std::vector<rl::Sample> samples = sft_samples(golden);

  for (int step = 1; step <= 3; ++step) {
    SCOPED_TRACE(testing::Message() << "step " << step);
    const Metrics metrics = trainer->step(pointers(samples));
    const Json& theirs = json.at("optimizer").at("steps")[step - 1];
    EXPECT_NEAR(metrics.at("loss"), theirs.at("loss").get<double>(), 1e-5);
    const double grad_norm = theirs.at("grad_norm");
    EXPECT_NEAR(metrics.at("grad_norm"), grad_norm, 1e-5 * grad_norm);
    if (step == 1) expect_gradients(*trainer, *m.store, golden, 1e-5);
    if (step != 2)
      expect_weights(*m.store, m.model->config(), json.at("after_" + std::to_string(step)), json.at("parameters"));
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Golden, testing::ValuesIn(golden_cases()), case_name);

std::vector<float> masked_row(const at::Tensor& values, int64_t row, size_t length) {
  const float* p = values.const_data_ptr<float>() + row * values.size(1);
  return {p, p + length};
}

std::vector<rl::Sample> trl_samples(const Json& json, const std::map<std::string, at::Tensor>& golden) {
  std::vector<rl::Sample> samples;
  for (size_t row = 0; row < json.at("completions").size(); ++row) {
    rl::Sample sample;
    sample.group_id = row / json.at("params").at("num_generations").get<size_t>();
    sample.sample_id = row;
    sample.prompt = rl::make_prompt(json.at("prompts")[row].get<std::vector<int32_t>>());
    if (!samples.empty() && samples.back().group_id == sample.group_id) {
      TANDEM_CHECK(samples.back().prompt->tokens == sample.prompt->tokens, "a group with two prompts");
      sample.prompt = samples.back().prompt;
    }
    sample.completion = json.at("completions")[row].get<std::vector<int32_t>>();
    const size_t length = sample.completion.size();
    sample.rollout_logprobs = masked_row(golden.at("old_logp"), static_cast<int64_t>(row), length);
    sample.ref_logprobs = masked_row(golden.at("ref_logp"), static_cast<int64_t>(row), length);
    sample.loss_mask.assign(length, 1);
    sample.advantages = {golden.at("advantages")[static_cast<int64_t>(row)].item<double>()};
    samples.push_back(std::move(sample));
  }
  return samples;
}

TEST(GoldenGrpoStep, IsTrlsDapoStep) {
  const std::string directory = golden::directory() + "/grpo_step/grpo_step";
  if (golden::directory() != golden::kDefaultDirectory && !base::file_exists(directory + ".json")) {
    GTEST_SKIP() << golden::directory() << " has no grpo_step";
  }
  const std::map<std::string, at::Tensor> golden = weights::read_tensors(directory + ".safetensors");
  const Json json = base::read_json_file(directory + ".json");
  const Json& params = json.at("params");
  for (const device::Ops* ops : {&test_ops(), &reference_ops()}) {
    SCOPED_TRACE(ops->name());
    TestModel m = model::load_model(golden::directory() + "/models/" + json.at("model").get<std::string>(), *ops);
    TrainerConfig config = golden_config();
    config.temperature = params.at("temperature");
    config.loss.eps_clip = params.at("epsilon");
    config.loss.eps_clip_high = params.at("epsilon_high");
    config.loss.kl_loss_coef = params.at("beta");
    config.loss.kl_loss_type = "k3";
    config.loss.use_unbiased_kl = params.at("use_bias_correction_kl");
    config.loss.entropy_coef = params.at("entropy_coef");
    const std::unique_ptr<Trainer> trainer = make_trainer(config, *m.store, *m.model);
    const std::vector<rl::Sample> samples = trl_samples(json, golden);

    const Scores scores = score(*m.model, pointers(samples), config.batch, config.temperature);
    for (size_t row = 0; row < samples.size(); ++row) {
      for (size_t t = 0; t < samples[row].completion.size(); ++t) {
        const auto at = [&](const char* name) {
          return golden.at(name)[static_cast<int64_t>(row)][static_cast<int64_t>(t)].item<float>();
        };
        EXPECT_NEAR(scores.logprobs[row][t], at("logp"), 5e-5);
        EXPECT_NEAR(scores.entropy[row][t], at("entropy"), 5e-5);
      }
    }

    const Metrics metrics = trainer->step(pointers(samples));
    EXPECT_NEAR(metrics.at("loss"), json.at("loss").get<double>(), 1e-5);
    // TRL's policy_loss has every term but the entropy's.
    EXPECT_NEAR(metrics.at("pg_loss") + config.loss.kl_loss_coef * metrics.at("kl_loss"),
                json.at("metrics").at("policy_loss").get<double>(), 1e-5);
    EXPECT_NEAR(metrics.at("kl_loss"), json.at("metrics").at("kl").get<double>(), 1e-5);
    EXPECT_NEAR(metrics.at("entropy_loss"), json.at("metrics").at("entropy").get<double>(), 5e-5);
    EXPECT_NEAR(metrics.at("kl"), json.at("metrics").at("kl").get<double>(), 1e-5);
    EXPECT_NEAR(metrics.at("entropy"), json.at("metrics").at("entropy").get<double>(), 5e-5);
    const double grad_norm = json.at("grad_norm");
    EXPECT_NEAR(metrics.at("grad_norm"), grad_norm, 1e-5 * grad_norm);
    expect_gradients(*trainer, *m.store, golden, 2e-5);
    expect_weights(*m.store, m.model->config(), json.at("after_1"), json.at("parameters"));
  }
}

}  // namespace
}  // namespace tandem::trainer
