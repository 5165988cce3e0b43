// A tensor-parallel group as the forward and backward see it: each rank holds a part of each matrix, and the group adds
// up what its ranks computed, or gathers their columns side by side.
//
// A sum has one order, ((rank 0 + rank 1) + rank 2) + ..., in float32 with one rounding at the end, and every rank
// computes it alike: the ranks' results are equal bit for bit, and a row's result does not depend on its batch.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "device/communicator.h"
#include "device/ops.h"
#include "model/tensor_ranks_plan.h"

namespace tandem::model {

// Every rank makes the same calls in the same order, with parts of the same shape and dtype. PeerLost where one does
// not. A group of one rank exchanges nothing, because its parts are wholes: nobody asks it for a sum.
class TensorRanks {
 public:
  // Makes the group of one rank, which has the whole model.
  explicit TensorRanks(const device::Ops& ops) : ops_(ops) {}
  // Borrows both; the communicator's tensors lie where those of the operations do. Parts of more than
  // `gathered_part_bytes` are cut by rows.
  TensorRanks(const device::Ops& ops, device::Communicator& ranks, int64_t gathered_part_bytes = kGatheredPartBytes)
      : ops_(ops), ranks_(&ranks), gathered_part_bytes_(gathered_part_bytes) {}

  int rank() const { return ranks_ == nullptr ? 0 : ranks_->rank(); }
  int size() const { return ranks_ == nullptr ? 1 : ranks_->size(); }
  bool is_alone() const { return size() == 1; }

  // Returns the sum of all ranks' parts [R, ...], float32 or the model dtype, rounded to `dtype`; then residual + that,
  // unless `residual`, of `dtype`, is undefined. Communicator::sum adds up where it can, else Ops::sum_parts.
  at::Tensor sum(const at::Tensor& part, const at::Tensor& residual, at::ScalarType dtype) const;

  // Returns a view of the rows of `whole` that this rank owns (model::own_rows).
  at::Tensor own_rows(const at::Tensor& whole) const { return rows_of(whole, rank()); }
  // Returns own_rows(sum()) without computing the other rows; `residual` has own rows alone.
  at::Tensor sum_own_rows(const at::Tensor& part, const at::Tensor& residual, at::ScalarType dtype) const;
  // Returns [R, ...]: each rank's own rows, rank 0's first.
  at::Tensor gather_rows(const at::Tensor& own, int64_t num_rows) const;

  // Each rank has its own rows of these tensors, which have as many rows as each other: afterwards it has all rows.
  // Does nothing in a group of one rank.
  void complete_rows(const std::vector<at::Tensor>& wholes) const;

  // Returns the own rows of [R, sum of widths], where each rank has the part [R, widths[rank]], rank 0's columns first.
  // A group of one rank gets its part.
  at::Tensor whole_own_rows(const at::Tensor& part, const std::vector<int64_t>& widths) const;

  // words [n], int32, is 0 in each place on all ranks but one: afterwards each has what that one has. Does nothing in a
  // group of one rank.
  void fill_in(const at::Tensor& words) const;

 private:
  at::Tensor rows_of(const at::Tensor& whole, int rank) const;
  // Writes the own rows of the sum to own_sum.
  void sum_into_own_rows(const at::Tensor& part, const at::Tensor& own_residual, const at::Tensor& own_sum) const;
  void sum_of_gathered(const at::Tensor& part, const at::Tensor& residual, const at::Tensor& sum) const;
  void sum_by_rows(const at::Tensor& part, const at::Tensor& residual, const at::Tensor& sum) const;

  const device::Ops& ops_;
  device::Communicator* ranks_ = nullptr;  // null: there is one rank
  int64_t gathered_part_bytes_ = kGatheredPartBytes;
};

}  // namespace tandem::model
