// Cuts the gradient of attention into calls of cuDNN and counts their bytes: the rule that the operation and the memory
// plan share. No torch and no CUDA.
//
// A segment of ExpandedRows sees the keys before its first row, its prefix, and the keys of its own rows, each row up
// to itself. cuDNN computes both forms fast when they are apart, and half as fast when one call has both. So a segment
// has up to two parts: its rows with their own keys, causal, and its rows with its prefix, in full. The gradient of a
// query is the sum of both; keys belong to one part each.
//
// A deterministic call writes rows x keys of each query head into its workspace, so a call has as many parts and KV
// heads as fit into most_call_bytes(), and at least one of each. cuDNN compiles a kernel for each number of rows and
// keys, which takes most of a second. Therefore these are rounded up to steps, and parts of several sizes share a call;
// what a part does not fill is skipped.
#pragma once

#include <cstdint>
#include <vector>

#include "base/size.h"
#include "device/cuda/attention/attention_work.h"

namespace tandem::device::cuda {

enum class PartForm : uint8_t {
  kCausal,  // as many keys as rows: row i sees keys 0..i
  kFull,    // every row sees every key
};

// Query rows [row, row + rows) and expanded keys [key, key + keys).
struct AttentionPart {
  int64_t row = 0, rows = 0, key = 0, keys = 0;
};

// Everything that cuDNN makes a plan for.
struct PartsShape {
  PartForm form = PartForm::kCausal;
  int64_t parts = 1, rows = 0, keys = 0;  // rows and keys are the most that a part may have
  int64_t kv_heads = 1;                   // KV heads of one call, a divisor of heads.num_kv_heads
  AttentionHeads heads;                   // of the tensors
  int64_t query_heads() const { return kv_heads * heads.group; }
};

// Calls with the same parts, one for each kv_heads of the KV heads.
struct PartsCall {
  PartsShape shape;
  std::vector<AttentionPart> parts;  // shape.parts of them
};

// Returns the workspace that a call may take if it has several parts or KV heads: 80 bytes for each number of the
// queries, as a micro-batch of fewer rows is meant to take less memory, and at most kMostCallBytes. Those hold, of
// Qwen3-4B, whose KV heads have four query heads each, 16 sequences of 1,280 tokens, half of the heads of one of 8,704,
// or one KV head of one of 17,408.
constexpr int64_t kMostCallBytes = int64_t{2432} << 20;
base::Size most_call_bytes(const AttentionHeads& heads, base::Size rows);
// If one KV head of one part takes more than this, FlashAttention-2 computes it in cuDNN's place. Four query heads of
// 32,768 tokens take 8,257 MiB.
constexpr int64_t kMostWorkspaceBytes = int64_t{8320} << 20;
// If no segment has so many keys, cuDNN is not used: what it would gain is less than its kernels take to compile.
constexpr int64_t kFewestKeys = 512;

// Returns the bytes that a call of this shape may use: what cuDNN 9.19 asks for on a GPU of compute capability 9.0, or
// up to four kilobytes more.
base::Size workspace_bytes(const PartsShape& shape);

// Returns whether cuDNN may compute the gradient where the longest segment has so many keys.
bool has_parts(const AttentionHeads& heads, base::Size longest_keys);

// Returns the calls that compute the gradient, in their order: all of one form before the other. If cuDNN may not
// compute it, there are none. The order of rows alone decides, so the same rows give the same calls.
std::vector<PartsCall> cut_into_parts(const ExpandedRows& rows, const AttentionHeads& heads);

// Returns the largest workspace of any call for so many rows in so many segments, with at most so many keys each.
base::Size most_workspace_bytes(const AttentionHeads& heads, base::Size rows, base::Size segments,
                                base::Size longest_keys);

}  // namespace tandem::device::cuda
