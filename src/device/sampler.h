// Draws one token from one row of logits, on the CPU; a GPU's Ops::sample() draws the same token by the same rule. A
// draw is a function of the row, the parameters, the seed, the sample id and the position in the completion: no
// generator state, no dependence on the batch, the same bits on every machine. No torch.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "device/draw.h"

namespace tandem::device {

struct SampledToken {
  int32_t token = -1;             // -1: the row holds a NaN or an infinity, so nothing can be drawn
  float behavior_logprob = 0.0F;  // log-prob in the distribution that was really drawn from; greedy: 0
};

// Keeps buffers from row to row, so one thread uses one sampler; results do not depend on earlier rows.
//
// Temperature 0 takes the largest logit; among equal ones, the lowest id.
// Otherwise a draw is the inverse of the cumulative distribution at one Philox uniform, in token order. Where the
// distribution is cut, the order of tokens is by logit, then by id (lower first), and the cuts apply in Hugging Face's
// order:
//   top-k  keeps the first k tokens, exactly k even among equal logits;
//   top-p  keeps, of those, the shortest prefix with at least top_p of their probability (the token that crosses is
//   in); min-p  keeps, of those, the tokens with at least min_p of the largest probability.
// Probabilities are sums of the weights of sampling_weight.h, which are exact in any order. Up to 2^18 tokens, one less
// likely than 2^-36 times the most likely one has the weight 0 and is never drawn.
class Sampler {
 public:
  // Draws from logits_V; draw.row is not read.
  SampledToken draw(std::span<const float> logits_V, const Draw& draw);

 private:
  // The last token that is kept, in the order above.
  struct Cut {
    float logit;
    int32_t id;
  };
  struct Candidate {
    float logit;
    int32_t id;
    bool operator<(const Candidate& other) const {
      return logit > other.logit || (logit == other.logit && id < other.id);
    }
  };

  // Computes the weights of the tokens from `begin` on; they are 0 after the cut.
  void weigh_chunk(size_t begin, Cut cut, std::span<float> weights) const;
  // Fills chunk_sums_ and returns their sum.
  double weigh(Cut cut);
  double weight_of(float logit) const;
  Cut find_cut(const Draw& draw);
  Cut cut_top_p(double top_p, bool candidates_chosen);
  Cut cut_min_p(double log_min_p) const;
  // Returns the first token at which the running sum of weights passes `target`, or else the last one that has weight.
  size_t find_token(double target, Cut cut) const;

  std::span<const float> logits_V_;
  float max_logit_ = 0.0F;
  float inverse_temperature_ = 1.0F;
  float rounding_ = 0.0F;  // weight_rounding() of the row
  std::vector<double> chunk_sums_;
  std::vector<Candidate> candidates_;
};

}  // namespace tandem::device
