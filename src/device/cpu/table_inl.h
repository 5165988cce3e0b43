// Gathers the kernels of one instruction set in a table.
#pragma once

#include "device/cpu/attention_inl.h"
#include "device/cpu/dequantise_inl.h"
#include "device/cpu/experts_inl.h"
#include "device/cpu/gemm_inl.h"
#include "device/cpu/kernels.h"
#include "device/cpu/loss_inl.h"
#include "device/cpu/rowwise_inl.h"

namespace tandem::device::cpu {

template <class S>
KernelTable make_table(const char* name) {
  return {name,
          Gemm<S, false>::table(),
          Gemm<S, S::kNativeBf16>::table(),
          Dequantise<S>::rows,
          Rowwise<S>::add,
          Rowwise<S>::rms_norm,
          Rowwise<S>::rms_norm_backward,
          Rowwise<S>::qk_norm_rope,
          Rowwise<S>::qk_norm_rope_backward,
          Rowwise<S>::rope,
          Rowwise<S>::rope_backward,
          Rowwise<S>::template gated<Silu<S>>,
          Rowwise<S>::template gated_backward<Silu<S>>,
          Rowwise<S>::template gated<Gelu<S>>,
          Rowwise<S>::template gated_backward<Gelu<S>>,
          Experts<S>::route,
          Experts<S>::route_backward,
          Experts<S>::sum_of_experts,
          Experts<S>::weighted_silu_backward,
          Attention<S>::kv_write,
          /*attention_rows=*/8,
          Attention<S>::forward,
          Attention<S>::backward,
          Loss<S>::logprob,
          Loss<S>::logprob_backward,
          Loss<S>::adamw};
}

}  // namespace tandem::device::cpu
