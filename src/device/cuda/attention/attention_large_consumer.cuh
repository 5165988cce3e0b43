// The second half of attention_large.cu's kernel: a warpgroup that computes half of an item's rows.
#pragma once

#include <cuda_bf16.h>

#include <cmath>
#include <cstdint>

#include "device/cuda/attention/attention_large_loads.cuh"
#include "device/cuda/attention/attention_softmax.cuh"
#include "device/cuda/warpgroups.cuh"

namespace tandem::device::cuda::large {

// A consumer's half of an item: 64 rows, of which a thread holds two, in eights of columns: row lane / 4 of its warp in
// elements 0 and 1 of each, row lane / 4 + 8 in elements 2 and 3.
template <uint32_t kHeadDim, bool kPadded>
class Consumer {
  using S = Shape<kHeadDim>;
  // A part's reference for a row, and this lane's sum of its weights.
  struct Sums {
    float reference, weights;
  };

 public:
  __device__ Consumer(const Params& params, Storage<kHeadDim>& storage)
      : params_(params),
        storage_(storage),
        group_(threadIdx.x / kGroup),
        lane_(threadIdx.x % 32),
        first_(threadIdx.x / 32 * 16 + lane_ / 4) {}

  __device__ void compute_items() {
    // The two consumers take turns at the tensor cores: while one has them, the other computes weights.
    if (group_ == 1) end_turn();
    uint32_t q_parity = 0;
    for (Turn<kItems> place;; place.advance()) {
      storage_.items_there[place.index].wait(place.parity);
      const Item item = storage_.items[place.index];
      __syncwarp();
      release(storage_.items_free[place.index]);
      if (item.tokens == 0) break;
      compute(item, q_parity);
      q_parity ^= 1;
    }
    if (group_ == 0) begin_turn();
  }

 private:
  __device__ void begin_turn() { meet(1 + group_, kConsumers * kGroup); }
  __device__ void end_turn() { note(1 + (group_ ^ 1), kConsumers * kGroup); }
  // Returns a number that is the same in all lanes, so that it is kept once for all.
  __device__ static uint32_t uniform(uint32_t x) { return __shfl_sync(~0U, x, 0); }
  __device__ void release(Barrier& free) {
    if (lane_ == 0) free.arrive();
  }

  __device__ void release_values() {
    release(storage_.values_free[values_.index]);
    values_.advance();
  }

  // Queues scores = q k^T of a tile.
  __device__ void multiply_keys() {
    const Operand q(uniform(shared_address(storage_.q) + group_ * 64 * kSwizzledRow));
    const Operand keys(uniform(shared_address(storage_.keys[keys_.index])));
    begin_products();
#pragma unroll
    for (uint32_t k = 0; k < kHeadDim / 16; ++k) {
      const uint32_t at = k / 4 * S::kHalfBytes + k % 4 * 32;
      if (k == 0) multiply_rows<false>(scores_, q.at(at), keys.at(at));
      if (k > 0) multiply_rows<true>(scores_, q.at(at), keys.at(at));
    }
    close_products();
  }

  // Returns the values of the tile whose weights are there.
  __device__ Operand values() const {
    return Operand(uniform(shared_address(storage_.values[values_.index])), S::kHalfBytes);
  }

  // Takes the keys out of the scores of a unit that a row does not see.
  __device__ void mask(uint32_t unit, int32_t position) {
    if (position + static_cast<int32_t>(S::kUnit) <= first_visible_ && position >= last_from()) return;
    // A row sees `window` positions before visible_. One comparison of numbers without a sign asks for both ends.
    const auto window = static_cast<uint32_t>(params_.window);
    uint32_t begin[2];
#pragma unroll
    for (uint32_t j = 0; j < 2; ++j) {
      begin[j] = static_cast<uint32_t>(position) + 2 * (lane_ % 4) + window - static_cast<uint32_t>(visible_[j]);
    }
#pragma unroll
    for (uint32_t i = 0; i < S::kUnitEights; ++i) {
#pragma unroll
      for (uint32_t r = 0; r < 4; ++r) {
        if (begin[r / 2] + 8 * i + r % 2 >= window) scores_[unit * S::kUnitEights + i][r] = -INFINITY;
      }
    }
  }

