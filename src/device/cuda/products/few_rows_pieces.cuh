// How the kernel of few rows with codes (few_rows_codes.cu) reads x: its rows pass through a ring of the block, as
// pieces of a segment's terms, and a warp multiplies the numbers that it has made of a segment's codes with one.
#pragma once

#include <cuda.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "device/cuda/products/few_rows_codes.cuh"
#include "device/cuda/tensor_cores.cuh"
#include "device/cuda/warpgroups.cuh"

namespace tandem::device::cuda {

constexpr int kTileRows = 8;                  // of x: the narrow side of an instruction
constexpr int kSegmentSteps = kSegment / 16;  // instructions, one after the other
constexpr int kPieceBarriers = 16;            // of a ring of pieces, at most

// The rows of x, as pieces of kSegment terms in the block's ring. A piece has boxes of 64 terms of all rows, and holds
// its part of the ring until each of the block's strips has been multiplied with it.
template <int kTiles>
class Pieces {
 public:
  static constexpr int kSlots = kTiles <= 2 ? 8 : kTiles == 4 ? 4 : 3;
  static constexpr int kBoxes = kSegment * static_cast<int>(sizeof(__nv_bfloat16)) / kRowBytes;
  static constexpr int kBoxSteps = kSegmentSteps / kBoxes;
  static constexpr int kBoxBytes = kTiles * kTileRows * kRowBytes, kPieceBytes = kBoxes * kBoxBytes;
  static constexpr int kRingBytes = kSlots * kPieceBytes;
  static_assert(2 * kSlots <= kPieceBarriers);

  // There are kPieceBarriers at `barriers`, and kRingBytes at `ring`, a multiple of 1,024.
  __device__ Pieces(const CUtensorMap& x, Barrier* barriers, std::byte* ring)
      : x_(x), is_full_(barriers), is_free_(barriers + kPieceBarriers / 2), ring_(shared_address(ring)) {}
  // One thread does so before others use them.
  __device__ void init(int strips) {
#pragma unroll 1
    for (int slot = 0; slot < kSlots; ++slot) {
      is_full_[slot].init(1);
      is_free_[slot].init(static_cast<uint32_t>(strips));
    }
  }
  // One warp starts the first pieces, and after that a warp one piece at a time, in their order.
  __device__ void start_first(int pieces) {
#pragma unroll 1
    for (int piece = 0; piece < min(kSlots, pieces); ++piece) start(piece);
  }
  // All lanes wait: in a loop of one lane the compiler would no longer know that a warp's lanes stay together.
  __device__ void start_when_free(int piece) {
    is_free_[piece % kSlots].wait(static_cast<uint32_t>(piece / kSlots - 1) % 2);
    start(piece);
  }
  // Waits for the piece and returns its address.
  __device__ uint32_t wait(int piece) {
    is_full_[piece % kSlots].wait(static_cast<uint32_t>(piece / kSlots) % 2);
    return ring_ + static_cast<uint32_t>(piece % kSlots * kPieceBytes);
  }
  // Gives the piece back for one strip. One thread calls it, when all lanes of its warp have read.
  __device__ void end(int piece) { is_free_[piece % kSlots].arrive(); }

 private:
  __device__ void start(int piece) {
    if (!is_elected()) return;
    const int slot = piece % kSlots;
    is_full_[slot].arrive_and_expect(kPieceBytes);
    copy_box(x_, 0, 0, piece * kBoxes, ring_ + static_cast<uint32_t>(slot * kPieceBytes), is_full_[slot]);
  }

  const CUtensorMap& x_;
  Barrier *is_full_, *is_free_;
  uint32_t ring_;
};

// Multiplies a warp's numbers of a segment with a piece of several tiles. One instruction reads terms of two tiles.
template <int kTiles>
class Multiplier {
 public:
  static constexpr Order kOrder = Order::kHalves;
  // Returns the row of its tile that a line of the instruction has.
  static __device__ int row_of(int line) { return line; }

  __device__ Multiplier() {
    const int lane = static_cast<int>(threadIdx.x) % kWarp, row = lane % 8 + lane / 16 * 8, eight = lane / 8 % 2;
    of_lane_ = static_cast<uint32_t>(row * kRowBytes + (eight ^ row % 8) * 16);
  }
  // Terms are read before the warp's turn comes, as many as there is room for, since the other warps keep shared memory
  // busy.
  __device__ void read_ahead(uint32_t piece) {
    piece_ = piece + of_lane_;
#pragma unroll
    for (int i = 0; i < kAhead; ++i) read(i);
  }
  __device__ void multiply(const Numbers (&numbers)[kSegmentGroups][kGroupSteps], float (&sum)[kTiles][4]) {
#pragma unroll
    for (int i = 0; i < kReads; ++i) {
      const int step = i / kPairs, tile = i % kPairs * 2;
#pragma unroll
      for (int of_two = 0; of_two < 2; ++of_two) {
        multiply_add(sum[tile + of_two], numbers[step / kGroupSteps][step % kGroupSteps],
                     terms_[i % kAhead] + of_two * 2);
      }
      if (i + kAhead < kReads) read(i + kAhead);
    }
  }

 private:
  static constexpr int kPairs = kTiles / 2, kReads = kSegmentSteps * kPairs, kAhead = kTiles <= 4 ? 8 : 4;
  using Piece = Pieces<kTiles>;

  __device__ void read(int i) {
    const int step = i / kPairs, pair = i % kPairs;
    const auto of_box = static_cast<uint32_t>(step % Piece::kBoxSteps * 32);
    const int box = step / Piece::kBoxSteps * Piece::kBoxBytes;
    read_matrices(terms_[i % kAhead],
                  (piece_ ^ of_box) + static_cast<uint32_t>(box + pair * 2 * kTileRows * kRowBytes));
  }

  uint32_t of_lane_, piece_ = 0, terms_[kAhead][4];
};

// Multiplies one tile. Each lane reads its own terms, so that its codes may be neighbours, which one instruction
// reads. The order of rows is one in which lanes that read at the same time share no bank.
template <>
class Multiplier<1> {
 public:
  static constexpr Order kOrder = Order::kNeighbours;
  static __device__ int row_of(int line) { return line % 4 * 2 + line / 4; }

  __device__ Multiplier() {
    const CodeLane lane;
    const int row = row_of(lane.line);
    of_lane_ = static_cast<uint32_t>(row * kRowBytes + (lane.quarter / 2 ^ row) * 16 + lane.quarter % 2 * 8);
  }
  __device__ void read_ahead(uint32_t piece) {
#pragma unroll
    for (int step = 0; step < kSegmentSteps; ++step) {
      const auto of_box = static_cast<uint32_t>(step % Piece::kBoxSteps * 32);
      const auto box = static_cast<uint32_t>(step / Piece::kBoxSteps * Piece::kBoxBytes);
      asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];"
                   : "=r"(terms_[step][0]), "=r"(terms_[step][1])
                   : "r"((piece + of_lane_ ^ of_box) + box));
    }
  }
  __device__ void multiply(const Numbers (&numbers)[kSegmentGroups][kGroupSteps], float (&sum)[1][4]) {
#pragma unroll
    for (int step = 0; step < kSegmentSteps; ++step)
      multiply_add(sum[0], numbers[step / kGroupSteps][step % kGroupSteps], terms_[step]);
  }

 private:
  using Piece = Pieces<1>;

  uint32_t of_lane_, terms_[kSegmentSteps][2];
};

}  // namespace tandem::device::cuda
