// The second half of attention_grad.cu's kernel: the two warpgroups that compute. Of a tile of rows and a block of keys
// each makes weights and their gradients, and adds them up.
#pragma once

#include <cstdint>

#include "device/cuda/attention/attention_grad_items.cuh"
#include "device/cuda/attention/attention_softmax.cuh"
#include "device/cuda/warpgroups.cuh"

namespace tandem::device::cuda::grad {

__device__ uint32_t rounded(float first, float second) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
  return reinterpret_cast<const uint32_t&>(pair);
}

// The base of both kinds of consumers, with what both do. A consumer has 64 keys, of which a thread holds two, in
// eights of rows, or of columns: key lane / 4 of its warp in elements 0 and 1 of each, key lane / 4 + 8 in elements 2
// and 3.
template <uint32_t kHeadDim>
class Consumer {
 protected:
  using S = Shape<kHeadDim>;
  using KeySums = float[S::kSumColumns / 8][4];  // of keys and columns
  using QuerySums = float[S::kColumns / 8][4];   // of rows and columns

  __device__ Consumer(const Params& params, Storage<kHeadDim>& storage)
      : params_(params),
        storage_(storage),
        group_(uniform(threadIdx.x / kGroup)),
        warp_(uniform(threadIdx.x % kGroup / 32)),
        lane_(threadIdx.x % 32) {}

  __device__ static uint32_t uniform(uint32_t x) { return __shfl_sync(~0U, x, 0); }
  __device__ void release(Barrier& free) {
    if (lane_ == 0) free.arrive();
  }

  // Queues out = keys rows^T, of 64 keys that begin with a line of `keys`, and of so many rows that `out` has.
  template <uint32_t kEights>
  __device__ void multiply(float (&out)[kEights][4], const uint8_t* keys, uint32_t first_key, const uint8_t* rows,
                           uint32_t first_row) {
    const Operand a(shared_address(keys) + first_key * kSwizzledRow),
        b(shared_address(rows) + first_row * kSwizzledRow);
    begin_products();
#pragma unroll
    for (uint32_t half = 0; half < S::kHalves; ++half) {
#pragma unroll
      for (uint32_t i = 0; i < 4; ++i) {
        const uint64_t left = a.at(half * S::kKeyHalf + i * 32), right = b.at(half * S::kRowHalf + i * 32);
        if (half + i == 0) {
          multiply_rows<false>(out, left, right);
        } else {
          multiply_rows<true>(out, left, right);
        }
      }
    }
    close_products();
  }
  // Queues sums [64 keys, columns] += weights [64 keys, rows] rows, both in shared memory.
  __device__ void add(KeySums& sums, const uint8_t* weights, const uint8_t* rows) {
    const Operand a(shared_address(weights) + first_key() * kSwizzledRow),
        b(shared_address(rows) + first_column() / 64 * S::kRowHalf, S::kRowHalf);
#pragma unroll
    for (uint32_t i = 0; i < kRows / 16; ++i) multiply_columns(sums, a.at(i * 32), b.at(i * 16 * kSwizzledRow));
    close_products();
  }
  // Queues dq [rows, columns of this consumer] = dscores^T keys.
  __device__ void multiply_dscores(QuerySums& dq, const uint8_t* dscores) {
    const uint32_t column = group_ * S::kColumns;
    const Operand a(shared_address(dscores)),
        b(shared_address(storage_.keys) + column / 64 * S::kKeyHalf + column % 64 * 2, S::kKeyHalf);
    begin_products();
#pragma unroll
    for (uint32_t i = 0; i < S::kKeys / 16; ++i) {
      const uint32_t further = i * 16 * kSwizzledRow;
      if (i == 0) {
        multiply_terms<false>(dq, a.at(further), b.at(further));
      } else {
        multiply_terms<true>(dq, a.at(further), b.at(further));
      }
    }
    close_products();
  }

