#include "model/tensor_ranks.h"

#include <ATen/ops/empty.h>

#include <numeric>

#include "base/check.h"

namespace tandem::model {
namespace {

using at::Tensor;
using device::TensorLists;

}  // namespace

Tensor TensorRanks::sum(const Tensor& part, const Tensor& residual, at::ScalarType dtype) const {
  TANDEM_CHECK(!is_alone(), "a sum over one rank");
  const Tensor sum = at::empty(part.sizes(), part.options().dtype(dtype));
  if (ranks_->sum(part, residual, sum)) return sum;
  const bool is_small = static_cast<int64_t>(part.nbytes()) <= gathered_part_bytes_;
  if (is_small || part.size(0) < size()) {
    sum_of_gathered(part, residual, sum);
  } else {
    sum_by_rows(part, residual, sum);
  }
  return sum;
}

void TensorRanks::sum_of_gathered(const Tensor& part, const Tensor& residual, const Tensor& sum) const {
  TensorLists lists;
  std::vector<Tensor> parts;
  for (int rank = 0; rank < size(); ++rank) {
    parts.push_back(rank == ranks_->rank() ? part : at::empty(part.sizes(), part.options()));
    lists.push_back({parts.back()});
  }
  device::all_gather(*ranks_, lists);
  ops_.sum_parts(parts, residual, sum);
}

void TensorRanks::sum_by_rows(const Tensor& part, const Tensor& residual, const Tensor& sum) const {
  const int64_t num_rows = part.size(0);
  const auto rows_of = [&](const Tensor& all, int rank) {
    const int64_t begin = num_rows * rank / size(), end = num_rows * (rank + 1) / size();
    return all.narrow(0, begin, end - begin);
  };
  TensorLists sums, to, from;
  std::vector<Tensor> own_parts;
  for (int rank = 0; rank < size(); ++rank) {
    const bool is_own = rank == ranks_->rank();
    const Tensor own_rows = rows_of(part, ranks_->rank());
    own_parts.push_back(is_own ? own_rows : at::empty(own_rows.sizes(), own_rows.options()));
    sums.push_back({rows_of(sum, rank)});
    to.push_back({rows_of(part, rank)});
    from.push_back({own_parts.back()});
  }
  ranks_->start_exchange(std::move(to), std::move(from))->wait();
  const Tensor own_residual = residual.defined() ? rows_of(residual, ranks_->rank()) : residual;
  ops_.sum_parts(own_parts, own_residual, rows_of(sum, ranks_->rank()));
  own_parts.clear();
  device::all_gather(*ranks_, sums);
}

Tensor TensorRanks::gather_columns(const Tensor& part, const std::vector<int64_t>& widths) const {
  TANDEM_CHECK_EQ(std::ssize(widths), size());
  const int64_t num_rows = part.size(0);
  TensorLists parts;
  for (int rank = 0; rank < size(); ++rank) {
    const int64_t width = widths[static_cast<size_t>(rank)];
    parts.push_back({rank == ranks_->rank() ? part : at::empty({num_rows, width}, part.options())});
  }
  device::all_gather(*ranks_, parts);
  Tensor whole = at::empty({num_rows, std::accumulate(widths.begin(), widths.end(), int64_t{0})}, part.options());
  int64_t begin = 0;
  for (const std::vector<Tensor>& columns : parts) {
    whole.narrow(1, begin, columns[0].size(1)).copy_(columns[0]);
    begin += columns[0].size(1);
  }
  return whole;
}

}  // namespace tandem::model
