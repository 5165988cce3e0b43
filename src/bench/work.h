// Counts what a measured piece of work must do at least, and how fast the machine could do that: bytes that must move
// and floating-point operations, counted from the model's shape, against ceilings measured on the same machine. No
// torch.
#pragma once

#include <cstdint>

#include "model/config.h"
#include "model/model_plan.h"

namespace tandem::bench {

// The highest rates at which one machine was seen to move and to multiply (bench/ceilings.h).
struct Ceilings {
  double copy_bytes_per_s = 0;  // bytes read and written by a copy
  double read_bytes_per_s = 0;  // bytes read by a sum
  double flops_per_s = 0;       // rate of a large matrix product in the model's dtype

  double bytes_per_s() const { return copy_bytes_per_s > read_bytes_per_s ? copy_bytes_per_s : read_bytes_per_s; }
};

struct Work {
  double bytes = 0, flops = 0;
  // This is the sum of the limits of its parts; each limit is the slower of moving the part's bytes and doing its
  // operations.
  double limit_seconds = 0;

  Work() = default;
  Work(double bytes, double flops, const Ceilings& ceilings);
  Work times(double count) const;
  Work operator+(const Work& other) const;
};

// Counts what a model costs in the store's dtype.
class ModelWork {
 public:
  explicit ModelWork(const model::ModelConfig& config);

  double weight_bytes() const;  // bytes of all weights
  // Returns the bytes of weights that a forward of so many rows reads: an untied embedding is looked up instead, and of
  // a sparse model's experts those that a row chooses, where each is as likely as the others.
  double forward_bytes(double rows) const;
  double kv_token_bytes() const;  // KV cache of one token in all layers
  double num_parameters() const;

  // Returns the work of one step in which each of so many sequences gets a token. `context` is the mean of tokens
  // before it, of which `shared` are those of a prompt that `group` sequences read together.
  Work decode_step(double sequences, double context, double shared, double group, const Ceilings& ceilings) const;
  // Returns the work of prompts of that length, read in forwards of at most `batch_tokens`.
  Work prefill(double prompts, double prompt_tokens, double batch_tokens, const Ceilings& ceilings) const;
  // Returns the work of forward and backward over samples whose forward takes so many operations; the gradients are
  // accumulated in float32. A micro-batch's rows choose all experts.
  Work training(double forward_flops, double micro_batches, const Ceilings& ceilings) const;
  // Returns the work of the norm of the gradients, and of AdamW over all parameters.
  Work optimizer(const Ceilings& ceilings) const;

 private:
  double flops(const model::ForwardWork& work) const;

  const model::ModelConfig& config_;
  double element_, parameters_;
  double experts_bytes_;  // of all experts
};

}  // namespace tandem::bench
