#include "tests/trainer/fixture.h"

#include <algorithm>
#include <random>
#include <utility>

#include "base/check.h"

namespace tandem::trainer {

TestModel make_small_model(at::ScalarType dtype, bool tied, const device::Ops& ops, const std::string& architecture) {
  model::ModelConfig config = model::small_config(/*num_layers=*/3, architecture);
  config.tied_embeddings = tied;
  config.dtype = dtype == at::kFloat ? model::Dtype::kFloat32 : model::Dtype::kBFloat16;
  return model::random_model(config, ops);
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
    const rl::SharedPrompt prompt = rl::make_prompt(tokens(draw(1, 40)));
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
