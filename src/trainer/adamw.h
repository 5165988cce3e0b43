// AdamW over the packed tensors of a weight store: float32 masters, moments and gradients beside it.
// In a float32 store the store itself is the master; in a bfloat16 store a float32 master lies beside each tensor and
// the store holds its rounding.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "device/ops.h"
#include "weights/store.h"

namespace tandem::trainer {

struct AdamWConfig {
  double beta1 = 0.9, beta2 = 0.98, eps = 1e-8;
  double weight_decay = 0.1;
  bool weight_decay_all = false;  // false: matrices only, i.e. embeddings and projections, not norms
};

// Store and ops are borrowed. Between begin_step() and step(), gradients are added to what gradient() returns.
class AdamW {
 public:
  AdamW(const AdamWConfig& config, weights::WeightStore& store, const device::Ops& ops);

  // Forgets the gradients of the step before.
  void begin_step();
  // The float32 accumulator of a packed tensor, zeros when first asked for in a step.
  at::Tensor gradient(const std::string& packed_name);
  // The same after gradient_norm() or step(): the last step's.
  const at::Tensor& last_gradient(const std::string& packed_name) const;
  // 2-norm of all gradients together, unscaled; summed in float64 in store order.
  double gradient_norm();
  // One update with gradients * grad_scale; writes the store (and leaves its version to the caller).
  void step(double lr, double grad_scale);

  int64_t num_steps() const { return num_steps_; }
  // "master.<packed>", "exp_avg.<packed>", "exp_avg_sq.<packed>": live tensors, float32.
  std::map<std::string, at::Tensor> state() const;
  // After a checkpoint was copied into state(): the step number, and the store rounded from the masters.
  void restore(int64_t num_steps);

 private:
  struct Parameter {
    std::string name;
    at::Tensor weight, master, exp_avg, exp_avg_sq, gradient;  // flat, but for gradient, which has the packed shape
    double weight_decay = 0.0;
    bool has_gradient = false;  // zeroed lazily: false means that `gradient` holds an older step's
  };
  static const at::Tensor& gradient_of(Parameter& parameter);
  size_t index_of(const std::string& packed_name) const;

  AdamWConfig config_;
  const device::Ops& ops_;
  std::vector<Parameter> parameters_;  // in store order
  std::unordered_map<std::string, size_t> index_;
  int64_t num_steps_ = 0;
};

}  // namespace tandem::trainer
