// The operations of experts (device/experts.h) on the CPU: tensors become pointers, rows go to threads.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "device/cpu/gemm.h"
#include "device/cpu/kernels.h"
#include "device/experts.h"
#include "device/ops.h"
#include "device/quantised_matrix.h"
#include "device/thread_pool.h"

namespace tandem::device::cpu {

// Borrows all three. One call runs at a time.
class CpuExperts {
 public:
  CpuExperts(const KernelTable& table, ThreadPool& threads, GemmRunner& gemm)
      : table_(table), threads_(threads), gemm_(gemm) {}

  // These are Ops's functions of the same names.
  Routing route(const at::Tensor& logits_TX, const RouteRule& rule);
  at::Tensor route_backward(const at::Tensor& dweights_TC, const at::Tensor& logits_TX, const Routing& routing,
                            const RouteRule& rule, at::ScalarType out);
  at::Tensor linear(const at::Tensor& x, RowsAre x_rows, const at::Tensor& w_XNK, const Routing& routing,
                    at::ScalarType out);
  at::Tensor linear_grad_input(const at::Tensor& dy, RowsAre dy_rows, const at::Tensor& w_XNK, const Routing& routing,
                               at::ScalarType out);
  at::Tensor linear_quantised(const at::Tensor& x, RowsAre x_rows, const QuantisedMatrix& w_XNK, const Routing& routing,
                              at::ScalarType out);
  at::Tensor linear_quantised_grad_input(const at::Tensor& dy, RowsAre dy_rows, const QuantisedMatrix& w_XNK,
                                         const Routing& routing, at::ScalarType out);
  void linear_grad_weight(const at::Tensor& dy, RowsAre dy_rows, const at::Tensor& x, RowsAre x_rows,
                          const at::Tensor& dw_XNK, const Routing& routing, GradientUse use);
  at::Tensor sum(const at::Tensor& y_PE, const at::Tensor& weights_TC, const Routing& routing,
                 const at::Tensor& residual_TE, at::ScalarType out);
  Ops::WeightedSilu weighted_silu_backward(const at::Tensor& da_PF, const at::Tensor& gate_up_P2F,
                                           const Routing& routing);

 private:
  // The matrices [n][k] of the experts. Quantised ones have no elements.
  struct ExpertWeights {
    int64_t n, k;
    const void* elements;
    Elem elem;
    std::vector<QuantisedRows> quantised;
    // Returns those of an expert.
    Matrix matrix_of(int64_t e, bool by_columns) const;
    const QuantisedRows* quantised_of(int64_t e) const;
  };
  static ExpertWeights weights_of(const at::Tensor& w_XNK, const Routing& routing);
  static ExpertWeights weights_of(const QuantisedMatrix& w_XNK, const Routing& routing);
  // Multiplies each place's row by its expert's rows of w, or by its columns.
  at::Tensor multiply(const at::Tensor& x, RowsAre x_rows, const ExpertWeights& w, bool by_columns,
                      const Routing& routing, at::ScalarType out);
  // An operand of products: the row of each place, which lies in order, or where its token's row does.
  struct PlaceRows {
    const void* data;
    Elem elem;
    int64_t width;
    const int32_t* tokens_P;  // null where rows are in the order of places
    // Returns the rows of a place and of those after it.
    Matrix from(int64_t place, bool k_major) const;
  };
  // The result is good until the next call that has rows of tokens.
  PlaceRows rows_of_places(const at::Tensor& x, RowsAre rows, const Routing& routing);

  const KernelTable& table_;
  ThreadPool& threads_;
  GemmRunner& gemm_;
  std::vector<int32_t> tokens_P_;  // the token of each place, of the last operand that has rows of tokens
};

}  // namespace tandem::device::cpu
