#include "device/ops_plan.h"

#include <algorithm>

namespace tandem::device {
namespace {

constexpr int64_t kFloatBytes = 4;

// device/cpu/gemm.cc: so many floats of packed rows at a time, but whole groups of 16 of the largest micro kernel's
// rows (32, AMX's).
constexpr int64_t kPackedFloats = int64_t{4} << 20;
constexpr int64_t kLeastPackedRows = 16 * 32;
// Panels and results of a thread.
constexpr int64_t kThreadBytes = int64_t{1} << 20;

// device/attention_aten.cc: tiles of 256 keys that one call takes on a GPU.
constexpr int64_t kTilesPerCall = 64, kTileKeys = 256;

// To within what rounds a width up to 32 entries.
int64_t packed_bytes(int64_t rows, int64_t inner) {
  const int64_t width = (inner + 31) / 32 * 32;
  return std::min(rows * width, std::max(kPackedFloats, kLeastPackedRows * width)) * kFloatBytes;
}

// cpu::attention_scratch_floats of the largest tile, 16 rows (AMX).
int64_t attention_scratch_bytes(const OpsShape& s) {
  const int64_t vectors = 16 * (s.num_heads / s.num_kv_heads), width = (s.head_dim + 31) / 32 * 32;
  return (vectors * (3 * width + 48 + (s.context + 31) / 32 * 32) + 144 * width + 16) * kFloatBytes;
}

}  // namespace

OpsFamily ops_family(const std::string& device) {
  return device == "cpu" || device.empty() ? OpsFamily::kCpu : OpsFamily::kAten;
}

int64_t cpu_kernel_bytes(const OpsShape& s, int64_t num_threads) {
  const int64_t qkv = s.q_width + 2 * s.kv_width;
  // Forward: rows of the batch, over each width that a matrix reads.
  int64_t packed = 0;
  for (const int64_t inner : {s.hidden, s.q_width, s.mlp}) packed = std::max(packed, packed_bytes(s.rows, inner));
  packed = std::max(packed, packed_bytes(s.logits_rows, s.hidden));
  if (s.trains) {
    // Gradients of inputs read the widths that matrices write, those of weights all rows of the batch.
    for (const int64_t inner : {qkv, s.hidden, 2 * s.mlp}) packed = std::max(packed, packed_bytes(s.rows, inner));
    packed = std::max(packed, packed_bytes(s.logits_rows, s.vocab));
    for (const int64_t rows : {qkv, s.hidden, 2 * s.mlp}) packed = std::max(packed, packed_bytes(rows, s.rows));
    packed = std::max(packed, packed_bytes(s.vocab, s.logits_rows));
  }
  const int64_t rotations = s.context * s.head_dim * kFloatBytes;
  return packed + num_threads * (kThreadBytes + attention_scratch_bytes(s)) + rotations;
}

int64_t block_temporary_bytes(OpsFamily family, const OpsShape& s) {
  if (family == OpsFamily::kCpu) return 0;
  // gate, up, silu(gate) and two products; backward: ten of the MLP's width.
  const int64_t mlp = (s.trains ? 10 : 5) * s.rows * s.mlp;
  // Queries, their results and the padded rows; keys and values of the tiles of a call, before and after transposing.
  const int64_t attention = 3 * s.rows * s.q_width + 4 * kTilesPerCall * kTileKeys * s.kv_width;
  // Backward goes by sequence: scores, their exponentials and two gradients.
  const int64_t one_sequence = std::min(s.rows, s.context);
  const int64_t scores = s.trains ? 4 * one_sequence * s.num_heads * s.context + 4 * s.context * s.q_width : 0;
  const int64_t weight_gradient = s.trains ? 2 * s.mlp * s.hidden : 0;
  return std::max({mlp, attention, scores, weight_gradient}) * kFloatBytes;
}

int64_t logits_temporary_bytes(OpsFamily family, const OpsShape& s, bool has_entropy_gradient) {
  if (family == OpsFamily::kCpu) return 0;
  const int64_t copies = s.trains && has_entropy_gradient ? 7 : 4;
  const int64_t weight_gradient = s.trains ? s.vocab * s.hidden : 0;
  return std::max(copies * s.logits_rows * s.vocab, weight_gradient) * kFloatBytes;
}

int64_t optimizer_temporary_bytes(OpsFamily family, int64_t largest_parameter) {
  // The scaled gradient, the root of the second moment, and the denominator.
  return family == OpsFamily::kCpu ? 0 : 3 * largest_parameter * kFloatBytes;
}

}  // namespace tandem::device
