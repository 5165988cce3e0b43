#include "bench/rollout.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <random>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/message_text.h"
#include "plan/kv_size.h"
#include "rollout/rollout_plan.h"

namespace tandem::bench {

namespace {

// So many steps with a token for every sequence are enough for such a step to be seen, recorded and replayed.
constexpr int64_t kWarmUpSteps = 4;

rl::Sample make_sample(const rl::Group& group, rl::Completion completion) {
  rl::Sample sample;
  sample.group_id = group.group_id;
  sample.sample_id = completion.sample_id;
  sample.prompt = group.prompt;
  sample.loss_mask.assign(completion.tokens.size(), 1);
  sample.completion = std::move(completion.tokens);
  sample.rollout_logprobs = std::move(completion.logprobs);
  sample.behavior_logprobs = std::move(completion.behavior_logprobs);
  sample.versions = std::move(completion.versions);
  return sample;
}

RolloutShape shape_of(const config::BenchConfig& config, int64_t sequences) {
  return {.sequences = sequences,
          .group = std::min(sequences, config.n_samples_per_prompt),
          .prompt_tokens = *config.prompt_len,
          .response_tokens = *config.response_len,
          .max_batch_tokens = *config.max_batch_tokens,
          .max_draft_tokens = config.max_draft_tokens,
          .temperature = config.temperature,
          .seed = static_cast<uint64_t>(config.model.seed)};
}

int64_t draw_length(std::mt19937_64& random, int64_t least, int64_t most) {
  return least == most ? most : least + static_cast<int64_t>(random() % static_cast<uint64_t>(most - least + 1));
}

std::string sequences_text(const RolloutShape& shape) {
  const std::string text = base::counted(shape.sequences, "sequence");
  return shape.group == 1 ? text : fmt::format("{}, {} a prompt", text, shape.group);
}

}  // namespace

std::vector<rl::SharedPrompt> draw_prompts(const model::ModelConfig& config, int64_t count, int64_t tokens,
                                           uint64_t seed) {
  return draw_prompts(config, count, tokens, tokens, seed);
}

std::vector<rl::SharedPrompt> draw_prompts(const model::ModelConfig& config, int64_t count, int64_t least,
                                           int64_t tokens, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<rl::SharedPrompt> prompts;
  for (int64_t p = 0; p < count; ++p) {
    std::vector<int32_t> ids(static_cast<size_t>(draw_length(random, least, tokens)));
    for (int32_t& id : ids) id = static_cast<int32_t>(random() % static_cast<uint64_t>(config.vocab));
    prompts.push_back(rl::make_prompt(std::move(ids)));
  }
  return prompts;
}

void take_samples(rl::Group group, std::vector<rl::Sample>& samples) {
  for (rl::Completion& completion : group.completions) {
    const auto index = static_cast<size_t>(completion.sample_id);
    TANDEM_CHECK(index < samples.size(), "a completion of unknown sample", index);
    samples[index] = make_sample(group, std::move(completion));
  }
}

BenchRollout::BenchRollout(const BenchModel& bench, const RolloutShape& shape)
    : bench_(bench),
      shape_(shape),
      prompts_(draw_prompts(bench.config(), shape.sequences / shape.group, shape.least_of(shape.prompt_tokens),
                            shape.prompt_tokens, shape.seed)),
      model_(bench.make_model()) {
  TANDEM_CHECK(shape.sequences % shape.group == 0, shape.sequences, shape.group);
  rollout::EngineConfig engine;
  engine.limits = {.max_batch_tokens = shape.max_batch_tokens,
                   .max_running = shape.sequences,
                   .max_draft_tokens = shape.max_draft_tokens};
  const int64_t one =
      plan::sequence_kv_bytes(bench.config(), engine.limits, shape.prompt_tokens + shape.response_tokens);
  engine.num_kv_blocks = rollout::num_kv_blocks(bench.config(), shape.sequences * one);
  engine_ = rollout::make_engine(engine, *model_);
  warm_up();
}

int64_t BenchRollout::draw_response(uint64_t sample_id) const {
  std::mt19937_64 random(shape_.seed + sample_id + 1);
  return draw_length(random, shape_.least_of(shape_.response_tokens), shape_.response_tokens);
}

void BenchRollout::add_requests() const {
  uint64_t sample_id = 0, group_id = 0;
  for (const rl::SharedPrompt& prompt : prompts_) {
    rollout::GroupRequest request;
    request.group_id = group_id++;
    request.prompt = prompt;
    request.sampling.temperature = shape_.temperature;
    request.sampling.max_new_tokens = draw_response(sample_id);
    for (int64_t i = 0; i < shape_.group; ++i) request.sample_ids.push_back(sample_id++);
    request.sampling.ignore_eos = true;
    request.sampling.seed = shape_.seed;
    engine_->add(std::move(request));
  }
}

int64_t BenchRollout::take_drawn(int64_t& generated) const {
  const int64_t before = std::exchange(generated, engine_->stats().generated_tokens);
  return generated - before;
}

// Runs the beginning of the very rollout: the memory that an engine keeps for its next rollout is that of sequences of
// this length.
void BenchRollout::warm_up() {
  engine_->reset_stats();
  add_requests();
  int64_t full_steps = 0, generated = 0;
  while (full_steps < kWarmUpSteps && engine_->step()) {
    if (take_drawn(generated) >= shape_.sequences) ++full_steps;
  }
  engine_->abort_all();
  while (engine_->next_finished()) {
  }
}

RolloutRun BenchRollout::run() {
  RolloutRun result;
  result.samples.resize(static_cast<size_t>(shape_.sequences));
  engine_->reset_stats();
  result.seconds = bench_.seconds([&] {
    add_requests();
    // A step's tokens are on the host when it returns, so the host's clock measures it.
    std::optional<base::Clock::time_point> steady_begin;
    int64_t generated = 0, first_generated = 0, last_generated = 0;
    while (engine_->step()) {
      if (take_drawn(generated) < shape_.sequences) continue;
      if (!steady_begin) {
        steady_begin = base::Clock::now();
        first_generated = generated;
      } else {
        ++result.steady_steps;
        result.steady_seconds = base::seconds_since(*steady_begin);
      }
      last_generated = generated;
    }
    result.steady_tokens = static_cast<double>(last_generated - first_generated) /
                           static_cast<double>(std::max<int64_t>(1, result.steady_steps));
    result.steady_context =
        static_cast<double>(shape_.prompt_tokens) +
        static_cast<double>(first_generated + last_generated) / 2.0 / static_cast<double>(shape_.sequences);
  });
  result.stats = engine_->stats();
  while (std::optional<rl::Group> group = engine_->next_finished()) take_samples(std::move(*group), result.samples);
  return result;
}

Work rollout_work(const model::ModelConfig& config, const RolloutShape& shape, const Ceilings& ceilings) {
  const ModelWork work(config);
  const auto sequences = static_cast<double>(shape.sequences), group = static_cast<double>(shape.group);
  const auto prompt = static_cast<double>(shape.prompt_tokens), response = static_cast<double>(shape.response_tokens);
  // The first token comes with the prompt.
  return work.prefill(sequences / group, prompt, static_cast<double>(shape.max_batch_tokens), ceilings) +
         work.decode_step(sequences, prompt + response / 2, prompt, group, ceilings).times(response - 1);
}

void measure_decode(const BenchModel& bench, const config::BenchConfig& config, const Ceilings& ceilings,
                    BenchTable& table) {
  // Fewer steps tell more about the clock than about the engine.
  constexpr int64_t kMinSteadySteps = 4;
  for (const int64_t sequences : config.sequences) {
    const RolloutShape shape = shape_of(config, sequences);
    RolloutRun run = BenchRollout(bench, shape).run();
    const auto num_sequences = static_cast<double>(sequences), prompt = static_cast<double>(shape.prompt_tokens);
    if (run.steady_steps >= kMinSteadySteps) {
      const auto steps = static_cast<double>(run.steady_steps);
      table.add({.what = "decode",
                 .detail = sequences_text(shape) + ", a step",
                 .seconds = run.steady_seconds / steps,
                 .tokens = run.steady_tokens,
                 .work = ModelWork(bench.config())
                             .decode_step(num_sequences, run.steady_context, prompt, static_cast<double>(shape.group),
                                          ceilings),
                 .figures = {{"sequences", num_sequences}, {"steps", steps}, {"mean_context", run.steady_context}}});
    }
    const auto tokens = static_cast<double>(sequences * shape.response_tokens);
    table.add(
        {.what = "rollout",
         .detail = sequences_text(shape),
         .seconds = run.seconds,
         .tokens = tokens,
         .work = rollout_work(bench.config(), shape, ceilings),
         .figures = {{"sequences", num_sequences},
                     {"forwards", static_cast<double>(run.stats.forwards)},
                     {"draft_tokens", static_cast<double>(run.stats.draft_tokens)},
                     {"right_drafts", static_cast<double>(run.stats.right_drafts)},
                     {"seconds_per_token_of_a_sequence", run.seconds / static_cast<double>(shape.response_tokens)}}});
    bench.release_unused();
  }
}

void measure_mixed(const BenchModel& bench, const config::BenchConfig& config, const Ceilings& ceilings,
                   BenchTable& table) {
  constexpr int64_t kLeast = 100, kMost = 1024;
  RolloutShape shape = shape_of(config, std::ranges::max(config.sequences));
  shape.group = 1;
  shape.response_tokens = shape.prompt_tokens = std::min(kMost, bench.config().max_positions / 2);
  shape.least_tokens = std::min(kLeast, shape.response_tokens);
  shape.temperature = 0.6;
  const RolloutRun run = BenchRollout(bench, shape).run();
  const auto sequences = static_cast<double>(shape.sequences), tokens = static_cast<double>(run.stats.generated_tokens);
  double prompt_tokens = 0;
  for (const rl::Sample& sample : run.samples) prompt_tokens += static_cast<double>(sample.prompt->tokens.size());
  // At best all sequences decode at all times, after prompts and completions of the mean length.
  const ModelWork work(bench.config());
  const double prompt = prompt_tokens / sequences, response = tokens / sequences;
  table.add({.what = "mixed",
             .detail = fmt::format("{}, {}-{} tokens", base::counted(shape.sequences, "sequence"), shape.least_tokens,
                                   shape.response_tokens),
             .seconds = run.seconds,
             .tokens = tokens,
             .work = work.prefill(sequences, prompt, static_cast<double>(shape.max_batch_tokens), ceilings) +
                     work.decode_step(sequences, prompt + response / 2, prompt, 1, ceilings).times(response - 1),
             .figures = {{"sequences", sequences},
                         {"prompt_tokens", prompt_tokens},
                         {"forwards", static_cast<double>(run.stats.forwards)}}});
  bench.release_unused();
}

void measure_prefill(const BenchModel& bench, const config::BenchConfig& config, const Ceilings& ceilings,
                     BenchTable& table) {
  for (const int64_t sequences : config.sequences) {
    RolloutShape shape = shape_of(config, sequences);
    shape.response_tokens = 1;
    const RolloutRun run = BenchRollout(bench, shape).run();
    const auto prompts = static_cast<double>(sequences / shape.group);
    const auto prompt = static_cast<double>(shape.prompt_tokens);
    table.add(
        {.what = "prefill",
         .detail = sequences_text(shape),
         .seconds = run.seconds,
         .tokens = prompts * prompt,
         .work =
             ModelWork(bench.config()).prefill(prompts, prompt, static_cast<double>(shape.max_batch_tokens), ceilings),
         .figures = {{"sequences", static_cast<double>(sequences)},
                     {"forwards", static_cast<double>(run.stats.forwards)}}});
    bench.release_unused();
  }
}

}  // namespace tandem::bench
