// Tests of training an adapter: the base keeps its bits, and the adapter's gradient is the chain rule's of the weights'
// gradient.
#include <ATen/TensorOperators.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <map>

#include "model/lora.h"
#include "model/registry.h"
#include "tests/golden/golden.h"
#include "tests/model/random_weights.h"
#include "tests/trainer/fixture.h"
#include "tests/weights/tensor_files.h"
#include "trainer/trainer_plan.h"

namespace tandem::trainer {
namespace {

struct AdaptedModel {
  AdaptedModel(model::ModelConfig shape, const std::vector<std::string>& targets)
      : config(std::move(shape)),
        base(model::build_layout(config), model_dtype(config)),
        adapter(model::adapter_layout(with_targets(config, targets)), base.dtype()) {
    model::draw_weights(base, 0.2, 11);
    model::draw_weights(adapter, 0.2, 12);  // draws B too, or A would have no gradient
    model = model::make_model(config, base.view().with(adapter.view()), test_ops());
  }
  static at::ScalarType model_dtype(const model::ModelConfig& config) {
    return config.dtype == model::Dtype::kFloat32 ? at::kFloat : at::kBFloat16;
  }
  static const model::ModelConfig& with_targets(model::ModelConfig& config, const std::vector<std::string>& targets) {
    config.lora = {.rank = 5, .alpha = 8.0, .target_modules = targets};
    return config;
  }

