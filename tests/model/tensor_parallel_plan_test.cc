// Block and head take the bytes that model/model_plan.h states, on one rank and on several.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <mutex>

#include "device/backends.h"
#include "device/block.h"
#include "model/model.h"
#include "model/model_plan.h"
#include "model/registry.h"
#include "tests/device/draw.h"
#include "tests/device/ranks/thread_ranks.h"
#include "tests/model/function_sink.h"
#include "tests/model/random_weights.h"
#include "tests/model/sequence_attention.h"
#include "tests/model/small_models.h"

namespace tandem::model {
namespace {

using at::Tensor;

// With so many tokens parts have more bytes than kGatheredPartBytes, and logits too.
constexpr int64_t kPlanTokens = 1100;

// Counts the bytes of CPU tensors by the thread that made them, and the most that there ever were.
class ThreadBytes final : public c10::Allocator {
 public:
  ThreadBytes() : inner_(c10::GetCPUAllocator()) { c10::SetCPUAllocator(this, /*priority=*/1); }
  ~ThreadBytes() override { c10::SetCPUAllocator(inner_, /*priority=*/1); }

  // Returns the most that `work` has at once on this thread, without what was there before.
  template <typename F>
  int64_t most_of(F work) {
    Count& count = own();
    const int64_t before = count.live;
    count.most = before;
    work();
    return count.most - before;
  }

  c10::DataPtr allocate(size_t bytes) override {
    auto* block = new Block{inner_->allocate(bytes), static_cast<int64_t>(bytes), &own()};
    block->count->live += block->bytes;
    block->count->most = std::max(block->count->most, block->count->live.load());
    return {block->data.get(), block, &release, block->data.device()};
  }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }

 private:
  struct Count {
    std::atomic<int64_t> live = 0;  // a block may be freed by another thread
    int64_t most = 0;
  };
  struct Block {
    c10::DataPtr data;
    int64_t bytes;
    Count* count;
  };
  static void release(void* context) {
    auto* block = static_cast<Block*>(context);
    block->count->live -= block->bytes;
    delete block;
  }
  static Count& own() {
    static std::mutex mutex;
    static auto* const counts = new std::deque<Count>;  // each outlives its thread, as its blocks may
    static thread_local Count* const count = [] {
      const std::scoped_lock lock(mutex);
      return &counts->emplace_back();
    }();
    return *count;
  }

  c10::Allocator* inner_;
};

struct PlanCase {
  std::string architecture;
  Dtype dtype;
  int size;
  bool sequence_parallel = false;
};
void PrintTo(const PlanCase& c, std::ostream* out) {
  *out << c.architecture << ' ' << c.size << (c.sequence_parallel ? " rows too" : "");
}

// The bytes that were planned, and those that were taken.
struct Bytes {
  int64_t planned, taken;
};
using Measured = std::map<std::string, Bytes>;

class TensorParallelPlanTest : public testing::TestWithParam<PlanCase> {
 protected:
  static ModelConfig whole() {
    ModelConfig config = small_config(/*num_layers=*/1, GetParam().architecture);
    config.hidden = 256;
    config.num_heads = 8;
    config.num_kv_heads = 4;
    config.mlp = 640;
    config.vocab = 1000;
    config.tied_embeddings = false;
    config.dtype = GetParam().dtype;
    return config;
  }

  // The batch is one sequence, whose cache is there already.
  static AttentionBytes attention_bytes(const ModelConfig& config, const device::OpsPlan& ops) {
    const Size keys = (kPlanTokens + device::kBlockTokens - 1) / device::kBlockTokens * device::kBlockTokens;
    const device::AttentionLoad load = {.rows = kPlanTokens,
                                        .tiles = kPlanTokens,
                                        .longest_rows = kPlanTokens,
                                        .longest_keys = keys,
                                        .sequences = 1,
                                        .kv_blocks = kPlanTokens / device::kBlockTokens + 1,
                                        .expanded_keys = keys};
    const Size logarithms = kPlanTokens * config.num_heads * 4;
    device::OpBytes forward = ops.paged_attention(load);
    forward.most += logarithms;
    return {.forward = forward, .kept = logarithms, .backward = ops.attention_backward(load)};
  }

