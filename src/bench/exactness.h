// Checks whether this machine keeps Tandem's promise: the engine's log-probs are the trainer's, bit for bit; the same
// run twice is the same run; and a row of a matrix product does not depend on its batch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/comparison.h"
#include "bench/model.h"
#include "bench/table.h"
#include "config/bench_config.h"

namespace tandem::bench {

// A question, and the numbers that were compared for it, bit by bit.
struct ExactnessAnswer {
  std::string question, what;  // "the same rollout twice: tokens", "tokens"
  Comparison comparison = {};
};

// Small batches have fewer and shorter sequences, for a CPU or for a quick answer.
enum class MixSize : uint8_t { kSmall, kLarge };
// Asks whether the engine's log-probs are the trainer's, for batches of many kinds, and whether a rollout gives the
// same again. The model has weights.
std::vector<ExactnessAnswer> ask_engine(const BenchModel& bench, const config::BenchConfig& config, MixSize size);

// Adds a line for each question. Returns false if at least one answer was wrong.
bool check_exactness(const BenchModel& bench, const config::BenchConfig& config, BenchTable& table);

}  // namespace tandem::bench
