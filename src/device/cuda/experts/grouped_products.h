// Products of many places' rows with their experts' weights in bfloat16, by LibTorch's kernel for groups of rows. It is
// used where it gives the bits of ordered_product(), which experts.h has too. So a row's bits depend neither on how
// many rows its expert has nor on which of the two multiplies it.
//
// The kernel is asked when it is first needed for a weight's size, which takes some milliseconds: on data whose sums
// leave nothing but rounding, groups of many sizes, in both tiles between which the library chooses by the rows that a
// group has on average. If a number differs, a warning says so, and the library is not used for that size.
//
// One thread at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <tuple>

#include "device/cuda/products/linear_plans.h"

namespace tandem::device::cuda {

class GroupedProducts {
 public:
  // Returns whether forward() or grad_input() is exact for weights of N x K. It must not be asked first during the
  // capture of a graph.
  bool is_exact(ProductKind kind, int64_t N, int64_t K, at::Device device);

  // Returns y_PN = x_PK w^T and dx_PK = dy_PN w, by expert. Tensors are bfloat16, contiguous and 16-byte aligned, N and
  // K multiples of 8; offsets_X1 are Routing's.
  static at::Tensor forward(const at::Tensor& x_PK, const at::Tensor& w_XNK, const at::Tensor& offsets_X1);
  static at::Tensor grad_input(const at::Tensor& dy_PN, const at::Tensor& w_XNK, const at::Tensor& offsets_X1);

 private:
  std::map<std::tuple<ProductKind, int64_t, int64_t>, bool> answers_;
};

}  // namespace tandem::device::cuda
