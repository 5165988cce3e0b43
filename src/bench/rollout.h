// Rollouts of a benchmark: drawn prompts, completions of one length, and the seconds that the engine took.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "bench/model.h"
#include "bench/table.h"
#include "config/bench_config.h"
#include "rl/sample.h"
#include "rollout/engine.h"

namespace tandem::bench {

struct RolloutShape {
  int64_t sequences = 1;
  int64_t group = 1;  // sequences that share a prompt; divides `sequences`
  int64_t prompt_tokens = 1, response_tokens = 1;
  int64_t least_tokens = 0;  // not 0: lengths of prompts and completions are drawn, from here to those above
  // The least of lengths of which `most` is the most.
  int64_t least_of(int64_t most) const { return least_tokens > 0 ? least_tokens : most; }
  int64_t max_batch_tokens = 2048;
  double temperature = 1.0;
  uint64_t seed = 0;
};

// What one rollout gave. Its steady state are the steps in which every sequence got a token.
struct RolloutRun {
  std::vector<rl::Sample> samples;
  double seconds = 0;
  int64_t steady_steps = 0;
  double steady_seconds = 0;
  double steady_context = 0;  // mean tokens of a sequence in those steps
  rollout::EngineStats stats;
};

// An engine with a KV cache that holds all sequences at once, warmed up.
class BenchRollout {
 public:
  // bench is borrowed.
  BenchRollout(const BenchModel& bench, const RolloutShape& shape);
  RolloutRun run();

 private:
  int64_t draw_response(uint64_t sample_id) const;
  void add_requests() const;
  void warm_up();
  // Tokens that came since there were `generated` of them, which is brought up to date.
  int64_t take_drawn(int64_t& generated) const;

  const BenchModel& bench_;
  RolloutShape shape_;
  std::vector<rl::SharedPrompt> prompts_;
  std::unique_ptr<model::Model> model_;
  std::unique_ptr<rollout::Engine> engine_;
};

// Prompts of random tokens, the same for the same seed.
std::vector<rl::SharedPrompt> draw_prompts(const model::ModelConfig& config, int64_t count, int64_t tokens,
                                           uint64_t seed);
// The same of lengths from `least` to `tokens`.
std::vector<rl::SharedPrompt> draw_prompts(const model::ModelConfig& config, int64_t count, int64_t least,
                                           int64_t tokens, uint64_t seed);

// The completions of a finished group, each at its sample id.
void take_samples(rl::Group group, std::vector<rl::Sample>& samples);

// A row for each number of sequences, two where the steady state is long enough to be told from the whole.
void measure_decode(const BenchModel& bench, const config::BenchConfig& config, const Ceilings& ceilings,
                    BenchTable& table);
// The workload of nano-vLLM's benchmark: as many sequences as the most of decode, with prompts and completions of 100
// to 1,024 tokens, or of half the model's context at most, at temperature 0.6.
void measure_mixed(const BenchModel& bench, const config::BenchConfig& config, const Ceilings& ceilings,
                   BenchTable& table);
void measure_prefill(const BenchModel& bench, const config::BenchConfig& config, const Ceilings& ceilings,
                     BenchTable& table);

// Of a rollout of that shape: all that must move and be computed.
Work rollout_work(const model::ModelConfig& config, const RolloutShape& shape, const Ceilings& ceilings);

}  // namespace tandem::bench
