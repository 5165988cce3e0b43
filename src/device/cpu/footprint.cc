#include "device/cpu/footprint.h"

#include <algorithm>
#include <initializer_list>

namespace tandem::device::cpu {
namespace {

constexpr int64_t kFloatBytes = 4;

// gemm.cc packs so many floats of rows at a time, but whole groups of 16 of the largest micro kernel's rows (32,
// AMX's).
constexpr int64_t kPackedFloats = int64_t{4} << 20;
constexpr int64_t kLeastPackedRows = 16 * 32;
// Rows of a few_rows() call of AMX, and the step of k in packed rows.
constexpr int64_t kMostUnit = 32;
// A thread has panels and results of this size.
constexpr int64_t kThreadBytes = int64_t{1} << 20;

// Returns the bytes to within what rounds a width up to 32 entries.
Size packed_bytes(Size rows, Size inner) {
  const Size width = (inner + 31) / 32 * 32;
  return std::min(rows * width, std::max(Size(kPackedFloats), kLeastPackedRows * width)) * kFloatBytes;
}

// This is attention_scratch_floats() of the largest tile, 16 rows (AMX).
Size attention_scratch_bytes(const OpsShape& s, Size context) {
  const Size vectors = 16 * (s.num_heads / s.num_kv_heads), width = (s.head_dim + 31) / 32 * 32;
  return (vectors * (3 * width + 48 + (context + 31) / 32 * 32) + 144 * width + 16) * kFloatBytes;
}

// The CPU's operations (cpu_ops.cc) allocate their results and nothing else that grows with a batch.
class CpuOpsPlan final : public OpsPlan {
 public:
  using OpsPlan::OpsPlan;

  Size prepared(const AttentionLoad& /*load*/, bool /*has_backward*/) const override { return 0; }

  // GemmRunner keeps the rows that it packs, each thread the scratch of its attention, and all of them the table of
  // rotations. The rows of all experts of a layer are packed together.
  Size kept(const KeptLoad& load, Size num_threads) const override {
    const OpsShape& s = shape();
    const Size qkv = s.q_width + 2 * s.kv_width;
    Size packed = 0;
    const auto pack = [&packed](Size rows, const std::initializer_list<Size>& inner_widths) {
      for (const Size inner : inner_widths) packed = std::max(packed, packed_bytes(rows, inner));
    };
    // An expert's rows are rounded up to those of a kernel, or, where a sum runs over them, to its step.
    const Size mlp_rows = s.experts == 0 ? load.rows : places(load.rows) + s.experts * (kMostUnit - 1);
    // The forward packs the rows of the batch, over each width that a matrix reads.
    pack(load.rows, {s.hidden, s.q_width});
    pack(mlp_rows, {s.hidden, s.mlp});
    pack(load.logits_rows, {s.hidden});
    if (load.trains) {
      // Gradients of inputs read the widths that matrices write, those of weights all rows of the batch.
      pack(load.rows, {qkv, s.hidden, s.experts});
      pack(mlp_rows, {s.hidden, 2 * s.mlp});
      pack(load.logits_rows, {s.vocab});
      for (const Size rows : {qkv, s.hidden, s.experts}) pack(rows, {load.rows});
      for (const Size rows : {s.hidden, 2 * s.mlp}) pack(rows, {mlp_rows});
      pack(s.vocab, {load.logits_rows});
    }
    const Size rotations = load.context * s.head_dim * kFloatBytes;
    const Size tokens = places(load.rows) * sizeof(int32_t);  // of each place
    // A strip of 32 columns of a quantised matrix, over all that a row of it sums up.
    const Size strip = s.is_quantised ? 32 * std::max({s.hidden, s.q_width, s.mlp}) * element() : Size(0);
    return packed + num_threads * (kThreadBytes + strip + attention_scratch_bytes(s, load.context)) + rotations +
           tokens;
  }

  // Strips of a quantised matrix are kept.
  OpBytes linear_quantised(Size rows, Size inner, Size outer, Size out_bytes) const override {
    return linear(rows, inner, outer, out_bytes);
  }
  OpBytes linear_quantised_grad_input(Size rows, Size inner, Size outer, Size out_bytes) const override {
    return linear_grad_input(rows, inner, outer, out_bytes);
  }
  OpBytes linear_of_experts_quantised(Size rows, Size inner, Size outer, Size out_bytes, bool gathers) const override {
    return linear_of_experts(rows, inner, outer, out_bytes, gathers);
  }
  OpBytes linear_of_experts_quantised_grad_input(Size rows, Size inner, Size outer, Size out_bytes,
                                                 bool gathers) const override {
    return linear_of_experts_grad_input(rows, inner, outer, out_bytes, gathers);
  }

 protected:
  OpBytes op(Size result, Size /*aten_most*/) const override { return {.result = result, .most = result}; }

  // Rows of tokens are read where they are.
  Size gathered(Size /*rows*/, Size /*width*/) const override { return 0; }

  // Both gradients are summed in float32; only bfloat16 then needs copies.
  OpBytes kv_gradient(const AttentionLoad& load) const override {
    const Size half = load.rows * shape().kv_width;
    const Size copy = element() == kFloatBytes ? Size(0) : element();
    return {.result = 2 * half * element(), .most = 2 * half * (kFloatBytes + copy)};
  }
};

}  // namespace

constinit const Footprint kFootprint = {
    .shares_host_memory = true,
    .has_large_temporaries = false,
    .has_quantised = true,
    .has_dropout = true,
    .plan_ops = [](const OpsShape& shape, Size element_bytes) -> std::unique_ptr<const OpsPlan> {
      return std::make_unique<CpuOpsPlan>(shape, element_bytes);
    }};

}  // namespace tandem::device::cpu
