// Paged attention in plain ATen: the part of ops_aten that cuts work into tiles.
//
// Forward: query rows of one sequence go into tiles of kTileRows, keys into tiles of kTileKeys from position 0 on, and
// a row takes its key tiles in order, with a running maximum (Milakov & Gimelshein 2018). A tile that lies past a row's
// position multiplies what the row has by exp(0) and adds 0: it changes no bit. Nor does one that lies before a row's
// window: it comes first, and adds 0 to 0. Every library call has one shape, `tiles_per_call` tiles, so a result cannot
// depend on the batch. Backward: one sequence is computed after the other, all its rows and keys at once. It is
// repeatable, no more.
#pragma once

#include <memory>
#include <vector>

#include "device/ops.h"

namespace tandem::device {

struct AttentionTiles {
  // The tiles are sorted, those with most keys first, and padded to a multiple of tiles_per_call. All tensors are int64
  // and on the device.
  Tensor rows;                      // [Q, kTileRows] row of q; T where there is none
  Tensor positions;                 // [Q, kTileRows] positions of the rows; 0 where there is no row
  Tensor first_positions;           // [Q] least position of each tile
  Tensor last_positions;            // [Q] last position of each tile
  Tensor blocks;                    // [Q, levels * blocks of a key tile] KV blocks; 0 past the last
  Tensor place_of_row;              // [T] index among the Q * kTileRows places; 0 for a row without a sequence
  std::vector<int64_t> num_active;  // number of tiles that have keys in key tile 0, 1, ...

  // The fields from here on are for the backward pass. They are empty and undefined where AttentionRows has no backward
  // fields.
  struct Sequence {
    Tensor rows;    // [R] int64
    Tensor blocks;  // [n] int64
    Tensor hidden;  // [R, n * kBlockTokens] bool: true for keys after the row's position
  };
  std::vector<Sequence> sequences;
  Tensor kv_tokens, kv_slots;  // [n]
};

class AttentionAten {
 public:
  AttentionAten(at::Device device, int64_t tiles_per_call) : device_(device), tiles_per_call_(tiles_per_call) {}

  std::shared_ptr<const AttentionTiles> plan(const AttentionRows& rows) const;

  // Computes Ops::paged_attention() of rows that plan() has cut into tiles.
  Tensor forward(const Tensor& q_THK, const Tensor& kv_layer, const AttentionTiles& tiles, int64_t window,
                 const Tensor& lse_TH) const;
  // Returns dq_THK and adds the gradients of the cached keys and values to dkv, which has kv_layer's shape, float32.
  Tensor backward(const Tensor& dout_THK, const Tensor& q_THK, const Tensor& out_THK, const Tensor& lse_TH,
                  const Tensor& kv_layer, const AttentionTiles& tiles, int64_t window, const Tensor& dkv) const;

 private:
  at::Device device_;
  int64_t tiles_per_call_;
};

// Returns the KV cache of a layer as [B, 2, G, kBlockTokens, K].
Tensor as_slots(const Tensor& kv_layer);

}  // namespace tandem::device
