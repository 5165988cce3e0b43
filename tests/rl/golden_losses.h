// Reads the two GRPO batches of tests/golden/losses with everything that was computed on them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "rl/losses.h"
#include "rl/token_choice.h"
#include "weights/safetensors.h"

namespace tandem::rl {

constexpr int64_t kNumSamples = 16;
constexpr int64_t kNumTokens = 24;  // tokens of a padded row

class GoldenLosses {
 public:
  GoldenLosses();

  const base::Json& cases() const { return json_; }
  bool has(const std::string& name) const { return file_.tensors().contains(name); }
  std::vector<float> floats(const std::string& name) const;    // F32
  std::vector<double> doubles(const std::string& name) const;  // F64, or F32 widened
  std::vector<uint8_t> mask(const std::string& name) const;    // I64, 0 or 1
  std::vector<int64_t> integers(const std::string& name) const;

 private:
  weights::SafetensorsFile file_;
  base::Json json_;
};

// The file, read once for all tests of a program.
inline const GoldenLosses& golden() {
  static const GoldenLosses losses;
  return losses;
}

// Holds the rows of one batch as a loss reads them. Rows are padded; the mask marks the tokens that count.
struct GoldenBatch {
  GoldenBatch(const GoldenLosses& golden, int64_t batch);
  LossInput row(int64_t sample) const;

  std::string name;  // "b0"
  std::vector<float> logprobs, old_logprobs, ref_logprobs, rollout_logprobs, entropy;
  std::vector<uint8_t> mask;
  std::vector<double> advantages;  // [16, 24]
  std::vector<float> weights;      // empty: none
  bool with_reference = true, with_rollout = true, with_entropy = true;
};

// Returns the tokens of all 16 samples that the loss treats apart.
std::vector<TokenChoice> choose(const LossConfig& config, const GoldenBatch& batch);

// Holds the result of a whole step: `rows` samples from `first` on, normalised over all 16.
struct StepResult {
  std::map<std::string, double> metrics;
  std::vector<double> dlogprobs, dentropy;  // [16, 24], scaled
};
StepResult run_step(const LossConfig& config, const GoldenBatch& batch, int64_t first = 0, int64_t rows = kNumSamples);

}  // namespace tandem::rl