  // Turns scores of keys and rows into weights, given the logarithms of the rows, the first row of the tile that they
  // are of, and whether that row, which sees keys up to `seen` beyond the first, or a later one does not see all keys.
  template <uint32_t kEights>
  __device__ void weigh(float (&scores)[kEights][4], const float* logs, int32_t seen) const {
    if (seen < 63 || seen + static_cast<int32_t>(8 * kEights) - 1 >= params_.window) {
      const int32_t end = seen + 1 - static_cast<int32_t>(warp_ * 16 + lane_ / 4);
      weigh<true>(scores, logs, end, end - params_.window);
    } else {
      weigh<false>(scores, logs, 0, 0);
    }
  }
  template <bool kMasked, uint32_t kEights>
  __device__ void weigh(float (&scores)[kEights][4], const float* logs, int32_t end, int32_t from) const {
#pragma unroll
    for (uint32_t i = 0; i < kEights; ++i) {
      const float2 log = *reinterpret_cast<const float2*>(logs + 8 * i + lane_ % 4 * 2);
#pragma unroll
      for (uint32_t e = 0; e < 4; ++e) {
        float weight = power_of_two(__fmaf_rn(scores[i][e], params_.scale_log2, e % 2 == 0 ? -log.x : -log.y));
        if (kMasked) {
          // The key's place, counted from the first row's last key.
          const auto key = static_cast<int32_t>(e / 2 * 8) - static_cast<int32_t>(8 * i + lane_ % 4 * 2 + e % 2);
          if (key >= end || key < from) weight = 0.0F;
        }
        scores[i][e] = weight;
      }
    }
  }
  // Returns how many keys beyond the consumer's first one the first row of tile 0 sees.
  __device__ int32_t seen_of(const Item<S::kKeys>& item) const {
    return item.view(params_).prefix() - item.first_key() - static_cast<int32_t>(first_key());
  }

  // Writes 16 rows of a warp's 16 keys to [keys, rows] in shared memory.
  __device__ void write_square(const uint32_t (&words)[4], uint32_t first_row, uint8_t* to) const {
    const uint32_t key = first_key() + warp_ * 16 + lane_ % 16, piece = first_row / 8 + lane_ / 16;
    const uint32_t address = shared_address(to) + key * kSwizzledRow + (piece ^ key % 8) * 16;
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(words[0]),
                 "r"(words[1]), "r"(words[2]), "r"(words[3])
                 : "memory");
  }
  // Writes weights (dweights - d), rounded.
  template <uint32_t kEights>
  __device__ void write_dscores(const float (&weights)[kEights][4], const float (&dweights)[kEights][4], const float* d,
                                uint32_t first_row, uint8_t* to) const {
#pragma unroll
    for (uint32_t i = 0; i < kEights / 2; ++i) {
      uint32_t words[4];
#pragma unroll
      for (uint32_t w = 0; w < 4; ++w) {
        const uint32_t eight = 2 * i + w / 2, e = w % 2 * 2;
        const float2 of_rows = *reinterpret_cast<const float2*>(d + 8 * eight + lane_ % 4 * 2);
        words[w] = rounded(weights[eight][e] * (dweights[eight][e] - of_rows.x),
                           weights[eight][e + 1] * (dweights[eight][e + 1] - of_rows.y));
      }
      write_square(words, first_row + 16 * i, to);
    }
  }

  // Writes a part of dq to shared memory. pass_dq_on() gives it to the warp that adds it, after show_to_products().
  __device__ void write_dq(const QuerySums& dq, uint32_t pass = 0) {
    storage_.dq_free[dq_.index][group_].wait(dq_.parity ^ 1);
#pragma unroll
    for (uint32_t i = 0; i < S::kPartEights; ++i) {
      const float(&eight)[4] = dq[pass * S::kPartEights + i];
      storage_.dq[dq_.index][group_][i][threadIdx.x % kGroup] = make_float4(eight[0], eight[1], eight[2], eight[3]);
    }
  }
  __device__ void pass_dq_on() {
    storage_.dq_there[dq_.index][group_].arrive();
    dq_.advance();
  }

  __device__ void write_sums(const Item<S::kKeys>& item, const KeySums& dk, const KeySums& dv) const {
    write(item, dk, params_.scale, params_.dk);
    write(item, dv, 1.0F, params_.dv);
  }

  // The first of the consumer's keys in the block, and of the columns that it sums of them.
  __device__ uint32_t first_key() const { return S::kCutsKeys ? group_ * 64 : 0; }
  __device__ uint32_t first_column() const { return S::kCutsKeys ? 0 : group_ * S::kSumColumns; }

  const Params& params_;
  Storage<kHeadDim>& storage_;
  const uint32_t group_, warp_, lane_;
  Turn<kStages> stage_;
  Turn<1> keys_;

 private:
  __device__ void write(const Item<S::kKeys>& item, const KeySums& sums, float scale, bf16* out) const {
#pragma unroll
    for (uint32_t j = 0; j < 2; ++j) {
      const auto key = static_cast<int32_t>(first_key() + warp_ * 16 + lane_ / 4 + 8 * j);
      if (key >= item.num_keys()) continue;
      const size_t row = static_cast<size_t>(item.segment.key + item.first_key() + key) * params_.num_kv_heads +
                         static_cast<uint32_t>(item.kv_head);
      auto* const to = reinterpret_cast<uint32_t*>(out + row * params_.head_dim + first_column()) + lane_ % 4;
#pragma unroll
      for (uint32_t i = 0; i < S::kSumColumns / 8; ++i) {
        if (first_column() + 8 * i >= params_.head_dim) break;
        to[4 * i] = rounded(sums[i][2 * j] * scale, sums[i][2 * j + 1] * scale);
      }
    }
  }

  Turn<S::kDqPlaces> dq_;
};

