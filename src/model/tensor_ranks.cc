#include "model/tensor_ranks.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <numeric>
#include <utility>

#include "base/check.h"

namespace tandem::model {
namespace {

using at::Tensor;
using device::TensorLists;

// Appends rows to send. If there are fewer rows than ranks, some ranks have none, and nothing is sent.
void append_rows(Tensor rows, std::vector<Tensor>& list) {
  if (rows.size(0) > 0) list.push_back(std::move(rows));
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
  complete_rows({sum});
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
  complete_rows({whole});
  return whole;
}

Tensor TensorRanks::rows_of(const Tensor& whole, int rank) const {
  const OwnRows rows = model::own_rows(whole.size(0), rank, size());
  return whole.narrow(0, rows.begin, rows.count());
}

void TensorRanks::sum_into_own_rows(const Tensor& part, const Tensor& own_residual, const Tensor& own_sum) const {
  TensorLists to(static_cast<size_t>(size())), from(static_cast<size_t>(size()));
  std::vector<Tensor> own_parts;
  const Tensor own_part = own_rows(part);
  for (int rank = 0; rank < size(); ++rank) {
    const bool is_own = rank == ranks_->rank();
    own_parts.push_back(is_own ? own_part : at::empty(own_part.sizes(), own_part.options()));
    append_rows(rows_of(part, rank), to[static_cast<size_t>(rank)]);
    append_rows(own_parts.back(), from[static_cast<size_t>(rank)]);
  }
  ranks_->start_exchange(std::move(to), std::move(from))->wait();
  ops_.sum_parts(own_parts, own_residual, own_sum);
}

void TensorRanks::complete_rows(const std::vector<Tensor>& wholes) const {
  if (is_alone()) return;
  TensorLists rows(static_cast<size_t>(size()));
  for (int rank = 0; rank < size(); ++rank) {
    for (const Tensor& whole : wholes) append_rows(rows_of(whole, rank), rows[static_cast<size_t>(rank)]);
  }
  device::all_gather(*ranks_, rows);
}

Tensor TensorRanks::whole_own_rows(const Tensor& part, const std::vector<int64_t>& widths) const {
  TANDEM_CHECK_EQ(std::ssize(widths), size());
  if (is_alone()) return part;
  const int64_t num_rows = own_rows(part).size(0);
  TensorLists to(static_cast<size_t>(size())), from(static_cast<size_t>(size()));
  std::vector<Tensor> columns;
  for (int rank = 0; rank < size(); ++rank) {
    const int64_t width = widths[static_cast<size_t>(rank)];
    columns.push_back(rank == ranks_->rank() ? own_rows(part) : at::empty({num_rows, width}, part.options()));
    append_rows(rows_of(part, rank), to[static_cast<size_t>(rank)]);
    append_rows(columns.back(), from[static_cast<size_t>(rank)]);
  }
  ranks_->start_exchange(std::move(to), std::move(from))->wait();
  Tensor whole = at::empty({num_rows, std::accumulate(widths.begin(), widths.end(), int64_t{0})}, part.options());
  int64_t begin = 0;
  for (const Tensor& of_rank : columns) {
    whole.narrow(1, begin, of_rank.size(1)).copy_(of_rank);
    begin += of_rank.size(1);
  }
  return whole;
}

void TensorRanks::fill_in(const Tensor& words) const {
  if (is_alone()) return;
  TANDEM_CHECK(words.scalar_type() == at::kInt, "words that ranks fill in");
  TensorLists lists;
  for (int rank = 0; rank < size(); ++rank) {
    lists.push_back({rank == ranks_->rank() ? words : at::empty_like(words)});
  }
  device::all_gather(*ranks_, lists);
  for (int rank = 0; rank < size(); ++rank) {
    if (rank != ranks_->rank()) Tensor(words).add_(lists[static_cast<size_t>(rank)][0]);
  }
}

}  // namespace tandem::model
