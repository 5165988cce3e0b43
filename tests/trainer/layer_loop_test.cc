// That the loop keeps what the plan says it keeps, to the byte.
#include "trainer/layer_loop.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/model/families.h"
#include "tests/trainer/fixture.h"
#include "trainer/trainer_plan.h"

namespace tandem::trainer {
namespace {

// Counts the bytes of all CPU tensors that are made while it exists.
class CountingAllocator final : public c10::Allocator {
 public:
  CountingAllocator() : inner_(c10::GetCPUAllocator()) { c10::SetCPUAllocator(this, /*priority=*/1); }
  ~CountingAllocator() override { c10::SetCPUAllocator(inner_, /*priority=*/1); }

  int64_t live_bytes() const { return live_bytes_; }

  c10::DataPtr allocate(size_t bytes) override {
    auto* block = new Block{inner_->allocate(bytes), static_cast<int64_t>(bytes), &live_bytes_};
    live_bytes_ += block->bytes;
    return {block->data.get(), block, &release, block->data.device()};
  }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }

 private:
  struct Block {
    c10::DataPtr data;
    int64_t bytes;
    int64_t* live_bytes;
  };
  static void release(void* context) {
    auto* block = static_cast<Block*>(context);
    *block->live_bytes -= block->bytes;
    delete block;
  }

  c10::Allocator* inner_;
  int64_t live_bytes_ = 0;
};

// What a forward leaves alive for backward.
int64_t live_bytes_after_forward(const model::Model& model, const PackedBatch& batch, int64_t num_recomputed) {
  CountingAllocator allocator;
  LayerLoop layers(model, batch, num_recomputed);
  const at::Tensor normed_TE = layers.forward();
  return allocator.live_bytes();
}

TEST(LayerLoop, KeepsTheBytesThatThePlanStates) {
  // Lengths that fill their blocks, so that the scratch caches are not padded.
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
    const TokenBytes token = token_bytes(m.config);
    const int64_t layers = m.config.num_layers, tokens = batch.num_tokens();
    const int64_t dropped = live_bytes_after_forward(*m.model, batch, layers);
    // Blocks' inputs, the final norm's input and its output; and the one cache that all layers share.
    const int64_t cache = 2 * m.config.num_kv_heads * m.config.head_dim * model::dtype_bytes(m.config.dtype);
    EXPECT_EQ(dropped, tokens * ((layers + 2) * token.block_input + cache));
    const int64_t kept = live_bytes_after_forward(*m.model, batch, 0);
    EXPECT_EQ(kept, tokens * ((layers + 2) * token.block_input + layers * token.block_graph));
  }
}

}  // namespace
}  // namespace tandem::trainer
