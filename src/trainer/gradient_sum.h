// How the gradients of a step's micro-batches become one sum. The gradient of a micro-batch is computed by itself, in
// scratch, and added to the accumulators, ((first + second) + third) + ..., whatever rank computed which: so the sum
// has the same bits for any number of ranks. With several ranks each sends the rows of its scratch to those who own
// them, bucket after bucket, while the next bucket's backward runs.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "device/communicator.h"
#include "model/linear.h"
#include "trainer/gradients.h"
#include "trainer/shard.h"
#include "weights/store.h"

namespace tandem::trainer {

// The model's sink. A step: begin_step(), for each round begin_round() and a backward pass or its absence, end_step().
// One rank alone writes its first micro-batch's gradients straight into the accumulators.
class GradientSum final : public model::GradientSink {
 public:
  // Accumulators and ranks are borrowed, shapes and device are the store's. What the store has not is frozen: the base
  // of an adapter.
  GradientSum(const weights::WeightStore& store, Gradients& accumulators, device::Communicator& ranks);

  // Takes the scratch where there is none yet and the step needs it: for several ranks, or several micro-batches.
  void begin_step(bool has_several_micro_batches);
  // Of ranks that compute a micro-batch each; contributes[r]: the one of rank r has a gradient. The same on all ranks.
  void begin_round(std::vector<bool> contributes);
  // Where this rank contributes nothing: receives what the others send.
  void receive_round();
  // The accumulators are whole.
  void end_step();
  void release();

  model::GradientTarget of(const std::string& packed_name) override;
  void end_of_bucket(int64_t bucket) override;

 private:
  struct Part {  // of a packed tensor
    std::vector<int64_t> shape;
    int64_t bucket = 0;
    int64_t first_element = 0;  // of the scratch, but for layers that take turns
    bool is_filled = false;     // of this round
  };
  // A bucket's rows on their way to their owners.
  struct Sent {
    int64_t bucket = 0;
    std::unique_ptr<device::Communicator::Exchange> exchange;
    std::vector<std::vector<at::Tensor>> received;  // [rank][those of the bucket that have own rows]
  };
  int rank() const { return ranks_.rank(); }
  bool is_alone() const { return ranks_.size() == 1; }
  bool contributes() const { return contributes_[static_cast<size_t>(rank())]; }
  at::Tensor scratch(size_t tensor) const;               // whole
  at::Tensor scratch_of(size_t tensor, int rank) const;  // the rows of that rank
  void allocate();
  void add(size_t tensor, const at::Tensor& part);
  void add_own(const Bucket& bucket);
  void send(int64_t bucket);
  void add_received();

  const at::TensorOptions options_;
  Gradients& accumulators_;
  device::Communicator& ranks_;
  const Buckets whole_, own_;
  std::vector<Part> parts_;
  std::unordered_map<std::string, size_t> index_;
  int64_t num_slots_;  // of layers, in turns
  at::Tensor scratch_, receive_;
  std::vector<bool> contributes_;
  bool is_direct_ = false, has_contributed_ = false;  // of this round; in this step
  std::unique_ptr<Sent> sent_;
};

}  // namespace tandem::trainer
