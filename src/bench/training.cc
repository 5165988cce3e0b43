#include "bench/training.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "base/message_text.h"
#include "bench/rollout.h"
#include "rl/packing.h"
#include "session/trainer_setup.h"
#include "trainer/adamw.h"
#include "trainer/trainer.h"

namespace tandem::bench {

namespace {

using Views = std::vector<const rl::Sample*>;

RolloutShape step_shape(const config::BenchConfig& config) {
  return {.sequences = config.samples[0] * config.samples[1],
          .group = config.samples[1],
          .prompt_tokens = *config.prompt_len,
          .response_tokens = *config.response_len,
          .max_batch_tokens = *config.max_batch_tokens,
          .temperature = 1.0,
          .seed = static_cast<uint64_t>(config.model.seed)};
}

trainer::TrainerConfig trainer_config(const BenchModel& bench, const config::BenchConfig& config) {
  config::OptimizerOptions options = config.optimizer;
  options.schedule.max_lr = 0.0;
  return session::trainer_config(options, {}, bench.config().num_layers, /*total_steps=*/1);
}

// Draws one number a sample in place of an advantage from rewards.
void draw_advantages(std::vector<rl::Sample>& samples, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  for (rl::Sample& sample : samples) sample.advantages = {normal(random)};
}

// Draws samples like an engine's: random tokens, each as likely as an untrained model would find it.
std::vector<rl::Sample> draw_samples(const BenchModel& bench, const RolloutShape& shape) {
  std::mt19937_64 random(shape.seed + 1);
  const std::vector<rl::SharedPrompt> prompts =
      draw_prompts(bench.config(), shape.sequences / shape.group, shape.prompt_tokens, shape.seed);
  const auto vocab = static_cast<uint64_t>(bench.config().vocab);
  const auto num_tokens = static_cast<size_t>(shape.response_tokens);
  std::vector<rl::Sample> samples(static_cast<size_t>(shape.sequences));
  for (size_t i = 0; i < samples.size(); ++i) {
    rl::Sample& sample = samples[i];
    sample.sample_id = i;
    sample.group_id = i / static_cast<size_t>(shape.group);
    sample.prompt = prompts[sample.group_id];
    sample.completion.resize(num_tokens);
    for (int32_t& id : sample.completion) id = static_cast<int32_t>(random() % vocab);
    sample.rollout_logprobs.assign(num_tokens, -std::log(static_cast<float>(vocab)));
    sample.loss_mask.assign(num_tokens, 1);
  }
  draw_advantages(samples, shape.seed);
  return samples;
}

// Marks the samples as a rollout with the present weights would have marked them.
void set_version(std::vector<rl::Sample>& samples, uint64_t version) {
  for (rl::Sample& sample : samples) sample.versions = {{.begin = 0, .version = version}};
}

Views views_of(const std::vector<rl::Sample>& samples, size_t count) {
  Views views;
  for (size_t i = 0; i < count; ++i) views.push_back(&samples[i]);
  return views;
}

// Returns how many samples make up whole groups with at least so many tokens; 0 means all.
size_t samples_with_tokens(const std::vector<rl::Sample>& samples, int64_t group, int64_t tokens) {
  int64_t sum = 0;
  for (size_t i = 0; i < samples.size(); ++i) {
    const bool begins_group = i % static_cast<size_t>(group) == 0;
    if (begins_group && tokens > 0 && sum >= tokens) return i;
    sum += static_cast<int64_t>(samples[i].completion.size());
    if (begins_group) sum += static_cast<int64_t>(samples[i].prompt->tokens.size());
  }
  return samples.size();
}

// The tokens that a step's forward runs over: a group's prompt counts once for each micro-batch that has samples of it.
struct StepTokens {
  double tokens = 0, micro_batches = 0;
};
StepTokens step_tokens(const Views& samples, int64_t max_tokens) {
  StepTokens result;
  for (const rl::MicroBatch& batch : rl::split_into_micro_batches(samples, {.max_tokens = max_tokens})) {
    result.tokens += static_cast<double>(batch.num_tokens);
    ++result.micro_batches;
  }
  return result;
}

Work training_work(const BenchModel& bench, const Views& samples, double micro_batches, const Ceilings& ceilings) {
  return ModelWork(bench.config()).training(session::forward_flops(bench.config(), samples), micro_batches, ceilings);
}

}  // namespace

double measure_optimizer(const BenchModel& bench) {
  constexpr int kRounds = 3;
  double best = 0.0;
  {
    trainer::AdamW optimizer({}, bench.store(), bench.ops());
    optimizer.begin_step();
    optimizer.gradient_norm();
    for (int round = 0; round <= kRounds; ++round) {  // the first round warms up
      const double seconds = bench.seconds([&] {
        optimizer.gradient_norm();
        optimizer.step(/*lr=*/0.0, /*grad_scale=*/1.0);
      });
      if (round == 1 || (round > 1 && seconds < best)) best = seconds;
    }
  }
  bench.release_unused();
  return best;
}

void add_optimizer(const BenchModel& bench, const Ceilings& ceilings, double seconds, BenchTable& table) {
  table.add({.what = "optimizer",
             .detail = "gradient norm, AdamW",
             .seconds = seconds,
             .work = ModelWork(bench.config()).optimizer(ceilings)});
}

void measure_training(const BenchModel& bench, const config::BenchConfig& config, const Ceilings& ceilings,
                      double optimizer_seconds, BenchTable& table) {
  const RolloutShape shape = step_shape(config);
  const trainer::TrainerConfig settings = trainer_config(bench, config);
  const int64_t budget = settings.batch.max_tokens_per_gpu;
  std::vector<rl::Sample> samples = draw_samples(bench, shape);
  const Views all = views_of(samples, samples.size());
  const Views measured = views_of(samples, samples_with_tokens(samples, shape.group, config.train_tokens));
  double seconds = 0.0;
  {
    const auto model = bench.make_model();
    const auto trainer = trainer::make_trainer(settings, bench.store(), *model);
    const auto step = [&](const Views& views) {
      set_version(samples, bench.store().version());
      trainer->step(views, trainer::RolloutLogprobs::kOfTheseWeights);
    };
    step(views_of(samples, samples_with_tokens(samples, shape.group, budget)));  // warm-up with about a micro-batch
    seconds = bench.seconds([&] { step(measured); });
  }
  bench.release_unused();
  const StepTokens of_measured = step_tokens(measured, budget), of_all = step_tokens(all, budget);
  const Work work = training_work(bench, measured, of_measured.micro_batches, ceilings);
  // On a busy machine the optimizer alone may have taken longer than this step with its optimizer. The model's part is
  // then unknown, and no shorter than its arithmetic takes at best.
  const double model_seconds = std::max(seconds - optimizer_seconds, work.limit_seconds);
  table.add({.what = "train",
             .detail = "a micro-batch",
             .seconds = model_seconds / of_measured.micro_batches,
             .tokens = of_measured.tokens / of_measured.micro_batches,
             .work = work.times(1.0 / of_measured.micro_batches),
             .figures = {{"micro_batches_measured", of_measured.micro_batches}, {"seconds_measured", seconds}}});
  const double step_seconds = model_seconds * of_all.tokens / of_measured.tokens + optimizer_seconds;
  table.add({.what = "train",
             .detail = fmt::format("{} x {} samples, a step", config.samples[0], config.samples[1]),
             .seconds = step_seconds,
             .tokens = of_all.tokens,
             .work = training_work(bench, all, of_all.micro_batches, ceilings) +
                     ModelWork(bench.config()).optimizer(ceilings),
             .figures = {{"micro_batches", of_all.micro_batches},
                         {"is_extrapolated", measured.size() < all.size() ? 1.0 : 0.0}}});
}

void measure_step(const BenchModel& bench, const config::BenchConfig& config, const Ceilings& ceilings,
                  BenchTable& table) {
  const RolloutShape shape = step_shape(config);
  const trainer::TrainerConfig settings = trainer_config(bench, config);
  RolloutRun run = BenchRollout(bench, shape).run();
  bench.release_unused();  // frees the KV cache for gradients and activations
  draw_advantages(run.samples, shape.seed);
  const Views samples = views_of(run.samples, run.samples.size());
  double train_seconds = 0.0, difference = 0.0;
  {
    const auto model = bench.make_model();
    const auto trainer = trainer::make_trainer(settings, bench.store(), *model);
    const auto step = [&](const Views& views) {
      set_version(run.samples, bench.store().version());
      return trainer->step(views, trainer::RolloutLogprobs::kOfTheseWeights);
    };
    step(views_of(run.samples, samples_with_tokens(run.samples, shape.group, settings.batch.max_tokens_per_gpu)));
    train_seconds = bench.seconds([&] { difference = step(samples).at("train_rollout_logprob_abs_diff"); });
  }
  bench.release_unused();
  const StepTokens tokens = step_tokens(samples, settings.batch.max_tokens_per_gpu);
  const Work work = rollout_work(bench.config(), shape, ceilings) +
                    training_work(bench, samples, tokens.micro_batches, ceilings) +
                    ModelWork(bench.config()).optimizer(ceilings);
  table.add({.what = "GRPO step",
             .detail = fmt::format("{} x {} samples", config.samples[0], config.samples[1]),
             .seconds = run.seconds + train_seconds,
             .tokens = static_cast<double>(shape.sequences * shape.response_tokens),
             .work = work,
             .figures = {{"rollout_seconds", run.seconds},
                         {"train_seconds", train_seconds},
                         {"train_rollout_logprob_abs_diff", difference}},
             .note = fmt::format("rollout {:.3f} s, training {:.3f} s; train_rollout_logprob_abs_diff {}", run.seconds,
                                 train_seconds, difference)});
}

}  // namespace tandem::bench
