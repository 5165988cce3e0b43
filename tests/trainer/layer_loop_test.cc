// Tests that the loop keeps what the plan says it keeps, to the byte.
#include "trainer/layer_loop.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/model/families.h"
#include "tests/trainer/counting_allocator.h"
#include "tests/trainer/fixture.h"
#include "trainer/trainer_plan.h"

namespace tandem::trainer {
namespace {

// Returns the bytes that a forward leaves alive for backward.
int64_t live_bytes_after_forward(const model::Model& model, const PackedBatch& batch, int64_t num_recomputed) {
  CountingAllocator allocator;
  LayerLoop layers(model, batch, num_recomputed);
  const at::Tensor normed_TE = layers.forward();
  return allocator.live_bytes();
}

TEST(LayerLoop, KeepsTheBytesThatThePlanStates) {
  // The lengths fill their blocks, so that the scratch caches are not padded.
  rl::Sample sample;
  sample.prompt = rl::make_prompt(std::vector<int32_t>(32, 1));
  sample.completion.assign(49, 2);
  const PackedBatch batch = pack_batch(std::vector<const rl::Sample*>(6, &sample));
  ASSERT_EQ(batch.num_tokens(), 32 + 6 * 48);
  std::vector<std::pair<std::string, at::ScalarType>> cases;
  for (const std::string& architecture : model::kArchitectures)
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) cases.emplace_back(architecture, dtype);
  for (const auto& [architecture, dtype] : cases) {
    SCOPED_TRACE(architecture);
    const TestModel m = make_small_model(dtype, true, test_ops(), architecture);
    const int64_t layers = m.config.num_layers, tokens = batch.num_tokens();
    const KeptBytes of_batch = kept_bytes(m.config, tokens);
    const int64_t dropped = live_bytes_after_forward(*m.model, batch, layers);
    // These are the blocks' inputs, the final norm's input and output, and the one cache that all layers share.
    const int64_t cache = 2 * m.config.num_kv_heads * m.config.head_dim * model::dtype_bytes(m.config.dtype);
    EXPECT_EQ(dropped, (layers + 2) * of_batch.block_input + tokens * cache);
    const int64_t kept = live_bytes_after_forward(*m.model, batch, 0);
    EXPECT_EQ(kept, (layers + 2) * of_batch.block_input + layers * of_batch.block_graph);
  }
}

}  // namespace
}  // namespace tandem::trainer