  // Returns the position from which on all rows of this half see keys.
  __device__ int32_t last_from() const { return last_visible_ - params_.window; }

  // Turns the scores of a tile into weights, in float32. Sets by what the sums are to be multiplied before each unit.
  __device__ void weigh(Units<kHeadDim>& units) {
#pragma unroll
    for (uint32_t i = 0; i < kKeys / 8; ++i) {
#pragma unroll
      for (uint32_t r = 0; r < 4; ++r) scores_[i][r] = finite_or_nan(scores_[i][r]);
    }
    num_units_ = S::kUnits;
    folds_ = 0;
    if (units.are_plain(last_from(), first_visible_)) {
      units.skip_tile();
    } else {
      num_units_ = 0;
#pragma unroll
      for (uint32_t u = 0; u < S::kUnits; ++u) {
        if (units.is_left()) ++num_units_;
        if (units.is_left() && units.follows_a_part()) folds_ |= 1U << u;
        mask(u, units.position());
        units.advance();
      }
    }

    // The whole warpgroup adds the values of the tile in one piece, or it does not.
    in_pieces_ = any_of(3 + group_, kGroup, moves_any() || folds_ != 0 || num_units_ < S::kUnits);
    if (in_pieces_) {
      weigh_and_move();
    } else {
#pragma unroll
      for (uint32_t u = 0; u < S::kUnits; ++u) weigh_unit(u);
    }
  }

  // Returns whether a reference moves within the tile.
  __device__ bool moves_any() const {
    bool moves = false;
#pragma unroll
    for (uint32_t j = 0; j < 2; ++j) {
      moves |= largest_of(0, kKeys / 8, j) * params_.scale_log2 > reference_[j] + kMostAbove;
    }
    return moves;
  }

  // Returns the largest score of a row in some eights of keys.
  __device__ float largest_of(uint32_t begin, uint32_t end, uint32_t j) const {
    float most[2] = {scores_[begin][2 * j], scores_[begin][2 * j + 1]};
#pragma unroll
    for (uint32_t i = begin + 1; i < end; ++i) {
#pragma unroll
      for (uint32_t r = 0; r < 2; ++r) most[r] = fmaxf(most[r], scores_[i][2 * j + r]);
    }
    return maximum_of_four(fmaxf(most[0], most[1]));
  }

  __device__ void weigh_unit(uint32_t unit) {
    const uint32_t begin = unit * S::kUnitEights;
    float pairs[2][S::kUnitEights];
#pragma unroll
    for (uint32_t i = 0; i < S::kUnitEights; ++i) {
      float(&eight)[4] = scores_[begin + i];
#pragma unroll
      for (uint32_t r = 0; r < 4; ++r) eight[r] = weight_of(eight[r], params_.scale_log2, reference_[r / 2]);
#pragma unroll
      for (uint32_t j = 0; j < 2; ++j) pairs[j][i] = eight[2 * j] + eight[2 * j + 1];
    }
#pragma unroll
    for (uint32_t j = 0; j < 2; ++j) sum_[j] += sum_of_pairs(pairs[j]);
  }

  // Weighs the keys of a tile unit by unit, since references may move.
  __device__ void weigh_and_move() {
    rescales_ = 0;
    float most[S::kUnits][2];
#pragma unroll
    for (uint32_t u = 0; u < S::kUnits; ++u) {
#pragma unroll
      for (uint32_t j = 0; j < 2; ++j) {
        most[u][j] = largest_of(u * S::kUnitEights, (u + 1) * S::kUnitEights, j) * params_.scale_log2;
      }
    }
#pragma unroll
    for (uint32_t u = 0; u < S::kUnits; ++u) {
#pragma unroll
      for (uint32_t j = 0; j < 2; ++j) {
        before_[u][j] = {reference_[j], sum_[j]};
        if ((folds_ >> u & 1) != 0) reference_[j] = kNoKey, sum_[j] = 0.0F;
        factor_[u][j] = move_reference(reference_[j], most[u][j]);
        sum_[j] *= factor_[u][j];
      }
      if (__any_sync(~0U, factor_[u][0] != 1.0F || factor_[u][1] != 1.0F)) rescales_ |= 1U << u;
      weigh_unit(u);
    }
  }

