// What Qwen2's block takes, as qwen2/forward.cc runs it.
#include "model/decoder/cost.h"

#include "model/qwen2/qwen2.h"

namespace tandem::model::qwen2 {

BlockBytes block_bytes(const ModelConfig& config, Dtype dtype, const device::OpsPlan& ops, Size rows,
                       const AttentionBytes& attention) {
  return decoder::rotary_block_bytes(config, dtype, ops, rows, attention, /*has_bias=*/true);
}

}  // namespace tandem::model::qwen2
