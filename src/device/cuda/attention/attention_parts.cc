#include "device/cuda/attention/attention_parts.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

namespace tandem::device::cuda {
namespace {

using base::Size;

constexpr int64_t kStep = 256;

int64_t bit_ceil(int64_t n) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(n, 1))));
}

// Returns the step that holds n rows of a form. Causal parts have steps of an eighth of the next power of two, at least
// 256, so that completions of all lengths up to 8,192 need sixteen kernels; above, where workspaces are large, of a
// thirty-second. A part in full has two sizes, which would make many kernels: its steps are powers of two.
int64_t step_of(PartForm form, int64_t n) {
  if (form == PartForm::kFull) return std::max(kStep, bit_ceil(n));
  const int64_t step = std::max(kStep, bit_ceil(n) / (n <= 8192 ? 8 : 32));
  return (n + step - 1) / step * step;
}

PartsShape shape_of(PartForm form, const AttentionHeads& heads, int64_t rows, int64_t keys) {
  return {.form = form,
          .parts = 1,
          .rows = step_of(form, rows),
          .keys = step_of(form, keys),
          .kv_heads = heads.num_kv_heads,
          .heads = heads};
}

// Takes as many KV heads of one part as fit; of all heads, as many parts as fit, at most `parts`.
void fill_call(PartsShape& shape, int64_t parts, Size most_bytes) {
  while (shape.kv_heads > 1 && workspace_bytes(shape) > most_bytes) {
    do --shape.kv_heads;
    while (shape.heads.num_kv_heads % shape.kv_heads != 0);
  }
  if (shape.kv_heads < shape.heads.num_kv_heads) return;
  shape.parts = std::clamp<int64_t>(most_bytes / workspace_bytes(shape), 1, parts);
}

// Cuts parts of one form into calls, the largest first. A call has the shape of its first part.
void cut(std::vector<AttentionPart> parts, PartForm form, const AttentionHeads& heads, Size most_bytes,
         std::vector<PartsCall>& calls) {
  std::stable_sort(parts.begin(), parts.end(), [form](const AttentionPart& a, const AttentionPart& b) {
    const auto size = [form](const AttentionPart& part) { return std::pair(step_of(form, part.keys), part.rows); };
    return size(a) > size(b);
  });
  for (auto first = parts.begin(); first != parts.end();) {
    PartsCall call = {.shape = shape_of(form, heads, first->rows, first->keys), .parts = {}};
    const auto end = std::find_if(first, parts.end(), [&](const AttentionPart& p) { return p.rows > call.shape.rows; });
    fill_call(call.shape, end - first, most_bytes);
    call.parts.assign(first, first + call.shape.parts);
    first += call.shape.parts;
    calls.push_back(std::move(call));
  }
}

}  // namespace

Size workspace_bytes(const PartsShape& s) {
  const Size each = Size(s.parts) * s.query_heads();
  // Probabilities times their gradients in bfloat16; the sums of out * dout in float32; where several query heads share
  // keys, the gradients of keys and values of each; tables of the parts.
  const Size products = each * s.rows * s.keys * 2, sums = each * s.rows * 4;
  const Size by_query_head = s.heads.group > 1 ? each * s.keys * s.heads.head_dim * 4 : Size(0);
  return products + sums + by_query_head + Size(256) * s.parts + 4096;
}

Size most_call_bytes(const AttentionHeads& heads, Size rows) {
  return std::min<Size>(kMostCallBytes, 80 * rows * heads.group * heads.num_kv_heads * heads.head_dim);
}

bool has_parts(const AttentionHeads& heads, Size longest_keys) {
  if (!supports_head_dim(heads.head_dim) || longest_keys < kFewestKeys || longest_keys > (1 << 20)) return false;
  PartsShape one = shape_of(PartForm::kCausal, heads, longest_keys, longest_keys);
  one.kv_heads = 1;
  return workspace_bytes(one) <= kMostWorkspaceBytes;
}

std::vector<PartsCall> cut_into_parts(const ExpandedRows& rows, const AttentionHeads& heads) {
  if (!has_parts(heads, rows.max_k)) return {};
  // cuDNN is given places as 32 bit numbers of elements.
  constexpr int64_t kMostElements = std::numeric_limits<int32_t>::max();
  const int64_t query_width = heads.group * heads.num_kv_heads * heads.head_dim;
  if (rows.cu_q.back() > kMostElements / query_width ||
      rows.cu_k.back() > kMostElements / (heads.num_kv_heads * heads.head_dim)) {
    return {};
  }
  std::vector<AttentionPart> causal, full;
  for (size_t s = 0; s + 1 < rows.cu_q.size(); ++s) {
    const int64_t row = rows.cu_q[s], count = rows.cu_q[s + 1] - row;
    const int64_t key = rows.cu_k[s], keys = rows.cu_k[s + 1] - key, prefix = keys - count;
    if (prefix < 0) return {};  // rows that fill up a batch
    causal.push_back({.row = row, .rows = count, .key = key + prefix, .keys = count});
    if (prefix > 0) full.push_back({.row = row, .rows = count, .key = key, .keys = prefix});
  }
  std::vector<PartsCall> calls;
  const Size most_bytes = most_call_bytes(heads, rows.cu_q.back());
  cut(std::move(causal), PartForm::kCausal, heads, most_bytes, calls);
  cut(std::move(full), PartForm::kFull, heads, most_bytes, calls);
  for (const PartsCall& call : calls) {
    if (call.shape.kv_heads == 1 && workspace_bytes(call.shape) > kMostWorkspaceBytes) return {};
  }
  return calls;
}

Size most_workspace_bytes(const AttentionHeads& heads, Size rows, Size segments, Size longest_keys) {
  // The fewest rows or keys that have this step.
  const auto fewest = [](int64_t step) { return step == kStep ? 1 : step / 2 + 1; };
  Size most = 0;
  for (const PartForm form : {PartForm::kCausal, PartForm::kFull}) {
    std::vector<int64_t> steps = {kStep};
    while (steps.back() < longest_keys) steps.push_back(step_of(form, steps.back() + 1));
    for (const int64_t part_rows : steps) {
      for (const int64_t keys : steps) {
        const bool is_possible =
            form == PartForm::kCausal ? part_rows == keys : fewest(part_rows) + fewest(keys) <= longest_keys;
        if (!is_possible) continue;
        PartsShape shape = shape_of(form, heads, part_rows, keys);
        fill_call(shape, segments, most_call_bytes(heads, rows));
        if (workspace_bytes(shape) <= kMostWorkspaceBytes) most = std::max(most, workspace_bytes(shape));
      }
    }
  }
  return most;
}

}  // namespace tandem::device::cuda
