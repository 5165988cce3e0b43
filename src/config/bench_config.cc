#include "config/bench_config.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "base/size.h"
#include "device/backends.h"
#include "device/footprint.h"

namespace tandem::config {

namespace {

constexpr int64_t kMaxSequences = 4096;

}  // namespace

void BenchConfig::visit(options::Options& options) {
  const char* const model_group = "model";
  options
      .option(shape, "shape", model_group,
              "the model's shape, with random weights and without a file; where neither this nor --hf-checkpoint is "
              "given: qwen3-4b, on a CPU tiny")
      .one_of(kBenchShapes)
      .or_empty();
  options
      .option(model.hf_checkpoint, "hf-checkpoint", model_group,
              "Hugging Face directory whose model is measured, in place of --shape: config.json and weights")
      .path();
  model.visit_dtype(options);
  model.visit_device(options);

  const char* const group = "measurements";
  options.option(what, "what", group, "what is measured").one_of(kBenchParts);
  options
      .option(sequences, "sequences", group,
              "sequences that decode together, a measurement each; unset: 256 32 1, on a CPU 16 4 1")
      .at_least(1)
      .at_most(kMaxSequences);
  options.option(prompt_len, "prompt-len", group, "tokens of a prompt; unset: 256, on a CPU 64")
      .at_least(1)
      .at_most(base::kMaxCount);
  options.option(response_len, "response-len", group, "tokens of a completion; unset: 1024, on a CPU 64")
      .at_least(1)
      .at_most(base::kMaxCount);
  options
      .option(n_samples_per_prompt, "n-samples-per-prompt", group,
              "sequences of decode and prefill that share a prompt; 1: each has its own")
      .at_least(1)
      .at_most(kMaxSequences);
  options.option(temperature, "rollout-temperature", group, "sampling temperature; 0: greedy")
      .at_least(rl::kMinTemperature)
      .or_zero()
      .at_most(100.0);
  options
      .option(max_batch_tokens, "rollout-max-batch-tokens", group,
              "tokens of one forward of the engine: decoding sequences first, then parts of prompts; unset: 2048, with "
              "--device cuda 8192")
      .at_least(1)
      .at_most(base::kMaxCount);
  options
      .option(max_draft_tokens, "speculative-num-draft-tokens", group,
              "tokens of a sequence that are guessed and checked in one step at most; 0: none")
      .at_least(0)
      .at_most(rollout::kMostDraftRows - 1);
  options
      .option(samples, "samples", group,
              "prompts of a training step, and completions of each; unset: 32 8, on a CPU 4 8")
      .at_least(1)
      .at_most(kMaxSequences);
  options
      .option(train_tokens, "train-tokens", group,
              "measure training on about this many tokens of the step and extrapolate the rest; 0: all of them")
      .at_least(0);
  optimizer.visit_memory(options);
  options.option(json, "json", "output", "file for the figures, one JSON record; -: standard output, without the table")
      .path()
      .does_not_affect_results();
}

void BenchConfig::check() const {
  TANDEM_USER_CHECK(shape.empty() || model.hf_checkpoint.empty(), "--shape and --hf-checkpoint: give one of them");
  TANDEM_USER_CHECK(!what.empty(), "--what: name at least one measurement");
  TANDEM_USER_CHECK(
      samples.empty() || samples.size() == 2,
      fmt::format("--samples: has {} numbers; give two, prompts and completions of each (32 8)", samples.size()));
  for (const int64_t count : sequences) {
    TANDEM_USER_CHECK(
        count % n_samples_per_prompt == 0 || count < n_samples_per_prompt,
        fmt::format("--sequences {}: is no multiple of --n-samples-per-prompt {}", count, n_samples_per_prompt));
  }
}

void BenchConfig::fill_in() {
  const device::Footprint& device = device::footprint_of(model.device);
  const bool is_host = device.shares_host_memory;
  if (shape.empty() && model.hf_checkpoint.empty()) shape = is_host ? "tiny" : "qwen3-4b";
  if (sequences.empty()) sequences = is_host ? std::vector<int64_t>{16, 4, 1} : std::vector<int64_t>{256, 32, 1};
  if (!prompt_len) prompt_len = is_host ? 64 : 256;
  if (!response_len) response_len = is_host ? 64 : 1024;
  if (!max_batch_tokens) max_batch_tokens = device.batch_tokens;
  if (samples.empty()) samples = is_host ? std::vector<int64_t>{4, 8} : std::vector<int64_t>{32, 8};
}

bool BenchConfig::measures(std::string_view part) const { return std::ranges::find(what, part) != what.end(); }

bool BenchConfig::measures_speed() const {
  return std::ranges::any_of(what, [](const std::string& part) { return part != "exactness"; });
}

bool BenchConfig::needs_weights() const {
  return std::ranges::any_of(what, [](const std::string& part) { return part != "ceilings"; });
}

}  // namespace tandem::config
