// The host's side of paged attention: it turns rows into work for the kernels of attention.h. No torch and no CUDA, so
// that it can be tested where there is no GPU.
//
// A run is a longest stretch of consecutive rows of one sequence whose positions ascend by one: a whole prompt, a chunk
// of it, or one decoded token. A sequence may have any number of runs, so rows may come in any order. Rows of sequence
// -1 fill up a batch: a run of them sees no key, and its results are zeros (and -infinity for the logsumexp).
//
// Runs of one row that follow each other, as samples of a prompt do in decoding, may share the blocks that their tables
// begin with: then one item reads those keys once for all of them. This changes speed alone, never a result.
#pragma once

#include <cstdint>
#include <vector>

#include "device/cuda/served_sizes.h"

namespace tandem::device::cuda {

// Holds the rows of an attention call and their keys, on the host: AttentionRows of device/ops.h as plain numbers.
struct PagedRows {
  const int32_t* sequence_of_row;  // [num_rows], -1: the row only fills up
  const int32_t* row_position;     // [num_rows], not read where the sequence is -1
  int64_t num_rows = 0;
  const int32_t* block_table;  // [num_sequences, max_blocks]; entries past a sequence's last key are not read
  int64_t num_sequences = 0, max_blocks = 0;
};

// A work item has so many query rows (times the query heads of a KV head), unless it is large.
constexpr int64_t kAttentionTile = 16;
// A large item has up to so many query rows times query heads of a KV head, as many whole rows as fit.
constexpr int64_t kLargeTile = 128;
// This is the largest number of query heads of a KV head: with it, a row is never more than one item.
constexpr int64_t kMaxAttentionGroup = kAttentionTile;
// LibTorch's operations serve all other shapes.
constexpr bool supports_attention(int64_t head_dim, int64_t num_heads, int64_t num_kv_heads) {
  return supports_head_dim(head_dim) && num_kv_heads >= 1 && num_heads >= num_kv_heads &&
         num_heads % num_kv_heads == 0 && num_heads / num_kv_heads <= kMaxAttentionGroup;
}
// Keys of a step, in which kernels walk all keys, and the number of parts that they are dealt to. The step follows from
// the head size alone, never from the GPU, because sums depend on it: keys and values of a step take 64 KiB.
constexpr int64_t kAttentionParts = 4;
constexpr int64_t attention_step(int64_t head_dim) { return 16384 / head_width(head_dim); }

// Counts the heads of an attention call.
struct AttentionHeads {
  int64_t group = 1;  // query heads of a KV head
  int64_t num_kv_heads = 1, head_dim = 128;
  bool operator==(const AttentionHeads&) const = default;
};

// The layout of one int32 array that says which block computes what. The place of each field depends on the numbers of
// rows, sequences and blocks alone, so that an array on the device can be refilled in place with other rows of the same
// numbers, under a captured graph. Fields are indices of its first word.
struct AttentionWork {
  AttentionWork() = default;
  AttentionWork(int64_t num_rows, int64_t num_sequences, int64_t max_blocks);

  int64_t num_rows = 0, num_sequences = 0, max_blocks = 0;
  AttentionHeads heads;
  int64_t num_items = 0;        // items that these rows have, of the num_rows for which there is room
  int64_t num_large_items = 0;  // the first of them, which are for a kernel of their own

  // These fields are for items, [num_rows] each. Item i has rows item_row[i], item_row[i] + 1, ..., item_rows[i] of
  // them; -1 means that there is nothing to do. If item_shared[i] is 0, these rows are a run, and the item is its tile
  // item_tile[i], of kAttentionTile query rows times heads, or of kLargeTile / group rows if it is large. Otherwise
  // they are sequences that have their first item_shared[i] keys, whole steps, in the same blocks; all of them are in
  // tile 0.
  int64_t item_row = 0, item_rows = 0, item_tile = 0, item_shared = 0;
  // These fields are for rows, [num_rows] each.
  int64_t row_keys = 0;  // keys that the row sees
  int64_t row_page = 0;  // index in the table at which the blocks of the row's sequence begin
  int64_t table = 0;     // [num_sequences, max_blocks]: the block table, with 0 in entries that are not read
  int64_t counters = 0;  // [2]: 0 between calls; the kernel of large items counts in them
  int64_t num_words = 0;
};

struct WorkLimits {
  // An item has at most so many sequences that share keys. 0: as many as should be fastest, since fewer items read
  // less, but leave more of a GPU idle at the end.
  int64_t most_sequences = 0;
  // Items and KV heads that the GPU computes at once (attention_items_at_once()); an H200 three on each multiprocessor.
  int64_t at_once = 3 * 132;
  bool large_items = false;  // whether runs that fill at least one large item are cut into such
};

// Fills words [AttentionWork(...).num_words]. Large items come first. Items come in the order in which they should
// start: those with the most keys first, and of a run the last tile first.
AttentionWork build_work(const PagedRows& rows, const AttentionHeads& heads, int32_t* words,
                         const WorkLimits& limits = {});
// Fills a vector, which it resizes, in the same way.
AttentionWork build_work(const PagedRows& rows, const AttentionHeads& heads, std::vector<int32_t>& words,
                         const WorkLimits& limits = {});

// Rows and keys in the form that the backward takes. It has no paged form, so each run becomes a segment with keys of
// its own. Segment s has query rows [cu_q[s], cu_q[s + 1]) and expanded keys [cu_k[s], cu_k[s + 1]), and its queries
// are the last of its keys (causal, bottom-right). A sequence in one run, as the trainer packs it, is expanded once;
// keys that sequences share are expanded for each, and reduce_kv_grad() sums their gradients.
struct ExpandedRows {
  std::vector<int32_t> cu_q, cu_k;              // [segments + 1], both from 0
  int64_t max_q = 0, max_k = 0;                 // most rows, most keys of a segment
  std::vector<int32_t> slots;                   // [n] slot in the cache of expanded row i
  std::vector<int32_t> token_offsets;           // [num_rows + 1] into expanded_rows_of_token
  std::vector<int32_t> expanded_rows_of_token;  // ascending for each token
};

// kv_tokens and kv_slots are [num_kv]: token kv_tokens[i] lies in slot kv_slots[i] (-1: nowhere). A slot has one token.
// Keys in slots of no token get no gradient.
ExpandedRows expand_rows(const PagedRows& rows, const int32_t* kv_tokens, const int32_t* kv_slots, int64_t num_kv);

}  // namespace tandem::device::cuda
