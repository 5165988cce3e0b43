// A reward model as Hugging Face publishes it: a decoder of a known family, whose head gives a sequence one number in
// the place of each token's logits (Qwen3ForSequenceClassification, ...). No torch.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "model/config.h"
#include "weights/layout.h"

namespace tandem::model {

// Parses DIR/config.json as read_model_config() does: XForSequenceClassification, or Qwen2ForRewardModel, is the
// decoder of XForCausalLM without its head. Throws UserError for any other architecture. The pad token is that of
// config.json alone, as transformers takes it.
ModelConfig read_reward_model_config(const std::string& directory);

// Returns the layout of that decoder. The head's tensors are RewardHead's.
weights::Layout build_reward_layout(const ModelConfig& config);

// Returns how many of a sequence's tokens count: those up to the last that is no pad token, as in transformers. Its
// score is that of the last of them; of padding alone it is the first token's.
int64_t scored_length(std::span<const int32_t> tokens, int32_t pad_token_id);

// The head, on the host: score.weight [1, E] and perhaps score.bias [1]; or, of Qwen2.5-Math-RM, two layers with a ReLU
// between them (score.0 and score.2).
class RewardHead {
 public:
  // Reads the head's tensors. UserError where they are missing, of another shape (several labels), or not finite.
  RewardHead(const std::string& directory, const ModelConfig& config);

  // Returns the score of a sequence whose last hidden state [E], after the final norm, is this. Sums are in double, in
  // the order of the elements, so it is the same number on every device that gives the same state.
  double score(std::span<const float> hidden) const;

 private:
  struct Layer {
    int64_t width = 0;          // of the result
    std::vector<float> weight;  // [width, E]
    std::vector<float> bias;    // [width], or empty
    std::vector<double> apply(std::span<const double> x) const;
  };
  std::vector<Layer> layers_;
};

}  // namespace tandem::model