  __device__ void round_weights() {
#pragma unroll
    for (uint32_t i = 0; i < kKeys / 8; ++i) {
#pragma unroll
      for (uint32_t j = 0; j < 2; ++j) {
        const __nv_bfloat162 pair = __floats2bfloat162_rn(scores_[i][2 * j], scores_[i][2 * j + 1]);
        weights_[i / 2][i % 2 * 2 + j] = reinterpret_cast<const uint32_t&>(pair);
      }
    }
  }

  __device__ float4& folded_values(uint32_t eight) { return storage_.folded[group_][eight][threadIdx.x % kGroup]; }
  __device__ Folded::Factors fold_sums(uint32_t j, const Sums& part) {
    return folded_[j].fold(part.reference, sum_of_four(part.weights));
  }

  // Folds the sums of the part that ends before a unit. Its sums of values become 0.
  __device__ void fold(uint32_t unit) {
    Folded::Factors factors[2];
#pragma unroll
    for (uint32_t j = 0; j < 2; ++j) {
      Sums part = before_[0][j];
#pragma unroll
      for (uint32_t u = 1; u < S::kUnits; ++u) {
        if (u == unit) part = before_[u][j];
      }
      factors[j] = fold_sums(j, part);
    }
#pragma unroll
    for (uint32_t i = 0; i < S::kEights; ++i) {
      float4 values = has_folded_ ? folded_values(i) : float4{};
      values.x = values.x * factors[0].folded + out_[i][0] * factors[0].part;
      values.y = values.y * factors[0].folded + out_[i][1] * factors[0].part;
      values.z = values.z * factors[1].folded + out_[i][2] * factors[1].part;
      values.w = values.w * factors[1].folded + out_[i][3] * factors[1].part;
      folded_values(i) = values;
#pragma unroll
      for (uint32_t r = 0; r < 4; ++r) out_[i][r] = 0.0F;
    }
    has_folded_ = true;
  }

  __device__ void rescale(uint32_t unit) {
    float factor[2] = {factor_[0][0], factor_[0][1]};
#pragma unroll
    for (uint32_t u = 1; u < S::kUnits; ++u) {
      if (u == unit) factor[0] = factor_[u][0], factor[1] = factor_[u][1];
    }
#pragma unroll
    for (uint32_t i = 0; i < S::kEights; ++i) {
#pragma unroll
      for (uint32_t r = 0; r < 4; ++r) out_[i][r] *= factor[r / 2];
    }
  }

  // Adds the weighted values of a tile unit by unit, with what happens to the sums between units.
  __device__ void add_in_pieces() {
    const Operand values = this->values();
#pragma unroll 1
    for (uint32_t unit = 0; unit < num_units_; ++unit) {
      if ((folds_ >> unit & 1) != 0) fold(unit);
      if ((rescales_ >> unit & 1) != 0) rescale(unit);
      constexpr uint32_t kSixteens = S::kUnit / 16;
      uint32_t weights[kSixteens][4];
#pragma unroll
      for (uint32_t s = 0; s < kSixteens; ++s) {
#pragma unroll
        for (uint32_t r = 0; r < 4; ++r) {
          weights[s][r] = weights_[s][r];
#pragma unroll
          for (uint32_t u = 1; u < S::kUnits; ++u) {
            if (u == unit) weights[s][r] = weights_[u * kSixteens + s][r];
          }
        }
      }
      pin(out_);
      begin_products();
#pragma unroll
      for (uint32_t s = 0; s < kSixteens; ++s) {
        multiply_columns(out_, weights[s], values.at((unit * kSixteens + s) * 16 * kSwizzledRow));
      }
      close_products();
      wait_for_products<0>();
      pin(out_);
    }
  }

  // Queues the weighted values of a tile.
  __device__ void add_in_one_piece() {
    const Operand values = this->values();
    pin(out_);
    begin_products();
#pragma unroll
    for (uint32_t s = 0; s < kKeys / 16; ++s) {
      multiply_columns(out_, weights_[s], values.at(s * 16 * kSwizzledRow));
    }
    close_products();
  }