  static Measured measure(ThreadBytes& bytes, const ModelConfig& config, device::Communicator* ranks) {
    const at::ScalarType dtype = config.dtype == Dtype::kFloat32 ? at::kFloat : at::kBFloat16;
    const std::unique_ptr<device::Ops> ops = device::make_cpu_ops("auto", 1);
    weights::WeightStore store(build_layout(config), dtype);
    draw_weights(store, 0.1, 5);
    const auto model =
        ranks == nullptr ? make_model(config, store.view(), *ops) : make_model(config, store.view(), *ops, *ranks);
    std::map<std::string, Tensor> gradients;
    for (const weights::PackedTensor& packed : store.layout().tensors)
      gradients[packed.name] = at::empty(packed.shape, at::kFloat);
    FunctionSink sink([&](const std::string& name) -> GradientTarget { return {.memory = gradients.at(name)}; });
    model->set_gradient_sink(&sink);

    const auto planned = ops_plan(device::footprint_of("cpu"), config, config.dtype);
    const device::OpsPlan& plan = *planned;
    const BlockBytes block = block_bytes(config, config.dtype, plan, kPlanTokens, attention_bytes(config, plan));
    SequenceAttention attention(*ops, config, kPlanTokens, dtype), again(*ops, config, kPlanTokens, dtype);
    const Tensor positions = int32_range(0, kPlanTokens);
    const int64_t stream_rows = model::stream_rows(config, kPlanTokens);
    const Tensor x = device::TestDraw(7).normal({stream_rows, config.hidden}, dtype), dy = x.clone();
    const Tensor normed = device::TestDraw(7).normal({kPlanTokens, config.hidden}, dtype);
    Measured result;
    {
      const c10::NoGradGuard no_graph;
      model->block(0, dy, positions, attention);  // what the operations keep for good
      SequenceAttention fresh(*ops, config, kPlanTokens, dtype);
      result["a block without a graph"] = {block.inference,
                                           bytes.most_of([&] { model->block(0, dy, positions, fresh); })};
    }
    x.set_requires_grad(true);
    Tensor y;
    result["a block with its graph"] = {block.forward,
                                        bytes.most_of([&] { y = model->block(0, x, positions, again); })};
    result["the backward of a block"] = {
        std::max<int64_t>(block.mlp_backward, block.attention_backward - block.mlp_graph),
        bytes.most_of([&] { torch::autograd::grad({y}, {x}, {dy}); })};

    Tensor norm;
    result["a norm"] = {norm_bytes(config, config.dtype, plan, kPlanTokens).most,
                        bytes.most_of([&] { norm = model->final_norm(x, kPlanTokens); })};
    result["the backward of a norm"] = {norm_backward_bytes(config, plan, kPlanTokens).most,
                                        bytes.most_of([&] { torch::autograd::grad({norm}, {x}, {normed}); })};

    Tensor logits;
    result["logits"] = {head_bytes(config, plan, kPlanTokens).most,
                        bytes.most_of([&] { logits = model->head(normed); })};
    result["own logits"] = {own_logits_bytes(config, plan, kPlanTokens).most,
                            bytes.most_of([&] { model->own_logits(logits); })};
    result["the backward of logits"] = {head_backward_bytes(config, config.dtype, plan, kPlanTokens).most,
                                        bytes.most_of([&] { model->head_backward(logits, normed); })};
    return result;
  }
};

std::vector<PlanCase> plan_cases() {
  std::vector<PlanCase> result;
  for (const Dtype dtype : {Dtype::kFloat32, Dtype::kBFloat16})
    for (const int size : {1, 2, 4}) result.push_back({kShardableArchitectures.front(), dtype, size});
  for (size_t i = 1; i < kShardableArchitectures.size(); ++i)
    result.push_back({kShardableArchitectures[i], Dtype::kFloat32, 2});
  for (const std::string& architecture : kArchitectures) {
    if (find_family(architecture)->can_be_sharded()) continue;
    for (const Dtype dtype : {Dtype::kFloat32, Dtype::kBFloat16}) result.push_back({architecture, dtype, 1});
  }
  result.push_back({kShardableArchitectures.front(), Dtype::kFloat32, 4, /*sequence_parallel=*/true});
  result.push_back({kShardableArchitectures.front(), Dtype::kBFloat16, 2, /*sequence_parallel=*/true});
  result.push_back({kShardableArchitectures.back(), Dtype::kFloat32, 2, /*sequence_parallel=*/true});
  return result;
}

INSTANTIATE_TEST_SUITE_P(Models, TensorParallelPlanTest, testing::ValuesIn(plan_cases()), [](const auto& info) {
  const PlanCase& c = info.param;
  return c.architecture + "_" + to_string(c.dtype) + "_" + std::to_string(c.size) +
         (c.sequence_parallel ? "_rows" : "");
});

// A rank never takes more than planned, and the one with the largest part of the vocabulary takes nearly as much.
// Indices and the partial sums of small gradients are not counted.
TEST_P(TensorParallelPlanTest, BlockAndHeadTakeWhatIsPlanned) {
  constexpr int64_t kSmallTensors = 32 << 10;
  ThreadBytes bytes;
  const int size = GetParam().size;
  std::vector<Measured> of_ranks;
  if (size == 1) {
    of_ranks.push_back(measure(bytes, whole(), nullptr));
  } else {
    of_ranks = device::on_thread_ranks(size, [&](device::Communicator& ranks) {
      return measure(
          bytes,
          shard_of(whole(), {.rank = ranks.rank(), .size = size, .sequence_parallel = GetParam().sequence_parallel}),
          &ranks);
    });
  }
  for (const auto& [what, first] : of_ranks.front()) {
    int64_t most = 0;
    for (const Measured& measured : of_ranks) {
      EXPECT_EQ(measured.at(what).planned, first.planned) << what;
      most = std::max(most, measured.at(what).taken);
    }
    fmt::print("{:<26} {:9} of {:9}\n", what, most, first.planned);
    EXPECT_LE(most, first.planned + kSmallTensors) << what;
    EXPECT_LE(first.planned, most + most / 50 + kSmallTensors) << what;
  }
}

}  // namespace
}  // namespace tandem::model
