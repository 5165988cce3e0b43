#include "device_check/step.h"

#include <ATen/core/Tensor.h>
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/message_text.h"
#include "bench/exactness.h"
#include "bench/rollout.h"
#include "device/transfer.h"
#include "device_check/numbers.h"
#include "session/trainer_setup.h"
#include "trainer/trainer.h"

namespace tandem::device_check {

namespace {

constexpr int kSteps = 3;

// Holds a copy of the optimizer's state on the host.
struct SavedState {
  std::vector<at::Tensor> tensors;
  trainer::OptimizerProgress progress;
};

SavedState saved(const trainer::Trainer& trainer) {
  SavedState state{.tensors = {}, .progress = trainer.progress()};
  for (const trainer::OptimizerTensor& one : trainer.state())
    state.tensors.push_back(device::to_host(one.tensor).clone());
  return state;
}

void restore(const SavedState& state, trainer::Trainer& trainer) {
  const std::vector<trainer::OptimizerTensor> tensors = trainer.state();
  for (size_t i = 0; i < tensors.size(); ++i) tensors[i].tensor.copy_(state.tensors[i]);
  trainer.restore(state.progress);
}

std::vector<at::Tensor> weights_of(const bench::BenchModel& model) {
  std::vector<at::Tensor> result;
  for (const weights::PackedTensor& packed : model.store().layout().tensors) {
    result.push_back(device::to_host(model.store().tensor(packed.name)).clone());
  }
  return result;
}

// A training of kSteps steps, each on completions that the weights of the step before have sampled.
struct Training {
  std::vector<at::Tensor> first_weights;
  std::vector<at::Tensor> weights = {};  // at the end
  double largest_difference = 0.0;       // of log-probs, the engine's and the trainer's
};

Training train(bench::BenchModel& model, const config::BenchConfig& config, bool resumes_between_steps) {
  model.load_weights();
  const bench::RolloutShape shape = {.sequences = 8, .group = 4, .prompt_tokens = 19, .response_tokens = 24, .seed = 3};
  config::OptimizerOptions options = config.optimizer;
  options.schedule.max_lr = 1e-3;
  const trainer::TrainerConfig settings = session::trainer_config(options, {}, model.config().num_layers, kSteps);
  Training result{.first_weights = weights_of(model)};
  std::optional<SavedState> state;
  std::unique_ptr<model::Model> trained = model.make_model();
  std::unique_ptr<trainer::Trainer> trainer = trainer::make_trainer(settings, model.store(), *trained);
  for (int step = 0; step < kSteps; ++step) {
    if (state) {
      trainer = nullptr;
      trained = model.make_model();
      trainer = trainer::make_trainer(settings, model.store(), *trained);
      restore(*state, *trainer);
    }
    std::vector<rl::Sample> samples = bench::BenchRollout(model, shape).run().samples;
    std::mt19937_64 random(static_cast<uint64_t>(step));
    std::vector<const rl::Sample*> views;
    for (rl::Sample& sample : samples) {
      sample.advantages = {std::normal_distribution<double>()(random)};
      sample.versions = {{.begin = 0, .version = model.store().version()}};
      views.push_back(&sample);
    }
    const trainer::Metrics metrics = trainer->step(views, trainer::RolloutLogprobs::kOfTheseWeights);
    trainer->end_phase();
    result.largest_difference = std::max(result.largest_difference, metrics.at("train_rollout_logprob_abs_diff"));
    if (resumes_between_steps) state = saved(*trainer);
  }
  result.weights = weights_of(model);
  return result;
}

Comparison compare(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  Comparison result;
  for (size_t i = 0; i < a.size(); ++i) result += compare_bits(a[i], b[i]);
  return result;
}

}  // namespace

void ask_step(bench::BenchModel& model, const config::BenchConfig& config, Answers& answers) {
  answers.begin("step");
  model.load_weights();
  for (const bench::ExactnessAnswer& one : bench::ask_engine(model, config, bench::MixSize::kSmall)) {
    answers.answer(one.question, one.comparison, one.what);
  }
  const Training first = train(model, config, /*resumes_between_steps=*/false);
  answers.answer("while training, the engine's log-probs are the trainer's", first.largest_difference == 0.0,
                 fmt::format("mean absolute difference {:g}", first.largest_difference));
  const Comparison moved = compare(first.first_weights, first.weights);
  answers.answer("training moves the weights", moved.different > moved.compared / 2,
                 fmt::format("{} of {}", base::with_commas(moved.different), base::with_commas(moved.compared)));
  answers.answer("the same steps give the same weights",
                 compare(first.weights, train(model, config, /*resumes_between_steps=*/false).weights), "weights");
  answers.answer("steps of a trainer that was saved and restored give them too",
                 compare(first.weights, train(model, config, /*resumes_between_steps=*/true).weights), "weights");
  model.release_unused();
}

}  // namespace tandem::device_check
