#include "model/tensor_ranks.h"

#include <ATen/ops/empty.h>

#include <numeric>
#include <utility>

#include "base/check.h"

namespace tandem::model {
namespace {

using at::Tensor;
using device::TensorLists;

// Where there are fewer rows than ranks, some ranks have none, and nothing is sent.
std::vector<Tensor> rows_to_send(Tensor rows) {
  if (rows.size(0) == 0) return {};
  return {std::move(rows)};
}

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
  sum_into_own_rows(part, residual.defined() ? own_rows(residual) : residual, own_rows(sum));
  exchange_rows(sum);
}

Tensor TensorRanks::sum_own_rows(const Tensor& part, const Tensor& residual, at::ScalarType dtype) const {
  const Tensor sum = at::empty(own_rows(part).sizes(), part.options().dtype(dtype));
  sum_into_own_rows(part, residual, sum);
  return sum;
}

Tensor TensorRanks::gather_rows(const Tensor& own, int64_t num_rows) const {
  std::vector<int64_t> shape = own.sizes().vec();
  shape[0] = num_rows;
  Tensor whole = at::empty(shape, own.options());
  own_rows(whole).copy_(own);
  exchange_rows(whole);
  return whole;
}

Tensor TensorRanks::rows_of(const Tensor& whole, int rank) const {
  const int64_t num_rows = whole.size(0), begin = num_rows * rank / size(), end = num_rows * (rank + 1) / size();
  return whole.narrow(0, begin, end - begin);
}

void TensorRanks::sum_into_own_rows(const Tensor& part, const Tensor& own_residual, const Tensor& own_sum) const {
  TensorLists to, from;
  std::vector<Tensor> own_parts;
  const Tensor own_part = own_rows(part);
  for (int rank = 0; rank < size(); ++rank) {
    const bool is_own = rank == ranks_->rank();
    own_parts.push_back(is_own ? own_part : at::empty(own_part.sizes(), own_part.options()));
    to.push_back(rows_to_send(rows_of(part, rank)));
    from.push_back(rows_to_send(own_parts.back()));
  }
  ranks_->start_exchange(std::move(to), std::move(from))->wait();
  ops_.sum_parts(own_parts, own_residual, own_sum);
}

void TensorRanks::exchange_rows(const Tensor& whole) const {
  TensorLists rows;
  for (int rank = 0; rank < size(); ++rank) rows.push_back(rows_to_send(rows_of(whole, rank)));
  device::all_gather(*ranks_, rows);
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