// A consumer with half of the keys of a block. Its weights of a tile are registers.
template <uint32_t kHeadDim>
class HalfOfKeys : Consumer<kHeadDim> {
  using Base = Consumer<kHeadDim>;
  using Base::first_key, Base::group_, Base::keys_, Base::release, Base::stage_, Base::storage_;
  using typename Base::KeySums, typename Base::QuerySums, typename Base::S;
  using Square = float[kRows / 8][4];  // of keys and rows

 public:
  __device__ HalfOfKeys(const Params& params, Storage<kHeadDim>& storage) : Base(params, storage) {}

  using Base::write_sums;

  // Adds up an item that has tiles.
  __device__ void sum(const Item<S::kKeys>& item, Walk walk, KeySums& dk, KeySums& dv) {
    Square scores;
    const int32_t first_seen = this->seen_of(item);
    storage_.keys_there.wait(keys_.parity);
    storage_.queries_there[stage_.index].wait(stage_.parity);
    this->multiply(scores, storage_.keys, first_key(), storage_.queries[stage_.index], 0);
    storage_.values_there.wait(keys_.parity);
    keys_.advance();
    compute_dscores<true>(first_seen, walk.tile, scores, dk, dv);
    while (walk.steps > 1) {
      Turn<kStages> next = stage_;
      next.advance();
      QuerySums dq;
      this->multiply_dscores(dq, storage_.dscores[stage_.index]);
      this->add(dk, storage_.dscores[stage_.index], storage_.queries[stage_.index]);
      storage_.queries_there[next.index].wait(next.parity);
      this->multiply(scores, storage_.keys, first_key(), storage_.queries[next.index], 0);
      wait_for_products<2>();
      pin(dq);
      pin(dv);
      release(storage_.douts_free[stage_.index]);
      this->write_dq(dq);
      stage_ = next;
      walk.advance(item);
      compute_dscores<false>(first_seen, walk.tile, scores, dk, dv);
    }
    QuerySums dq;
    this->multiply_dscores(dq, storage_.dscores[stage_.index]);
    this->add(dk, storage_.dscores[stage_.index], storage_.queries[stage_.index]);
    wait_for_products<1>();
    pin(dq);
    pin(dv);
    release(storage_.douts_free[stage_.index]);
    this->write_dq(dq);
    show_to_products();
    this->pass_dq_on();
    wait_for_products<0>();
    pin(dk);
    release(storage_.queries_free[stage_.index]);
    stage_.advance();
  }

 private:
  // Turns the scores of a tile, which are queued, into dscores, in shared memory, and queues its part of dv. Other
  // products that are queued before the scores end.
  template <bool kFirst>
  __device__ __forceinline__ void compute_dscores(int32_t first_seen, int32_t tile, Square& scores, KeySums& dk,
                                                  KeySums& dv) {
    static_assert(kStages == 2);
    const uint32_t now = stage_.index;
    Square dweights;
    storage_.douts_there[now].wait(stage_.parity);
    this->multiply(dweights, storage_.values, first_key(), storage_.douts[now], 0);
    wait_for_products<1>();
    pin(scores);
    if (!kFirst) {
      pin(dk);
      release(storage_.queries_free[now ^ 1]);
    }
    this->weigh(scores, storage_.row_terms[now][0], first_seen + tile * static_cast<int32_t>(kRows));
    uint32_t weights[kRows / 16][4];  // the left side of a product
#pragma unroll
    for (uint32_t i = 0; i < kRows / 8; ++i) {
#pragma unroll
      for (uint32_t j = 0; j < 2; ++j) weights[i / 2][i % 2 * 2 + j] = rounded(scores[i][2 * j], scores[i][2 * j + 1]);
    }
    begin_products();
    const Operand rows(shared_address(storage_.douts[now]), S::kRowHalf);
#pragma unroll
    for (uint32_t i = 0; i < kRows / 16; ++i) multiply_columns(dv, weights[i], rows.at(i * 16 * kSwizzledRow));
    close_products();
    wait_for_products<1>();
    pin(dweights);
    this->write_dscores(scores, dweights, storage_.row_terms[now][1], 0, storage_.dscores[now]);
    show_to_products();
    if (!kFirst) this->pass_dq_on();
    meet(1, kConsumers * kGroup);
  }
};

