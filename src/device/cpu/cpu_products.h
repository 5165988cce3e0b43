// Products with a weight matrix on the CPU, of elements or quantised: tensors become the operands of GemmRunner.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "device/cpu/gemm.h"
#include "device/cpu/kernels.h"
#include "device/ops.h"
#include "device/quantised_matrix.h"
#include "device/thread_pool.h"

namespace tandem::device::cpu {

// Borrows all three. One call runs at a time.
class CpuProducts {
 public:
  CpuProducts(const KernelTable& table, ThreadPool& threads, GemmRunner& gemm)
      : table_(table), threads_(threads), gemm_(gemm) {}

  // These are Ops's functions of the same names.
  at::Tensor linear(const at::Tensor& x_TK, const at::Tensor& w_NK, at::ScalarType out);
  at::Tensor linear_grad_input(const at::Tensor& dy_TN, const at::Tensor& w_NK, at::ScalarType out);
  void linear_grad_weight(const at::Tensor& dy_TN, const at::Tensor& x_TK, const at::Tensor& dw_NK, GradientUse use);
  at::Tensor dequantise(const QuantisedMatrix& w_NK);
  at::Tensor linear_quantised(const at::Tensor& x_TK, const QuantisedMatrix& w_NK, at::ScalarType out);
  at::Tensor linear_quantised_grad_input(const at::Tensor& dy_TN, const QuantisedMatrix& w_NK, at::ScalarType out);

 private:
  // Returns x w^T, or x w if the matrix is transposed, for the rows x.
  at::Tensor quantised_product(const at::Tensor& rows_TX, const QuantisedMatrix& w_NK, bool transposed,
                               at::ScalarType out);

  const KernelTable& table_;
  ThreadPool& threads_;
  GemmRunner& gemm_;
};

}  // namespace tandem::device::cpu
