#include "tests/rl/golden_losses.h"

#include <cstring>
#include "tests/golden/golden.h"

namespace tandem::rl {
namespace {

template <typename Element>
std::vector<Element> read_elements(const weights::SafetensorsFile& file, const weights::TensorInfo& info) {
  std::vector<Element> values(static_cast<size_t>(info.num_bytes()) / sizeof(Element));
  file.read(info, 0, std::as_writable_bytes(std::span(values)));
  return values;
}

}  // namespace

GoldenLosses::GoldenLosses()
    : file_(golden::directory() + "/losses/losses.safetensors"),
      json_(base::read_json_file(golden::directory() + "/losses/losses.json")) {}

std::vector<float> GoldenLosses::floats(const std::string& name) const {
  return read_elements<float>(file_, file_.tensor(name));
}

std::vector<double> GoldenLosses::doubles(const std::string& name) const {
  const weights::TensorInfo& info = file_.tensor(name);
  if (info.dtype == "F64") return read_elements<double>(file_, info);
  const std::vector<float> values = floats(name);
  return {values.begin(), values.end()};
}

std::vector<int64_t> GoldenLosses::integers(const std::string& name) const {
  return read_elements<int64_t>(file_, file_.tensor(name));
}

std::vector<uint8_t> GoldenLosses::mask(const std::string& name) const {
  const std::vector<int64_t> values = integers(name);
  return {values.begin(), values.end()};
}

GoldenBatch::GoldenBatch(const GoldenLosses& golden, int64_t batch) : name("b" + std::to_string(batch)) {
  const std::string in = name + ".in.";
  logprobs = golden.floats(in + "cur");
  old_logprobs = golden.floats(in + "old");
  ref_logprobs = golden.floats(in + "ref");
  rollout_logprobs = golden.floats(in + "roll");
  entropy = golden.floats(in + "entropy");
  mask = golden.mask(in + "mask");
  advantages = golden.doubles(name + ".verl.advantages.grpo");
}

LossInput GoldenBatch::row(int64_t sample) const {
  const auto at = static_cast<size_t>(sample * kNumTokens);
  return {.length = kNumTokens,
          .logprobs = &logprobs[at],
          .old_logprobs = &old_logprobs[at],
          .rollout_logprobs = with_rollout ? &rollout_logprobs[at] : nullptr,
          .ref_logprobs = with_reference ? &ref_logprobs[at] : nullptr,
          .entropy = with_entropy ? &entropy[at] : nullptr,
          .mask = &mask[at],
          .advantages = &advantages[at],
          .weights = weights.empty() ? nullptr : &weights[at]};
}

std::vector<TokenChoice> choose(const LossConfig& config, const GoldenBatch& batch) {
  std::vector<ChoiceInput> inputs;
  for (int64_t i = 0; i < kNumSamples; ++i) {
    const LossInput row = batch.row(i);
    inputs.push_back({.sample_id = static_cast<uint64_t>(i),
                      .mask = std::span(row.mask, kNumTokens),
                      .logprobs = row.logprobs,
                      .old_logprobs = row.old_logprobs,
                      .advantages = row.advantages,
                      .entropy = row.entropy});
  }
  return choose_tokens(config, inputs, {.seed = 7, .step = 3});
}

StepResult run_step(const LossConfig& config, const GoldenBatch& batch, int64_t first, int64_t rows) {
  LossNormaliser normaliser(config);
  for (int64_t i = 0; i < kNumSamples; ++i) {
    normaliser.add(std::span(batch.mask).subspan(static_cast<size_t>(i * kNumTokens), kNumTokens));
  }
  constexpr size_t kNumElements = kNumSamples * kNumTokens;
  StepResult result{
      .metrics = {}, .dlogprobs = std::vector<double>(kNumElements), .dentropy = std::vector<double>(kNumElements)};
  const std::vector<TokenChoice> choices = choose(config, batch);
  LossSums sums;
  for (int64_t i = first; i < first + rows; ++i) {
    const auto at = static_cast<size_t>(i * kNumTokens);
    LossInput row = batch.row(i);
    row.entropy_share = normaliser.entropy_share(num_low_entropy(choices));
    row.covariant = choices[static_cast<size_t>(i)].covariant.data();
    row.low_entropy = choices[static_cast<size_t>(i)].low_entropy.data();
    accumulate_loss(config, row, {&result.dlogprobs[at], &result.dentropy[at]}, sums);
  }
  for (double& g : result.dlogprobs) g *= normaliser.loss_scale();
  for (double& g : result.dentropy) g *= normaliser.loss_scale();
  result.metrics = normaliser.metrics(sums);
  return result;
}

}  // namespace tandem::rl
