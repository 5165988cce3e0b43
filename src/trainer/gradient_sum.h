// Makes one sum of the gradients of a step's micro-batches. The gradient of a micro-batch is computed by itself, in
// scratch, and added to the accumulators, ((first + second) + third) + ..., whichever rank computed which: so the sum
// has the same bits for any number of ranks. With several ranks each sends the rows of its scratch to their owners,
// bucket after bucket, while the next bucket's backward runs.
//
// With groups of N micro-batches the sum is that of the groups' sums, (first + ... + Nth) + (...) + ..., again
// whichever rank computed which. Where the number of ranks D is a multiple of N, a group of a round is N neighbouring
// ranks, and rows go in two levels. Rank j of a group adds up the rows of every owner that is rank j of its own group,
// and sends each owner its sum: so a rank exchanges rows with N - 1 + D / N - 1 others instead of D - 1, and what
// leaves a group is an Nth. Elsewhere the owner adds up both levels, and keeps the sum of the group beside that of all.
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

// This is the model's sink. A step is begin_step(), then for each round begin_round() and a backward pass or its
// absence, then end_step(). A single rank writes its first micro-batch's gradients straight into the accumulators.
class GradientSum final : public model::GradientSink {
 public:
  // Accumulators and ranks are borrowed; shapes and device are the store's. Tensors that the store has not are frozen:
  // the base of an adapter. So are those that are frozen by their layout, whose sums are zeros.
  GradientSum(const weights::WeightStore& store, Gradients& accumulators, device::Communicator& ranks,
              int64_t group_size);

  // Allocates the scratch if there is none yet and the step needs it: for several ranks, or several micro-batches.
  void begin_step(int64_t num_micro_batches);
  // Begins a round of ranks that compute a micro-batch each; contributes[r] says whether rank r's has a gradient. It is
  // the same on all ranks.
  void begin_round(std::vector<bool> contributes);
  // Receives the other ranks' gradients where this rank contributes nothing.
  void receive_round();
  // Afterwards the accumulators are complete.
  void end_step();
  void release();

  model::GradientTarget of(const std::string& packed_name) override;
  void end_of_bucket(int64_t bucket) override;

 private:
  struct Part {  // part of the scratch for a packed tensor
    std::vector<int64_t> shape;
    int64_t bucket = 0;
    int64_t first_element = 0;  // offset in the scratch; for layers that take turns, in their slot
    bool is_filled = false;     // whether this round has written it
  };
  // Holds a bucket's rows while they are sent to their owners.
  struct Sent {
    int64_t bucket = 0;
    std::unique_ptr<device::Communicator::Exchange> exchange;
    std::vector<std::vector<at::Tensor>> received;  // [rank][tensors of the bucket that have own rows]
  };
  // In two levels: a bucket's sums over groups on their way to their owners.
  struct SentSums {
    int64_t bucket = 0;
    std::unique_ptr<device::Communicator::Exchange> exchange;
    std::vector<std::vector<at::Tensor>> received;  // [group][tensors of the bucket that have own rows]
  };
  int rank() const { return ranks_.rank(); }
  bool is_alone() const { return ranks_.size() == 1; }
  bool contributes() const { return contributes_[static_cast<size_t>(rank())]; }
  at::Tensor scratch(size_t tensor) const;               // the whole tensor
  at::Tensor scratch_of(size_t tensor, int rank) const;  // rows of that rank
  void allocate();
  void add_to_sum(size_t tensor, const at::Tensor& part);
  void add(size_t tensor, int64_t micro_batch, const at::Tensor& part);
  void end_group(size_t tensor);
  void add_own(const Bucket& bucket);
  void send(int64_t bucket);
  void add_received();
  void receive_all();

  // In two levels.
  int64_t group() const { return rank() / group_size_; }  // number of the own group in a round
  int64_t num_groups() const { return ranks_.size() / group_size_; }
  int place() const { return static_cast<int>(rank() % group_size_); }  // number of this rank in its group
  bool group_contributes(int64_t group) const;
  int owner(int64_t group) const { return static_cast<int>(group * group_size_) + place(); }
  base::Size column_elements(int64_t bucket) const;
  std::vector<at::Tensor> column(int64_t bucket, const at::Tensor& memory, int64_t begin, int64_t group) const;
  void send_in_group(int64_t bucket);
  void send_sums();
  void add_sums();

  const at::TensorOptions options_;
  Gradients& accumulators_;
  device::Communicator& ranks_;
  const int64_t group_size_;
  const bool has_two_levels_;
  const Buckets whole_, own_;
  std::vector<Buckets> columns_;  // in two levels: rows of the ranks of this one's place, by their group
  std::vector<Part> parts_;
  std::unordered_map<std::string, size_t> index_;  // of the tensors that want a gradient
  int64_t num_slots_;                              // number of slots that layers take in turns
  at::Tensor scratch_, receive_;
  at::Tensor group_sums_, receive_sums_;  // in two levels
  Gradients group_accumulators_;          // in one level: own rows of the group that is being added up
  std::vector<int64_t> group_of_;         // by tensor: whose sum that is; -1: none
  int64_t first_group_ = -1;              // whose sum the accumulators begin with; -1: none has contributed
  int64_t round_ = -1;                    // number of this round in the step
  std::vector<bool> contributes_;
  bool is_direct_ = false, has_contributed_ = false;  // is_direct_: in this round; has_contributed_: in this step
  std::unique_ptr<Sent> sent_;
  std::unique_ptr<SentSums> sent_sums_;
};

}  // namespace tandem::trainer