  model::ModelConfig config;
  weights::WeightStore base, adapter;
  std::unique_ptr<model::Model> model;
};

TrainerConfig one_big_step() {
  TrainerConfig config;
  config.schedule.max_lr = 0.1;
  return config;
}

std::map<std::string, at::Tensor> copies(const weights::WeightStore& store) {
  std::map<std::string, at::Tensor> result;
  for (const auto& packed : store.layout().tensors) result[packed.name] = store.tensor(packed.name).clone();
  return result;
}

const std::vector<std::string> kAll = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"};

TEST(TrainerLora, OnlyTheAdapterLearnsAndOnlyItHasState) {
  for (const model::Dtype dtype : {model::Dtype::kFloat32, model::Dtype::kBFloat16}) {
    for (const std::string& architecture : model::kUnfusedArchitectures) {
      SCOPED_TRACE(architecture);
      model::ModelConfig shape = model::small_config(2, architecture);
      shape.dtype = dtype;
      AdaptedModel m(shape, kAll);
      const auto base = copies(m.base), before = copies(m.adapter);
      const auto trainer = make_trainer(one_big_step(), m.adapter, *m.model);
      const std::vector<rl::Sample> samples = random_samples(3, 3, 2);
      trainer->step(pointers(samples));
      for (const auto& [name, tensor] : copies(m.base)) EXPECT_TRUE(tensor.equal(base.at(name))) << name;
      for (const auto& [name, tensor] : copies(m.adapter)) EXPECT_FALSE(tensor.equal(before.at(name))) << name;
      EXPECT_EQ(m.adapter.version(), 1U);
      EXPECT_EQ(m.base.version(), 0U);
      OptimizerBytes taken;
      for (const OptimizerTensor& one : trainer->state()) {
        const bool is_master = one.kind == StateKind::kMaster;
        if (is_master && dtype == model::Dtype::kFloat32) continue;
        (is_master ? taken.master : taken.moments) += static_cast<int64_t>(one.tensor.nbytes());
      }
      const OptimizerBytes planned = optimizer_bytes(model::trained_layout(m.config), m.config.dtype);
      EXPECT_EQ(taken.master, planned.master);
      EXPECT_EQ(taken.moments, planned.moments);
      EXPECT_LT(planned.moments, 8 * m.config.num_parameters()) << "less than that of the weights";
    }
  }
}

// W' = W + s B A has the gradient G. Then A's is s B^T G, and B's is s G A^T.
TEST(TrainerLora, GradientsAreTheChainRulesOfTheMergedWeights) {
  const double kTolerance = 2e-4;  // share of the largest: the merged weights are rounded, and so are other sums
  for (const std::string& architecture : model::kUnfusedArchitectures) {
    for (const std::vector<std::string>& targets : {kAll, std::vector<std::string>{"k_proj", "up_proj"},
                                                    std::vector<std::string>{"q_proj", "v_proj", "o_proj"}}) {
      SCOPED_TRACE(architecture + ", " + std::to_string(targets.size()) + " modules");
      AdaptedModel m(model::small_config(2, architecture), targets);
      const double scale = m.config.lora->scale();
      weights::WeightStore merged(model::build_layout(m.config), at::kFloat);
      for (const auto& packed : merged.layout().tensors) merged.tensor(packed.name).copy_(m.base.tensor(packed.name));
      for (const model::AdaptedMatrix& one : model::adapted_matrices(m.config)) {
        const at::Tensor a = m.adapter.tensor(one.packed_name + model::kLoraA).narrow(0, one.a_row, 5);
        const at::Tensor b = m.adapter.tensor(one.packed_name + model::kLoraB).narrow(0, one.b_row, one.num_rows);
        merged.tensor(one.packed_name).narrow(0, one.row, one.num_rows).add_(at::mm(b, a), scale);
      }
      model::ModelConfig full = m.config;
      full.lora.reset();
      const auto full_model = model::make_model(full, merged.view(), test_ops());
      const std::vector<rl::Sample> samples = random_samples(4, 3, 2);
      const auto of_weights = make_trainer(one_big_step(), merged, *full_model);
      const auto of_adapter = make_trainer(one_big_step(), m.adapter, *m.model);
      // The step changes the weights after the gradient, and A and B are needed as they were.
      const auto before = copies(m.adapter);
      of_weights->step(pointers(samples));
      of_adapter->step(pointers(samples));
      std::map<std::string, at::Tensor> want, got = gradients(*of_adapter, m.adapter);
      for (const auto& [name, tensor] : before) want[name] = at::zeros_like(tensor);
      for (const model::AdaptedMatrix& one : model::adapted_matrices(m.config)) {
        const auto a_of = [&](const auto& tensors) {
          return tensors.at(one.packed_name + model::kLoraA).narrow(0, one.a_row, 5);
        };
        const auto b_of = [&](const auto& tensors) {
          return tensors.at(one.packed_name + model::kLoraB).narrow(0, one.b_row, one.num_rows);
        };
        const at::Tensor g = of_weights->gradient(one.packed_name).narrow(0, one.row, one.num_rows);
        a_of(want).copy_(at::mm(b_of(before).t(), g) * scale);
        b_of(want).copy_(at::mm(g, a_of(before).t()) * scale);
      }
      EXPECT_LT(relative_difference(got, want), kTolerance);
    }
  }
}

TEST(TrainerLora, RecomputedBlocksGiveTheSameBits) {
  for (const std::string architecture : {"Qwen3ForCausalLM", "Qwen3MoeForCausalLM"}) {
    std::map<std::string, at::Tensor> kept;
    for (const int64_t recompute_layers : {0, 2}) {
      AdaptedModel m(model::small_config(2, architecture), kAll);
      TrainerConfig config = one_big_step();
      config.recompute_layers = recompute_layers;
      const auto trainer = make_trainer(config, m.adapter, *m.model);
      const std::vector<rl::Sample> samples = random_samples(6, 2, 2);
      trainer->step(pointers(samples));
      if (kept.empty()) kept = copies(m.adapter);
      for (const auto& [name, tensor] : copies(m.adapter)) EXPECT_TRUE(tensor.equal(kept.at(name))) << name;
    }
  }
}

// PEFT's adapter of experts, and what it becomes, come from tests/golden/lora_experts/make.py.
TEST(TrainerLora, AStepOfAnAdapterOfExpertsIsPeftsAndTorchs) {
  const std::string folder = golden::directory() + "/lora_experts", base = golden::directory() + "/models/qwen3-moe";
  const weights::SafetensorsFile reference(folder + "/reference.safetensors");
  model::ModelConfig config = model::read_model_config(base);
  config.lora = {.rank = 2, .alpha = 3.0, .target_modules = {"q_proj", "gate_proj", "up_proj", "down_proj"}};
  weights::WeightStore store(model::build_layout(config), at::kFloat);
  weights::load_hf_checkpoint(base, store);
  weights::WeightStore adapter(model::adapter_layout(config), at::kFloat);
  weights::load_adapter(folder, adapter);
  const auto model = model::make_model(config, store.view().with(adapter.view()), test_ops());
  TrainerConfig step = one_big_step();
  step.schedule.max_lr = 1e-2;
  step.adamw = {.beta1 = 0.9, .beta2 = 0.98, .eps = 1e-4, .weight_decay = 0.1, .weight_decay_all = true};
  step.loss.calculate_per_token_loss = true;
  step.loss.loss_type = "sft_loss";
  std::vector<rl::Sample> samples;
  for (const std::string sequence : {"seq0", "seq1"}) {
    const at::Tensor ids = weights::read_tensor(reference, sequence + ".input_ids");
    const auto* const first = ids.const_data_ptr<int32_t>();
    rl::Sample& sample = samples.emplace_back();
    sample.group_id = sample.sample_id = samples.size();
    sample.prompt = rl::make_prompt({first[0]});
    sample.completion.assign(first + 1, first + ids.size(0));
    sample.loss_mask.assign(sample.completion.size(), 1);
  }
  const auto trainer = make_trainer(step, adapter, *model);
  EXPECT_NEAR(trainer->step(pointers(samples)).at("loss"), weights::read_tensor(reference, "step.loss").item<double>(),
              1e-5);
  for (const weights::PackedTensor& packed : adapter.layout().tensors) {
    for (const weights::Slice& slice : packed.slices) {
      const at::Tensor ours = adapter.tensor(packed.name).narrow(0, slice.row_begin, slice.shape[0]);
      const at::Tensor theirs = weights::read_tensor(reference, "step.after." + slice.hf_name);
      EXPECT_LT(ours.sub(theirs).abs().max().item<double>(), 1e-5) << slice.hf_name;
    }
  }
}

}  // namespace
}  // namespace tandem::trainer
