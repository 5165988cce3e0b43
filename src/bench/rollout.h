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
  int64_t least_tokens = 0;  // least of drawn lengths of prompts and completions; 0: all have the lengths above
  // Returns the least of lengths of which `most` is the most.
  int64_t least_of(int64_t most) const { return least_tokens > 0 ? least_tokens : most; }
  int64_t max_batch_tokens = 2048;
  int64_t max_draft_tokens = 0;
  double temperature = 1.0;
  uint64_t seed = 0;
};

// Holds the results of one rollout. Its steady state are the steps in which every sequence got a token, or several.
struct RolloutRun {
  std::vector<rl::Sample> samples;
  double seconds = 0;
  int64_t steady_steps = 0;
  double steady_seconds = 0;
  double steady_tokens = 0;   // mean new tokens of such a step
  double steady_context = 0;  // mean tokens of a sequence in those steps
  rollout::EngineStats stats;
};

// An engine that is warmed up, with a KV cache that holds all sequences at once.
class BenchRollout {
 public:
  // `bench` is borrowed.
  BenchRollout(const BenchModel& bench, const RolloutShape& shape);
  RolloutRun run();

 private:
  int64_t draw_response(uint64_t sample_id) const;
  void add_requests() const;
  void warm_up();
  // Returns how many tokens came since there were `generated` of them, and updates that count.
  int64_t take_drawn(int64_t& generated) const;

  const BenchModel& bench_;
  RolloutShape shape_;
  std::vector<rl::SharedPrompt> prompts_;
  std::unique_ptr<model::Model> model_;
  std::unique_ptr<rollout::Engine> engine_;
};

// Draws prompts of random tokens, the same for the same seed.
std::vector<rl::SharedPrompt> draw_prompts(const model::ModelConfig& config, int64_t count, int64_t tokens,
                                           uint64_t seed);
// Draws such prompts with lengths from `least` to `tokens`.
std::vector<rl::SharedPrompt> draw_prompts(const model::ModelConfig& config, int64_t count, int64_t least,
                                           int64_t tokens, uint64_t seed);

// Takes the completions of a finished group, each to the index of its sample id.
void take_samples(rl::Group group, std::vector<rl::Sample>& samples);

// Adds a row for each number of sequences, two if the steady state is long enough to be told from the whole.
void measure_decode(const BenchModel& bench, const config::BenchConfig& config, const Ceilings& ceilings,
                    BenchTable& table);
// Runs the workload of nano-vLLM's benchmark: as many sequences as the most of decode, with prompts and completions of
// 100 to 1,024 tokens, or of half the model's context at most, at temperature 0.6.
void measure_mixed(const BenchModel& bench, const config::BenchConfig& config, const Ceilings& ceilings,
                   BenchTable& table);
void measure_prefill(const BenchModel& bench, const config::BenchConfig& config, const Ceilings& ceilings,
                     BenchTable& table);

// Returns all that must move and be computed in a rollout of that shape.
Work rollout_work(const model::ModelConfig& config, const RolloutShape& shape, const Ceilings& ceilings);

}  // namespace tandem::bench
