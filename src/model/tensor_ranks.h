// The ranks that hold a model between them, a part of each matrix on each (tensor parallel), as the forward and
// backward see them: sums of what each rank computed, and columns gathered side by side.
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
// not. Of one rank, parts are wholes: nothing is exchanged, and nothing should be asked.
class TensorRanks {
 public:
  // Of a model that is whole.
  explicit TensorRanks(const device::Ops& ops) : ops_(ops) {}
  // Borrowed; the communicator's tensors lie where those of the operations do. Parts of more bytes than that are cut by
  // rows.
  TensorRanks(const device::Ops& ops, device::Communicator& ranks, int64_t gathered_part_bytes = kGatheredPartBytes)
      : ops_(ops), ranks_(&ranks), gathered_part_bytes_(gathered_part_bytes) {}

  int rank() const { return ranks_ == nullptr ? 0 : ranks_->rank(); }
  int size() const { return ranks_ == nullptr ? 1 : ranks_->size(); }
  bool is_alone() const { return size() == 1; }

  // The sum of all ranks' parts [R, ...] (Ops::sum_parts, or where the ranks can Communicator::sum: float32 or the
  // model dtype), rounded to `dtype`; then residual + that, unless `residual`, of `dtype`, is undefined.
  at::Tensor sum(const at::Tensor& part, const at::Tensor& residual, at::ScalarType dtype) const;

  // The rows of `whole` that belong to this rank where each has its own (model::own_rows): a view.
  at::Tensor own_rows(const at::Tensor& whole) const { return rows_of(whole, rank()); }
  // own_rows(sum()), without the other rows: `residual` has own rows alone.
  at::Tensor sum_own_rows(const at::Tensor& part, const at::Tensor& residual, at::ScalarType dtype) const;
  // [R, ...]: each rank's own rows, rank 0's first.
  at::Tensor gather_rows(const at::Tensor& own, int64_t num_rows) const;

  // Each rank has its own rows of these tensors, all of as many rows: afterwards it has all. Of one rank, nothing.
  void complete_rows(const std::vector<at::Tensor>& wholes) const;

  // The own rows of [R, sum of widths], where each rank has the part [R, widths[rank]], rank 0's columns first. Of one
  // rank: the part.
  at::Tensor whole_own_rows(const at::Tensor& part, const std::vector<int64_t>& widths) const;

  // words [n], int32, is 0 in each place on all ranks but one: afterwards each has what that one has. Of one rank,
  // nothing.
  void fill_in(const at::Tensor& words) const;

 private:
  at::Tensor rows_of(const at::Tensor& whole, int rank) const;
  // own_sum = the own rows of the sum.
  void sum_into_own_rows(const at::Tensor& part, const at::Tensor& own_residual, const at::Tensor& own_sum) const;
  void sum_of_gathered(const at::Tensor& part, const at::Tensor& residual, const at::Tensor& sum) const;
  void sum_by_rows(const at::Tensor& part, const at::Tensor& residual, const at::Tensor& sum) const;

  const device::Ops& ops_;
  device::Communicator* ranks_ = nullptr;  // null: there is one rank
  int64_t gathered_part_bytes_ = kGatheredPartBytes;
};

}  // namespace tandem::model
