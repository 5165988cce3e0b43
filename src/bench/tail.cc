#include "bench/tail.h"

#include <fmt/format.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "base/message_text.h"
#include "bench/rollout.h"
#include "plan/kv_size.h"
#include "rollout/engine.h"
#include "rollout/rollout_plan.h"

namespace tandem::bench {

namespace {

using Texts = std::vector<std::vector<int32_t>>;  // of each sequence

struct TailRun {
  Texts texts;
  double seconds = 0;  // from when all sequences have their first token
  rollout::EngineStats stats;
};

class Tail {
 public:
  Tail(const BenchModel& bench, const config::BenchConfig& config, int64_t sequences)
      : bench_(bench),
        config_(config),
        prompts_(draw_prompts(bench.config(), sequences, *config.prompt_len, static_cast<uint64_t>(config.model.seed))),
        model_(bench.make_model()) {}

  // Decodes each prompt, next to `seen`, what another sample of its group has already; empty: there is no other.
  TailRun run(int64_t max_draft_tokens, const Texts& seen) const {
    const std::unique_ptr<rollout::Engine> engine = make_engine(max_draft_tokens);
    run_once(*engine, seen);  // its steps are recorded now
    return run_once(*engine, seen);
  }

 private:
  std::unique_ptr<rollout::Engine> make_engine(int64_t max_draft_tokens) const {
    const auto sequences = static_cast<int64_t>(prompts_.size());
    rollout::EngineConfig engine;
    engine.limits = {.max_batch_tokens = *config_.max_batch_tokens,
                     .max_running = 2 * sequences,
                     .max_draft_tokens = max_draft_tokens};
    // Room for the other samples, too, and for drafts.
    const int64_t one =
        plan::sequence_kv_bytes(bench_.config(), engine.limits, *config_.prompt_len + *config_.response_len);
    engine.num_kv_blocks = rollout::num_kv_blocks(bench_.config(), 3 * sequences * one);
    return rollout::make_engine(engine, *model_);
  }

  void add_request(rollout::Engine& engine, size_t index, const Texts& seen) const {
    rollout::GroupRequest request;
    request.group_id = index;
    request.prompt = prompts_[index];
    request.sample_ids = {2 * index};
    request.sampling.temperature = 1.0;
    request.sampling.seed = static_cast<uint64_t>(config_.model.seed);
    request.sampling.ignore_eos = true;
    request.sampling.max_new_tokens = *config_.response_len;
    if (!seen.empty()) {
      rl::Completion other;
      other.sample_id = 2 * index + 1;
      other.tokens = seen[index];
      other.tokens.pop_back();  // it draws one more, and ends
      other.logprobs.assign(other.tokens.size(), 0.0F);
      other.versions = {{.begin = 0, .version = 0}};
      request.sample_ids.push_back(other.sample_id);
      request.begun.resize(2);
      request.begun[0].sample_id = 2 * index;
      request.begun[1] = std::move(other);
    }
    engine.add(std::move(request));
  }

  TailRun run_once(rollout::Engine& engine, const Texts& seen) const {
    engine.reset_stats();
    for (size_t i = 0; i < prompts_.size(); ++i) add_request(engine, i, seen);
    const auto begun = static_cast<int64_t>(prompts_.size() * (seen.empty() ? 1 : 2));
    while (engine.stats().generated_tokens < begun) engine.step();
    TailRun result;
    const base::Clock::time_point begin = base::Clock::now();
    while (engine.step()) {  // a step's tokens are on the host when it returns
    }
    result.seconds = base::seconds_since(begin);
    result.stats = engine.stats();
    result.texts.resize(prompts_.size());
    while (std::optional<rl::Group> group = engine.next_finished())
      result.texts[group->group_id] = std::move(group->completions[0].tokens);
    return result;
  }

  const BenchModel& bench_;
  const config::BenchConfig& config_;
  const std::vector<rl::SharedPrompt> prompts_;
  const std::unique_ptr<model::Model> model_;
};

Texts with_changes(Texts texts, size_t every, int64_t vocab) {
  if (every == 0) return texts;
  for (std::vector<int32_t>& text : texts) {
    for (size_t t = every - 1; t < text.size(); t += every) text[t] = static_cast<int32_t>((text[t] + 1) % vocab);
  }
  return texts;
}

}  // namespace

void measure_tail(const BenchModel& bench, const config::BenchConfig& config, const Ceilings& ceilings,
                  BenchTable& table) {
  constexpr int64_t kMostSequences = rollout::kMostDraftRows / 2;
  const int64_t most_drafts = config.max_draft_tokens > 0 ? config.max_draft_tokens : rollout::kMostDraftRows - 1;
  for (const int64_t sequences : config.sequences) {
    if (sequences > kMostSequences) continue;
    const Tail tail(bench, config, sequences);
    const auto num_sequences = static_cast<double>(sequences);
    const auto prompt = static_cast<double>(*config.prompt_len), response = static_cast<double>(*config.response_len);
    const Work work = ModelWork(bench.config())
                          .decode_step(num_sequences, prompt + response / 2, prompt, 1, ceilings)
                          .times(response - 1);
    const TailRun plain = tail.run(0, {});
    const auto add = [&](const TailRun& run, const std::string& guesses) {
      TANDEM_CHECK(run.texts == plain.texts, "guessed tokens changed a text");
      table.add({.what = "tail",
                 .detail = fmt::format("{}, {}", base::counted(sequences, "sequence"), guesses),
                 .seconds = run.seconds,
                 .tokens = num_sequences * (response - 1),
                 .work = work,
                 .figures = {{"sequences", num_sequences},
                             {"forwards", static_cast<double>(run.stats.forwards)},
                             {"draft_tokens", static_cast<double>(run.stats.draft_tokens)},
                             {"right_drafts", static_cast<double>(run.stats.right_drafts)},
                             {"gain", plain.seconds / run.seconds}}});
    };
    add(plain, "no guesses");
    // A guess needs three tokens that match. With every fourth token changed those before the first change are guessed,
    // which follow the prompt's tokens, and then none is right unless a text happens to repeat three of its own.
    for (const size_t every : {0, 16, 8, 5, 4}) {
      const TailRun run = tail.run(most_drafts, with_changes(plain.texts, every, bench.config().vocab));
      add(run, every == 0 ? "all seen" : fmt::format("1 of {} other", every));
    }
    bench.release_unused();
  }
}

}  // namespace tandem::bench
