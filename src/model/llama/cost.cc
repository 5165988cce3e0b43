// What Llama's block takes, as llama/forward.cc runs it.
#include "model/decoder/cost.h"

#include "model/llama/llama.h"

namespace tandem::model::llama {

BlockBytes block_bytes(const ModelConfig& config, Dtype dtype, const device::OpsPlan& ops, Size rows,
                       const AttentionBytes& attention) {
  return decoder::rotary_block_bytes(config, dtype, ops, rows, attention, /*has_bias=*/false);
}

}  // namespace tandem::model::llama