  __device__ void compute(const Item& item, uint32_t q_parity) {
    const int32_t shift = item.end - item.tokens + 1;  // keys that the item's first row sees
#pragma unroll
    for (uint32_t j = 0; j < 2; ++j) {
      visible_[j] = min(item.end, shift + static_cast<int32_t>((first_ + 8 * j) / params_.group));
      folded_[j] = {};
      reference_[j] = kNoKey;
      sum_[j] = 0.0F;
    }
    first_visible_ = shift + static_cast<int32_t>(group_ * 64 / params_.group);
    last_visible_ = min(item.end, shift + static_cast<int32_t>((group_ * 64 + 63) / params_.group));
    has_folded_ = false;
#pragma unroll
    for (uint32_t i = 0; i < S::kEights; ++i) {
#pragma unroll
      for (uint32_t r = 0; r < 4; ++r) out_[i][r] = 0.0F;
    }

    Units<kHeadDim> units(item);
    storage_.q_there.wait(q_parity);
    bool is_queued = false;  // whether the values of the last tile are still to be added
    for (uint32_t tiles_left = units.count_tiles(); tiles_left > 0; --tiles_left) {
      storage_.keys_there[keys_.index].wait(keys_.parity);
      if (is_queued) {
        storage_.values_there[values_.index].wait(values_.parity);
        begin_turn();
        multiply_keys();
        add_in_one_piece();
        end_turn();
        wait_for_products<1>();
      } else {
        begin_turn();
        multiply_keys();
        end_turn();
        wait_for_products<0>();
      }
      pin(scores_);
      release(storage_.keys_free[keys_.index]);
      if (tiles_left == 1) release(storage_.q_free);
      keys_.advance();
      weigh(units);
      wait_for_products<0>();
      pin(out_);
      if (is_queued) release_values();
      round_weights();
      is_queued = !in_pieces_;
      if (is_queued) continue;
      storage_.values_there[values_.index].wait(values_.parity);
      add_in_pieces();
      release_values();
    }
    if (is_queued) {
      storage_.values_there[values_.index].wait(values_.parity);
      add_in_one_piece();
      wait_for_products<0>();
      pin(out_);
      release_values();
    }
    write(item);
  }

  __device__ void write(const Item& item) {
    const uint32_t columns = params_.template columns<kHeadDim, kPadded>();
#pragma unroll
    for (uint32_t j = 0; j < 2; ++j) {
      const uint32_t packed = first_ + 8 * j, token = packed / params_.group;
      const Folded::Factors factors = fold_sums(j, {reference_[j], sum_[j]});
      if (static_cast<int32_t>(token) >= item.tokens) continue;
      const float reciprocal = folded_[j].reciprocal();
      const size_t row = static_cast<size_t>(item.first_row + item.token) + token;
      const size_t head =
          (row * params_.num_kv_heads + static_cast<uint32_t>(item.kv_head)) * params_.group + packed % params_.group;
      if (params_.lse != nullptr && lane_ % 4 == 0) params_.lse[head] = folded_[j].log_sum();
      auto* const to = reinterpret_cast<__nv_bfloat162*>(params_.o + head * columns) + lane_ % 4;
#pragma unroll
      for (uint32_t i = 0; i < S::kEights; ++i) {
        if (kPadded && 8 * i >= columns) break;
        const float4 values = has_folded_ ? folded_values(i) : float4{};
        const float first = j == 0 ? values.x : values.z, second = j == 0 ? values.y : values.w;
        to[4 * i] =
            __floats2bfloat162_rn(finished(first * factors.folded + out_[i][2 * j] * factors.part, reciprocal),
                                  finished(second * factors.folded + out_[i][2 * j + 1] * factors.part, reciprocal));
      }
    }
  }

  const Params& params_;
  Storage<kHeadDim>& storage_;
  const uint32_t group_, lane_, first_;
  Stage keys_, values_;

  float scores_[kKeys / 8][4], out_[S::kEights][4];
  uint32_t weights_[kKeys / 16][4];
  float reference_[2], sum_[2];
  Folded folded_[2];
  Sums before_[S::kUnits][2];  // of the part that ends before a unit, or goes on
  float factor_[S::kUnits][2];
  uint32_t num_units_;         // of the tile
  uint32_t folds_, rescales_;  // units, as bits, before which the sums are folded, or rescaled
  bool in_pieces_, has_folded_;
  int32_t visible_[2];                    // keys that a row sees, and those before its window
  int32_t first_visible_, last_visible_;  // of the first and the last row of this half
};

}  // namespace tandem::device::cuda::large
