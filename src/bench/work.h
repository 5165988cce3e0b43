// What a measured piece of work must do at least, and how fast the machine could do that: bytes that must move and
// floating-point operations, counted from the model's shape, against ceilings measured on the same machine. No torch.
#pragma once

#include <cstdint>

#include "model/config.h"
#include "model/model_plan.h"

namespace tandem::bench {

// The fastest that one machine was seen to move and to multiply (bench/ceilings.h).
struct Ceilings {
  double copy_bytes_per_s = 0;  // read and written bytes of a copy
  double read_bytes_per_s = 0;  // of a sum
  double flops_per_s = 0;       // of a large matrix product in the model's dtype

  double bytes_per_s() const { return copy_bytes_per_s > read_bytes_per_s ? copy_bytes_per_s : read_bytes_per_s; }
};

struct Work {
  double bytes = 0, flops = 0;
  // The sum of its parts' limits, each the slower of moving its bytes and doing its operations.
  double limit_seconds = 0;

  Work() = default;
  Work(double bytes, double flops, const Ceilings& ceilings);
  Work times(double count) const;
  Work operator+(const Work& other) const;
};

// A model's costs in the store's dtype.
class ModelWork {
 public:
  explicit ModelWork(const model::ModelConfig& config);

  double weight_bytes() const;    // all of them
  double forward_bytes() const;   // of the weights that every forward reads: an untied embedding is looked up instead
  double kv_token_bytes() const;  // keys and values of one token in all layers
  double num_parameters() const;

  // One step in which each of so many sequences gets a token. `context`: the mean of tokens before it, of which
  // `shared` are those of a prompt that `group` sequences read together.
  Work decode_step(double sequences, double context, double shared, double group, const Ceilings& ceilings) const;
  // Prompts of that length read in forwards of at most `batch_tokens`.
  Work prefill(double prompts, double prompt_tokens, double batch_tokens, const Ceilings& ceilings) const;
  // Forward and backward over samples whose forward takes so many operations; float32 gradients are added to.
  Work training(double forward_flops, double micro_batches, const Ceilings& ceilings) const;
  // The norm of the gradients, and AdamW over all parameters.
  Work optimizer(const Ceilings& ceilings) const;

 private:
  double flops(const model::ForwardWork& work) const;

  const model::ModelConfig& config_;
  double element_, parameters_;
};

}  // namespace tandem::bench
