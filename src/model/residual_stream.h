// The residual stream of a model on tensor ranks: the hidden states [T, E] and their gradients, between a product with
// a weight that is cut by columns and the next one that is cut by rows. It is whole on every rank, or, with sequence
// parallelism, cut by rows: then a rank keeps its own rows alone (TensorRanks::own_rows), so that the ranks share saved
// hidden states and the work on them. A row of the stream depends on that row alone, so its bits are the same
// either way.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "model/tensor_ranks.h"

namespace tandem::model {

class ResidualStream {
 public:
  // Borrows the ranks. The stream of one rank is whole.
  ResidualStream(const TensorRanks& ranks, bool is_cut) : ranks_(ranks), is_cut_(is_cut) {}

  const TensorRanks& ranks() const { return ranks_; }
  bool is_cut() const { return is_cut_; }

  // Returns what this rank keeps of TensorRanks::sum() of all parts [T, E]; residual_TE is what it keeps of the
  // residual.
  at::Tensor sum(const at::Tensor& part_TE, const at::Tensor& residual_TE, at::ScalarType dtype) const {
    return is_cut_ ? ranks_.sum_own_rows(part_TE, residual_TE, dtype) : ranks_.sum(part_TE, residual_TE, dtype);
  }
  // Returns what this rank keeps of rows that all ranks have: a view, or the tensor itself.
  at::Tensor kept(const at::Tensor& whole_TE) const { return is_cut_ ? ranks_.own_rows(whole_TE) : whole_TE; }
  // Returns all T rows, given those that this rank keeps: a new tensor, or the given one.
  at::Tensor whole(const at::Tensor& kept_TE, int64_t num_tokens) const {
    return is_cut_ ? ranks_.gather_rows(kept_TE, num_tokens) : kept_TE;
  }

 private:
  const TensorRanks& ranks_;
  const bool is_cut_;
};

}  // namespace tandem::model
