#include "device/cpu/cpu_products.h"

#include <ATen/ops/empty.h>

#include "base/check.h"
#include "device/cpu/tensor_data.h"

namespace tandem::device::cpu {

using at::Tensor;

namespace {

QuantisedRows quantised_rows(const QuantisedMatrix& w_NK) {
  return {.data = static_cast<const std::byte*>(in(w_NK.bytes)),
          .parts = w_NK.parts.data(),
          .num_parts = std::ssize(w_NK.parts)};
}

}  // namespace

Tensor CpuProducts::linear(const Tensor& x_TK, const Tensor& w_NK, at::ScalarType out) {
  const int64_t m = x_TK.size(0), n = w_NK.size(0), k = w_NK.size(1);
  TANDEM_CHECK_EQ(x_TK.size(1), k);
  Tensor y_TN = at::empty({m, n}, x_TK.options().dtype(out));
  gemm_.run({m,
             n,
             k,
             {in(x_TK), elem_of(x_TK), k, false},
             {in(w_NK), elem_of(w_NK), k, false},
             y_TN.data_ptr(),
             elem_of(y_TN),
             n,
             false});
  return y_TN;
}

Tensor CpuProducts::linear_grad_input(const Tensor& dy_TN, const Tensor& w_NK, at::ScalarType out) {
  const int64_t m = dy_TN.size(0), n = w_NK.size(0), k = w_NK.size(1);
  TANDEM_CHECK_EQ(dy_TN.size(1), n);
  Tensor dx_TK = at::empty({m, k}, w_NK.options().dtype(out));
  gemm_.run({m,
             k,
             n,
             {in(dy_TN), elem_of(dy_TN), n, false},
             {in(w_NK), elem_of(w_NK), k, true},
             dx_TK.data_ptr(),
             elem_of(dx_TK),
             k,
             false});
  return dx_TK;
}

void CpuProducts::linear_grad_weight(const Tensor& dy_TN, const Tensor& x_TK, const Tensor& dw_NK, GradientUse use) {
  const int64_t t = dy_TN.size(0), n = dy_TN.size(1), k = x_TK.size(1);
  TANDEM_CHECK_EQ(dw_NK.scalar_type(), at::kFloat);
  in(dw_NK);
  gemm_.run({n,
             k,
             t,
             {in(dy_TN), elem_of(dy_TN), n, true},
             {in(x_TK), elem_of(x_TK), k, true},
             dw_NK.data_ptr(),
             Elem::kF32,
             k,
             use == GradientUse::kAdd});
}

Tensor CpuProducts::dequantise(const QuantisedMatrix& w_NK) {
  const int64_t k = w_NK.num_columns();
  Tensor weights_NK = at::empty({w_NK.num_rows(), k}, at::kBFloat16);
  auto* const out = static_cast<uint16_t*>(weights_NK.data_ptr());
  const QuantisedRows rows = quantised_rows(w_NK);
  for (const QuantisedPart& part : w_NK.parts) {
    const QuantisedBytes bytes = quantised_bytes(part, rows.data);
    threads_.for_each(part.num_rows, 16,
                      [&](int64_t row) { table_.dequantise(bytes, row, 1, 0, k, out + (part.row_begin + row) * k); });
  }
  return weights_NK;
}

Tensor CpuProducts::linear_quantised(const Tensor& x_TK, const QuantisedMatrix& w_NK, at::ScalarType out) {
  return quantised_product(x_TK, w_NK, /*transposed=*/false, out);
}

Tensor CpuProducts::linear_quantised_grad_input(const Tensor& dy_TN, const QuantisedMatrix& w_NK, at::ScalarType out) {
  return quantised_product(dy_TN, w_NK, /*transposed=*/true, out);
}

Tensor CpuProducts::quantised_product(const Tensor& rows_TX, const QuantisedMatrix& w_NK, bool transposed,
                                      at::ScalarType out) {
  const int64_t rows = w_NK.num_rows(), columns = w_NK.num_columns();
  const int64_t inner = transposed ? rows : columns, outer = transposed ? columns : rows, m = rows_TX.size(0);
  TANDEM_CHECK(rows_TX.scalar_type() == at::kBFloat16 && rows_TX.size(1) == inner,
               "rows of another kind than the matrix");
  Tensor result = at::empty({m, outer}, rows_TX.options().dtype(out));
  const QuantisedRows quantised = quantised_rows(w_NK);
  gemm_.run({m,
             outer,
             inner,
             {in(rows_TX), Elem::kBF16, inner, false},
             {nullptr, Elem::kBF16, columns, transposed},
             result.data_ptr(),
             elem_of(result),
             outer,
             false,
             &quantised});
  return result;
}

}  // namespace tandem::device::cpu
