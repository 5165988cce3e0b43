#include "rollout/kv_layout.h"

#include <algorithm>

namespace tandem::rollout {
namespace {

constexpr int64_t kMostWindowedTokens = 2048;  // of one sequence in a forward

}  // namespace

KvLayout kv_layout(const model::ModelConfig& config) {
  // A tile begins at a multiple of so many numbers, as kernels want it: 128 bytes or more.
  constexpr int64_t kAlignment = 64;
  // Kind 0 has the layers that see all, where others have a window.
  KvLayout layout;
  std::vector<int64_t> num_layers(2, 0);
  int64_t window = 0;
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    const int64_t own = config.attention_of(layer).window;
    const size_t kind = own > 0 ? 1 : 0;
    layout.layers.push_back({.kind = kind, .index = num_layers[kind]++});
    window = std::max(window, own);
  }
  const base::Size tile_of_layer = base::Size(2) * config.num_kv_heads * config.head_dim * device::kBlockTokens;
  if (num_layers[0] == 0 || num_layers[1] == 0) {
    for (KvLayout::LayerPlace& place : layout.layers) place.kind = 0;
    layout.kinds = {{.window = window}};
    layout.block_size = tile_of_layer * config.num_layers;
    layout.tile_sizes = {layout.block_size};
    return layout;
  }
  const int64_t most = std::max(num_layers[0], num_layers[1]);
  const int64_t tiles = most / std::min(num_layers[0], num_layers[1]);  // of a block of the kind with fewer layers
  const base::Size tile = (tile_of_layer * most + tiles * kAlignment - 1) / (tiles * kAlignment) * kAlignment;
  layout.block_size = tile * tiles;
  for (const int64_t count : num_layers) {
    const bool has_fewer = count < most;
    layout.kinds.push_back({.tokens = (has_fewer ? tiles : 1) * device::kBlockTokens});
    layout.tile_sizes.push_back(has_fewer ? tile : layout.block_size);
  }
  layout.kinds[1].window = window;
  return layout;
}

int64_t blocks_of(const std::vector<BlockKind>& kinds, int64_t tokens) {
  int64_t sum = 0;
  for (const BlockKind& kind : kinds) sum += blocks_of(kind, tokens);
  return sum;
}

int64_t span_of(const std::vector<BlockKind>& kinds) {
  int64_t span = 0;
  for (const BlockKind& kind : kinds) span = std::max(span, kind.tokens);
  return span;
}

int64_t most_part_tokens(const std::vector<BlockKind>& kinds, int64_t max_batch_tokens) {
  const bool has_window = std::ranges::any_of(kinds, [](const BlockKind& kind) { return kind.window > 0; });
  return has_window ? std::min(max_batch_tokens, kMostWindowedTokens) : max_batch_tokens;
}

int64_t most_held_blocks(const BlockKind& kind, int64_t tokens, int64_t max_batch_tokens) {
  const int64_t part = std::min(max_batch_tokens, kMostWindowedTokens);
  int64_t held = tokens;
  if (kind.window > 0 && tokens - kind.window > part) {
    // The first of them may be the last of a block.
    held = std::min(tokens, kind.window - 1 + part + kind.tokens - 1);
  }
  return blocks_of(kind, held);
}

}  // namespace tandem::rollout