// A consumer with half of the columns. It computes the weights of half of a tile's rows, and both share them.
template <uint32_t kHeadDim>
class HalfOfColumns : Consumer<kHeadDim> {
  using Base = Consumer<kHeadDim>;
  using Base::group_, Base::keys_, Base::release, Base::stage_, Base::storage_;
  using typename Base::KeySums, typename Base::QuerySums, typename Base::S;
  static constexpr uint32_t kOwnRows = kRows / kConsumers;
  using Square = float[kOwnRows / 8][4];  // of keys and rows

 public:
  __device__ HalfOfColumns(const Params& params, Storage<kHeadDim>& storage) : Base(params, storage) {}

  using Base::write_sums;

  // Adds up an item that has tiles.
  __device__ void sum(const Item<S::kKeys>& item, Walk walk, KeySums& dk, KeySums& dv) {
    Square scores, dweights;
    const int32_t first_seen = this->seen_of(item) + static_cast<int32_t>(own_row());
    storage_.keys_there.wait(keys_.parity);
    multiply_queries(scores);
    storage_.values_there.wait(keys_.parity);
    keys_.advance();
    multiply_douts(dweights);
    wait_for_products<0>();
    pin(scores);
    pin(dweights);
    for (; walk.steps > 1; walk.advance(item)) add_tile<true>(first_seen, walk.tile, scores, dweights, dk, dv);
    add_tile<false>(first_seen, walk.tile, scores, dweights, dk, dv);
  }

 private:
  // The first of the rows of a tile whose weights this consumer computes.
  __device__ uint32_t own_row() const { return group_ * kOwnRows; }
  // Queues the scores of the tile whose queries come next.
  __device__ void multiply_queries(Square& scores) {
    storage_.queries_there[stage_.index].wait(stage_.parity);
    this->multiply(scores, storage_.keys, 0, storage_.queries[stage_.index], own_row());
  }
  // Queues the gradients of its weights.
  __device__ void multiply_douts(Square& dweights) {
    storage_.douts_there[0].wait(dout_.parity);
    dout_.advance();
    this->multiply(dweights, storage_.values, 0, storage_.douts[0], own_row());
  }

  // Adds what a tile gives, of which both are there, and computes those of the next tile.
  template <bool kHasNext>
  __device__ __forceinline__ void add_tile(int32_t first_seen, int32_t tile, Square& scores, Square& dweights,
                                           KeySums& dk, KeySums& dv) {
    const uint32_t now = stage_.index;
    this->weigh(scores, storage_.row_terms[now][0] + own_row(), first_seen + tile * static_cast<int32_t>(kRows));
#pragma unroll
    for (uint32_t i = 0; i < kOwnRows / 16; ++i) {
      uint32_t words[4];
#pragma unroll
      for (uint32_t w = 0; w < 4; ++w) {
        words[w] = rounded(scores[2 * i + w / 2][w % 2 * 2], scores[2 * i + w / 2][w % 2 * 2 + 1]);
      }
      this->write_square(words, own_row() + 16 * i, storage_.weights[now]);
    }
    this->write_dscores(scores, dweights, storage_.row_terms[now][1] + own_row(), own_row(), storage_.dscores[now]);
    show_to_products();
    meet(1, kConsumers * kGroup);
    QuerySums dq;
    begin_products();
    this->add(dv, storage_.weights[now], storage_.douts[0]);
    this->multiply_dscores(dq, storage_.dscores[now]);
    this->add(dk, storage_.dscores[now], storage_.queries[now]);
    stage_.advance();
    if (kHasNext) {
      multiply_queries(scores);
      wait_for_products<2>();
    } else {
      wait_for_products<1>();
    }
    pin(dv);
    pin(dq);
    release(storage_.douts_free[0]);
#pragma unroll
    for (uint32_t pass = 0; pass < S::kPasses; ++pass) {
      this->write_dq(dq, pass);
      show_to_products();
      this->pass_dq_on();
    }
    if (kHasNext) multiply_douts(dweights);
    wait_for_products<0>();
    pin(dk);
    pin(scores);
    pin(dweights);
    release(storage_.queries_free[now]);
  }

  Turn<1> dout_;
};

}  // namespace tandem::device::cuda::grad
