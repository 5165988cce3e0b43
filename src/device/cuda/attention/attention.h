// Computes paged attention on a GPU of compute capability 8.0 and later, bfloat16, without torch: plain pointers into
// device memory and a stream. Functions queue their work, wait for nothing, and return the error of the launch.
//
// The cache. Block b of a layer begins at data + b * block_stride elements and holds [2, G, kBlockTokens, K]: keys of
// each KV head, then values (device/block.h; as_slots() of device/attention_aten.h reads the same). Slot s is position
// s % kBlockTokens of block s / kBlockTokens. Pointers are aligned to 16 bytes, block_stride is a multiple of 8, and
// all other arrays are contiguous.
//
// Exactness (docs/EXACTNESS.md): the result of attention_forward() for a row depends on this row and on its keys by
// position, in decoding, chunks of prompts and training. All kernels follow the rule of attention_softmax.cuh, in
// which keys have their place by their position, and units of keys past a row's position change no bit of the row: it
// multiplies by exactly 1 and adds exactly 0, because kernels are compiled with -fmad=false. So sequences that begin
// alike can share an item, which reads their common keys once. The one exception are values that are not finite: a row
// of the same item that does not see such a value becomes NaN too.
//
// Windows. A row sees the last `window` keys up to its own position. An item walks whole steps, from the one in which
// its first seen key lies; units before a row's window change no bit of it either, for the same reason. Keys and values
// that no row of an item sees are not read, nor are the entries of the block table for blocks of such keys alone.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "device/cuda/attention/attention_work.h"

namespace tandem::device::cuda {

// Points to one layer of the KV cache.
struct PagedKv {
  void* data;            // address of block 0
  int64_t block_stride;  // elements from a block to the next
  int64_t num_kv_heads, head_dim;
  int64_t num_blocks;
};

// Writes k, v of token tokens[i] (of token i if `tokens` is null) into slot slots[i], or nowhere if that is -1. Both
// are int32 [n].
cudaError_t kv_append(const PagedKv& kv, const void* k_TGK, const void* v_TGK, const int32_t* tokens,
                      const int32_t* slots, int64_t n, cudaStream_t stream);

// Stands for the window of a row that sees all keys before it. Positions are smaller.
constexpr int32_t kAllKeys = 1 << 30;
// Returns the keys that a row sees at most, given AttentionRows::window.
constexpr int32_t keys_of_window(int64_t window) {
  return window > 0 && window < kAllKeys ? static_cast<int32_t>(window) : kAllKeys;
}

// Computes softmax(q k^T / sqrt(K)) v. supports_attention() says for which shapes; other shapes, and sizes past the
// kernel's 32 bit offsets (num_rows * num_heads * head_dim < 2^32), are cudaErrorInvalidValue.
struct AttentionForward {
  const void* q_THK;
  void* out_THK;
  float* lse_TH;  // natural logarithm; null: not wanted
  int64_t num_heads;
  PagedKv kv;
  AttentionWork work;  // result of build_work(), for these heads
  int32_t* words;      // the words that build_work() filled, on the device; one call at a time counts in them
  // If set, launches blocks for as many items as there is room for, whatever work.num_items says. A captured graph
  // whose words are refilled needs that.
  bool refillable = false;
  int64_t window = 0;  // as in AttentionRows
};
cudaError_t attention_forward(const AttentionForward& call, cudaStream_t stream);

// Returns whether the current device has the kernel of large items for such heads. Work is built without them where it
// has not.
bool computes_large_items(int64_t head_dim);
// Computes the large items of call.work alone. attention_forward() calls it.
cudaError_t attention_of_large_items(const AttentionForward& call, cudaStream_t stream);

// Collects keys and values of slots [n] one after the other: the expanded rows of expand_rows().
cudaError_t gather_kv(const PagedKv& kv, const int32_t* slots, int64_t n, void* k_nGK, void* v_nGK,
                      cudaStream_t stream);

// Computes dk[t], dv[t] = the sum over the expanded rows of token t, in their order, in float32, rounded once; 0 if
// there is none. token_offsets [num_tokens + 1] and rows_of_token are those of ExpandedRows, on the device.
struct KvGradSum {
  const void *dk_nGK, *dv_nGK;
  const int32_t *token_offsets, *rows_of_token;
  int64_t num_tokens, num_kv_heads, head_dim;
  void *dk_TGK, *dv_TGK;
};
cudaError_t reduce_kv_grad(const KvGradSum& sum, cudaStream_t stream);

}  // namespace tandem::device::cuda
