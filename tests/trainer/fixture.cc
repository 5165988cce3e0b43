#include "tests/trainer/fixture.h"

#include <algorithm>
#include <random>
#include <utility>

#include "base/check.h"
#include "device/ops_aten.h"
#include "model/registry.h"
#include "tests/model/families.h"
#include "tests/model/random_weights.h"

namespace tandem::trainer {

std::string& golden_directory() {
  static std::string directory = kDefaultGolden;
  return directory;
}

const device::Ops& test_ops() {
  static const std::unique_ptr<device::Ops> ops = device::make_cpu_ops("auto", 2);
  return *ops;
}

const device::Ops& reference_ops() {
  static const std::unique_ptr<device::Ops> ops = device::make_aten_ops(2);
  return *ops;
}

TestModel load_golden_model(const std::string& name, const device::Ops& ops) {
  const std::string directory = golden_directory() + "/models/" + name;
  TestModel m;
  m.config = model::read_model_config(directory);
  m.store = std::make_unique<weights::WeightStore>(model::build_layout(m.config), at::kFloat);
  weights::load_hf_checkpoint(directory, *m.store);
  m.model = model::make_model(m.config, m.store->view(), ops);
  return m;
}

TestModel make_small_model(at::ScalarType dtype, bool tied, const device::Ops& ops, const std::string& architecture) {
  TestModel m;
  m.config.hidden = 48;
  m.config.num_layers = 3;
  m.config.num_heads = 4;
  m.config.num_kv_heads = 2;
  m.config.head_dim = 16;
  m.config.mlp = 80;
  m.config.vocab = 70;
  m.config.max_positions = 256;
  m.config.tied_embeddings = tied;
  m.config.dtype = dtype == at::kFloat ? model::Dtype::kFloat32 : model::Dtype::kBFloat16;
  m.config = model::in_family(m.config, architecture);
  m.store = std::make_unique<weights::WeightStore>(model::build_layout(m.config), dtype);
  model::draw_weights(*m.store, 0.2, 3);
  m.model = model::make_model(m.config, m.store->view(), ops);
  return m;
}

std::vector<rl::Sample> random_samples(uint32_t seed, int num_groups, int group_size) {
  std::mt19937 random(seed);
  const auto draw = [&](int low, int high) { return low + static_cast<int>(random() % (high - low + 1)); };
  std::normal_distribution<double> normal;
  const auto tokens = [&](int length) {
    std::vector<int32_t> ids(length);
    for (int32_t& id : ids) id = draw(0, 69);
    return ids;
  };
  std::vector<rl::Sample> samples;
  for (int g = 0; g < num_groups; ++g) {
    const std::vector<int32_t> prompt = tokens(draw(1, 40));
    for (int s = 0; s < group_size; ++s) {
      rl::Sample sample;
      sample.group_id = static_cast<uint64_t>(g);
      sample.sample_id = samples.size();
      sample.prompt = prompt;
      sample.completion = tokens(draw(1, 30));
      for (size_t i = 0; i < sample.completion.size(); ++i) {
        sample.rollout_logprobs.push_back(static_cast<float>(-4.2 + 0.3 * normal(random)));
        sample.ref_logprobs.push_back(static_cast<float>(-4.2 + 0.3 * normal(random)));
        sample.loss_mask.push_back(draw(0, 9) == 0 ? 0 : 1);
      }
      sample.advantages.assign(sample.completion.size(), normal(random));
      samples.push_back(std::move(sample));
    }
  }
  return samples;
}

std::vector<const rl::Sample*> pointers(const std::vector<rl::Sample>& samples) {
  std::vector<const rl::Sample*> result;
  for (const rl::Sample& sample : samples) result.push_back(&sample);
  return result;
}

std::map<std::string, at::Tensor> gradients(const Trainer& trainer, const weights::WeightStore& store) {
  std::map<std::string, at::Tensor> result;
  for (const weights::PackedTensor& packed : store.layout().tensors) {
    result[packed.name] = trainer.gradient(packed.name).clone();
  }
  return result;
}

double relative_difference(const std::map<std::string, at::Tensor>& a, const std::map<std::string, at::Tensor>& b) {
  TANDEM_CHECK_EQ(a.size(), b.size());
  double difference = 0.0, largest = 0.0;
  for (const auto& [name, tensor] : a) {
    const at::Tensor other = b.at(name).to(at::kDouble);
    difference = std::max(difference, tensor.to(at::kDouble).sub(other).abs().max().item<double>());
    largest = std::max(largest, other.abs().max().item<double>());
  }
  return difference / largest;
}

at::Tensor WatchedModel::block(int64_t layer, const at::Tensor& hidden_TE, const at::Tensor& positions_T,
                               model::Attention& attention) const {
  ++num_block_runs_;
  return inner_.block(layer, hidden_TE, positions_T, attention);
}

at::Tensor WatchedModel::head(const at::Tensor& hidden_RE) const {
  at::Tensor logits = inner_.head(hidden_RE);
  logits_.emplace_back(logits.getIntrusivePtr());
  num_logit_rows_ += logits.size(0);
  int64_t live_rows = 0;
  for (const auto& weak : logits_) {
    if (const auto alive = weak.lock()) live_rows += alive->sizes()[0];
  }
  max_live_logit_rows_ = std::max(max_live_logit_rows_, live_rows);
  return logits;
}

}  // namespace tandem::trainer
