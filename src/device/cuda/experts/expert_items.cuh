// The work items of a product of experts (device/experts.h): places of one expert that a block multiplies together.
// Blocks find theirs on the device, so that a recorded call serves every routing.
#pragma once

#include <cstdint>

#include "device/cuda/vectors.cuh"

namespace tandem::device::cuda {

// Up to kPlaces places of one expert; no places past the last item.
struct Item {
  int expert, first, count;
};
// Returns item `index`, in order of places. Every warp looks for itself.
template <int kPlaces>
__device__ inline Item find_item(const int32_t* offsets, int num_experts, int index) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, each = (num_experts + kWarp - 1) / kWarp;
  const int begin = min(lane * each, num_experts), end = min(begin + each, num_experts);
  int mine = 0, first = offsets[begin];
  for (int x = begin; x < end; ++x) {
    const int next = offsets[x + 1];
    mine += (next - first + kPlaces - 1) / kPlaces;
    first = next;
  }
  int through = mine;
#pragma unroll
  for (int offset = 1; offset < kWarp; offset *= 2) {
    const int other = __shfl_up_sync(kAllLanes, through, offset);
    if (lane >= offset) through += other;
  }
  Item item = {.expert = 0, .first = 0, .count = 0};
  int before = through - mine;
  const bool is_mine = before <= index && index < through;
  if (is_mine) {
    for (int x = begin; x < end; ++x) {
      const int places = offsets[x + 1] - offsets[x], items = (places + kPlaces - 1) / kPlaces;
      if (index < before + items) {
        const int skipped = (index - before) * kPlaces;
        item = {.expert = x, .first = offsets[x] + skipped, .count = min(kPlaces, places - skipped)};
        break;
      }
      before += items;
    }
  }
  const unsigned holder = __ballot_sync(kAllLanes, is_mine);
  if (holder == 0) return item;
  const int from = __ffs(static_cast<int>(holder)) - 1;
  return {.expert = __shfl_sync(kAllLanes, item.expert, from),
          .first = __shfl_sync(kAllLanes, item.first, from),
          .count = __shfl_sync(kAllLanes, item.count, from)};
}

}  // namespace tandem::device::cuda
