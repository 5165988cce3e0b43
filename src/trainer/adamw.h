// Applies AdamW to the packed tensors of a weight store. Masters and moments are float32, in device memory or on the
// host; gradients are float32. In a float32 store the store itself is the master; a bfloat16 store holds the rounding
// of a float32 master. With several ranks each has gradients, masters and moments of its own rows alone
// (trainer/shard.h), updates those, and gets the others' weights from their owners. A tensor that is frozen by its
// layout has masters and moments as the others, so that checkpoints are alike, and no update moves them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/size.h"
#include "device/ops.h"
#include "trainer/gradients.h"
#include "trainer/optimizer_state.h"
#include "trainer/optimizer_tensor.h"
#include "trainer/ranks.h"
#include "trainer/shard.h"
#include "trainer/trainer_config.h"
#include "weights/store.h"

namespace tandem::trainer {

// Store and ops are borrowed. Between begin_step() and step(), gradients are added to the tensors that gradient()
// returns.
//
// A step that fails before it wrote anything has not happened. One that fails later leaves masters, moments and weights
// of two steps, and from then on step(), state() and restore() throw EnvironmentErrors that say so: half a step must
// not be saved.
//
// gradient_norm(), step() and restore() are calls that all ranks make together.
class AdamW {
 public:
  // With `offload`, masters and moments live on the host, with the same bits. Copies from the host then go through
  // buffers, whose bytes are OffloadBytes::device_buffers and which live as long as a step().
  AdamW(const AdamWConfig& config, weights::WeightStore& store, const device::Ops& ops,
        const std::optional<OptimizerOffload>& offload = std::nullopt, const Ranks& ranks = no_other_ranks());

  // Forgets the gradients of the previous step; allocates their memory where it was released.
  void begin_step();
  // Returns the float32 accumulator of a packed tensor's own rows, zeros when first asked for in a step.
  at::Tensor gradient(const std::string& packed_name);
  // Returns all gradients, in store order.
  Gradients& gradients() { return gradients_; }
  // Returns the accumulated gradient of the last step, after gradient_norm() or step(), until gradients().release().
  const at::Tensor& last_gradient(const std::string& packed_name) const;
  // Returns the 2-norm of all gradients together, unscaled: the sums of squares of blocks, in float64, added in store
  // order; where a model has several parts, those of tensors that all of them have, then each part's. It has the same
  // bits on every rank and for any number of data ranks.
  double gradient_norm();
  // Makes one update with gradients * grad_scale and writes the store, whose version is left to the caller. Throws
  // EnvironmentError if a copy failed, the host has too little memory, or a rank is lost; the step is lost.
  void step(double lr, double grad_scale);

  int64_t num_steps() const { return num_steps_; }
  // Returns the state of own rows, which lives as long as this object, ascending by kind, then by the packed tensor's
  // name.
  std::vector<OptimizerTensor> state() const;
  // Call it after a checkpoint was copied into state(): it sets the step number and rounds the masters into the store.
  void restore(int64_t num_steps);

 private:
  struct Parameter {
    const weights::PackedTensor* packed = nullptr;
    at::Tensor weight;  // the store's tensor, in its packed shape
    Rows rows;          // own ones
    double weight_decay = 0.0;
  };
  at::Tensor own_rows(const Parameter& parameter) const;
  template <typename IsMeant>
  double sum_of_squares(IsMeant is_meant);
  void update(const StatePiece& piece, double lr, double grad_scale);
  // Copies every rank's rows of every weight from their owners into the store.
  void gather_weights() const;
  void gather_weights_in_two_levels() const;
  std::vector<at::Tensor> weights_of(int rank) const;
  void check_whole() const;
  size_t index_of(const std::string& packed_name) const;

  AdamWConfig config_;
  const device::Ops& ops_;
  const Ranks ranks_;
  std::vector<Parameter> parameters_;  // in store order
  std::unordered_map<std::string, size_t> index_;
  Gradients gradients_;
  std::unique_ptr<OptimizerState> state_;
  base::Size num_steps_ = 0;
  bool is_half_updated_ = false;
};

}  // namespace tandem::trainer
