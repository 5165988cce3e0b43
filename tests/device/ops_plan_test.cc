// Tests of OpsPlan: the allocations that it states for operations in plain ATen, against those on the CPU in the shapes
// of a GPU's calls; and those of CUDA's own, where they were measured.
#include "device/ops_plan.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <mutex>
#include <random>

#include "device/ops_aten.h"
#include "device/registry.h"

namespace tandem::device {
namespace {

// Gives memory of the host and counts it.
class CountingSource final : public AllocatorHook {
 public:
  std::byte* allocate(int64_t bytes) override {
    auto* const address = static_cast<std::byte*>(std::aligned_alloc(64, static_cast<size_t>((bytes + 63) / 64 * 64)));
    std::lock_guard lock(mutex_);
    bytes_[address] = bytes;
    current_ += bytes;
    most_ = std::max(most_, current_);
    return address;
  }
  bool free(std::byte* address) override {
    std::lock_guard lock(mutex_);
    const auto found = bytes_.find(address);
    if (found == bytes_.end()) return false;
    current_ -= found->second;
    bytes_.erase(found);
    std::free(address);
    return true;
  }
  void begin() { most_ = current_; }
  int64_t most_since(int64_t before) const { return most_ - before; }
  int64_t current() const { return current_; }

 private:
  std::mutex mutex_;
  std::map<std::byte*, int64_t> bytes_;
  int64_t current_ = 0, most_ = 0;
};

constexpr OpsShape kShape = {.hidden = 96,
                             .q_width = 128,
                             .kv_width = 64,
                             .mlp = 320,
                             .vocab = 1111,
                             .experts = 16,
                             .chosen = 4,
                             .num_heads = 4,
                             .num_kv_heads = 2,
                             .head_dim = 32};
const Ops::QkvShape kQkv = {4, 2, 32, 1e4, 1e-6};

class OpsPlanTest : public testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override { driver_.set_tensor_source(&source_); }
  void TearDown() override { driver_.set_tensor_source(nullptr); }
  Tensor tensor(at::IntArrayRef sizes) const { return at::rand(sizes, at::TensorOptions(at::kFloat)).to(GetParam()); }
  static Tensor floats(at::IntArrayRef sizes) { return at::rand(sizes, at::TensorOptions(at::kFloat)); }
  static Tensor ids(int64_t count) { return at::arange(count, at::TensorOptions(at::kInt)); }

  // The plan is never below what was taken, and near it.
  template <typename F>
  void expect(const char* name, const OpBytes& planned, F run, int64_t allowed_above = kSmallTensors) {
    const int64_t before = source_.current();
    source_.begin();
    {
      [[maybe_unused]] const auto result = run();
      const int64_t taken = source_.current() - before, most = source_.most_since(before);
      std::printf("%-26s result %9ld of %9ld, most %9ld of %9ld (%.2f %% above)\n", name, taken,
                  int64_t{planned.result}, most, int64_t{planned.most},
                  100.0 * (static_cast<double>(planned.most) / static_cast<double>(most) - 1));
      EXPECT_EQ(taken, planned.result) << name;
      EXPECT_LE(most, planned.most + kSmallTensors) << name;
      EXPECT_LE(planned.most, most + most / 50 + allowed_above) << name;
    }
    EXPECT_EQ(source_.current(), before) << name << " keeps something";
  }

  // These are scalars, weights of norms, and tables of a few indices.
  static constexpr int64_t kSmallTensors = 16384;
  MemoryDriver driver_ = open_memory({});
  CountingSource source_;
  std::unique_ptr<Ops> ops_ = make_aten_ops(at::kCPU, "aten in a GPU's shapes", 1, {});
  OpsPlan plan_{kShape, GetParam() == at::kFloat ? 4 : 2};
};

TEST_P(OpsPlanTest, ElementWise) {
  const int64_t T = 1500, E = kShape.hidden, F = kShape.mlp, H = 4, G = 2, K = 32;
  const Tensor x = tensor({T, E}), w = tensor({E}), dw = floats({E});
  expect("add", plan_.add(T), [&] { return ops_->add(x, x); });
  expect("rms_norm", plan_.rms_norm(T), [&] { return ops_->rms_norm(x, w, 1e-6); });
  expect("rms_norm_backward", plan_.rms_norm_backward(T), [&] { return ops_->rms_norm_backward(x, x, w, 1e-6, dw); });
  const Tensor part = floats({T, E}), sum = tensor({T, E});
  expect("sum_parts", plan_.sum_parts(T * E), [&] { return ops_->sum_parts({part, part, part}, x, sum), 0; });
  const Tensor gate_up = tensor({T, 2 * F}), activated = tensor({T, F});
  expect("silu_mul", plan_.silu_mul(T), [&] { return ops_->silu_mul(gate_up); });
  expect("silu_mul_backward", plan_.silu_mul_backward(T), [&] { return ops_->silu_mul_backward(activated, gate_up); });
  expect("gelu_mul", plan_.gelu_mul(T), [&] { return ops_->gelu_mul(gate_up); });
  expect("gelu_mul_backward", plan_.gelu_mul_backward(T), [&] { return ops_->gelu_mul_backward(activated, gate_up); });
  const Tensor qkv = tensor({T, (H + 2 * G) * K}), norm = tensor({K}), dnorm = floats({K}), positions = ids(T);
  expect("qk_norm_rope", plan_.qk_norm_rope(T), [&] { return ops_->qk_norm_rope(qkv, norm, norm, positions, kQkv); });
  const Tensor dq = tensor({T, H, K}), dk = tensor({T, G, K});
  expect("rope", plan_.rope(T), [&] { return ops_->rope(qkv, positions, kQkv); });
  const Tensor bias = tensor({(H + 2 * G) * K}), dbias = floats({(H + 2 * G) * K});
  expect("add_bias", OpBytes(), [&] { return ops_->add_bias(qkv, bias), 0; });
  expect("add_bias_backward", plan_.add_bias_backward(T, (H + 2 * G) * K),
         [&] { return ops_->add_bias_backward(qkv, dbias), 0; });
  expect("rope_backward", plan_.rope_backward(T), [&] { return ops_->rope_backward(dq, dk, dk, positions, kQkv); });
  expect("qk_norm_rope_backward", plan_.qk_norm_rope_backward(T),
         [&] { return ops_->qk_norm_rope_backward(dq, dk, dk, qkv, norm, norm, positions, kQkv, dnorm, dnorm); });
}

// The CPU's ATen does not multiply bfloat16: the way in which it replaces that is not a GPU's.
TEST_P(OpsPlanTest, Products) {
  if (GetParam() == at::kBFloat16) return;
  const int64_t K = 96, N = 320;
  const Tensor w = tensor({N, K}), w_KN = tensor({K, N}), dw = floats({N, K});
  for (const int64_t T : {1, 256, 700}) {
    const Tensor x = tensor({T, K}), dy = tensor({T, N});
    if (T != 256) expect("linear", plan_.linear(T, K, N, 4), [&] { return ops_->linear(x, w, at::kFloat); });
    // The result is as wide as the model's hidden state, which is K.
    if (T != 256) expect("linear_add", plan_.linear_add(T, N), [&] { return ops_->linear_add(dy, w_KN, x); });
    if (T != 256)
      expect("linear_add_to", plan_.linear_add_to(T, N, K), [&] { return ops_->linear_add_to(dy, w_KN, x), 0; });
    expect("linear_grad_input", plan_.linear_grad_input(T, K, N, 4),
           [&] { return ops_->linear_grad_input(dy, w, w.scalar_type()); });
    for (const GradientUse use : {GradientUse::kAdd, GradientUse::kSet})
      expect("linear_grad_weight", OpBytes(), [&] { return ops_->linear_grad_weight(dy, x, dw, use), 0; });
  }
}

// All tokens choose the same experts, whose products are then as large as they can be.
TEST_P(OpsPlanTest, Experts) {
  const int64_t T = 1500, X = kShape.experts, C = kShape.chosen, E = kShape.hidden, F = kShape.mlp, P = T * C;
  const Size element = GetParam() == at::kFloat ? 4 : 2;
  const RouteRule rule{.chosen = C, .normalises = false};
  const Tensor logits = floats({T, X}), dweights = floats({T, C});
  logits.narrow(1, 0, C).add_(1.0);
  const Routing routing = ops_->route(logits, rule);
  expect("route", plan_.route(T), [&] { return ops_->route(logits, rule); });
  expect("route_backward", plan_.route_backward(T),
         [&] { return ops_->route_backward(dweights, logits, routing, rule, GetParam()); });
  const Tensor y = tensor({P, E}), floats_y = floats({P, E}), residual = tensor({T, E});
  expect("sum_of_experts", plan_.sum_of_experts(T, element),
         [&] { return ops_->sum_of_experts(y, routing.weights_TC, routing, residual, GetParam()); });
  const Tensor gate_up = tensor({P, 2 * F}), activated = tensor({P, F});
  expect("weighted_silu_backward", plan_.weighted_silu_backward(T),
         [&] { return ops_->weighted_silu_backward(activated, gate_up, routing); });
  if (GetParam() == at::kBFloat16) return;  // as for the products above
  const Tensor w = tensor({X * 2 * F, E}), down = tensor({X * E, F}), x = tensor({T, E}), dw = floats({X * 2 * F, E});
  expect("linear_of_experts", plan_.linear_of_experts(T, E, 2 * F, 4, /*gathers=*/true),
         [&] { return ops_->linear_of_experts(x, RowsAre::kTokens, w, routing, at::kFloat); });
  expect("linear_of_experts, down", plan_.linear_of_experts(T, F, E, 4, /*gathers=*/false),
         [&] { return ops_->linear_of_experts(activated, RowsAre::kPlaces, down, routing, at::kFloat); });
  expect("..._grad_input", plan_.linear_of_experts_grad_input(T, F, E, 4, /*gathers=*/true),
         [&] { return ops_->linear_of_experts_grad_input(x, RowsAre::kTokens, down, routing, at::kFloat); });
  expect("..._grad_weight", plan_.linear_of_experts_grad_weight(T, E), [&] {
    return ops_->linear_of_experts_grad_weight(gate_up, RowsAre::kPlaces, x, RowsAre::kTokens, dw, routing,
                                               GradientUse::kSet),
           0;
  });
}

TEST_P(OpsPlanTest, LogitsAndOptimizer) {
  const int64_t R = 300, V = kShape.vocab;
  const Tensor logits = floats({R, V}), targets = ids(R), row = floats({R}), none;
  expect("logprob", plan_.logprob(R), [&] { return ops_->logprob(logits, targets, 0.7, row, row, row), 0; });
  expect("logprob_backward", plan_.logprob_backward(R, V, false),
         [&] { return ops_->logprob_backward(logits, targets, 0.7, row, none, row, row, GetParam()), 0; });
  expect("logprob_backward, entropy", plan_.logprob_backward(R, V, true),
         [&] { return ops_->logprob_backward(logits, targets, 0.7, row, row, row, row, GetParam()), 0; });
  const Tensor n = floats({100000}), weight = tensor({100000});
  expect("adamw", plan_.adamw(100000), [&] {
    return ops_->adamw(weight, n, n, n, n, {1e-3, 0.9, 0.95, 1e-8, 0, 1, 1}), 0;
  });
  expect("sums_of_squares", plan_.sums_of_squares(100000, 4096), [&] { return ops_->sums_of_squares(n, 4096), 0; });
}

// The CPU's kernels read rows of tokens where they are, and take nothing but their results.
TEST_P(OpsPlanTest, ExpertsOnTheCpu) {
  const int64_t T = 300, X = kShape.experts, C = kShape.chosen, E = kShape.hidden, F = kShape.mlp, P = T * C;
  const std::unique_ptr<Ops> ops = make_ops(parse_device("cpu"), {.isa = "auto", .num_threads = 1});
  const std::unique_ptr<const OpsPlan> plan = footprint_of("cpu").plan_ops(kShape, GetParam() == at::kFloat ? 4 : 2);
  const Routing routing = ops->route(floats({T, X}), {.chosen = C, .normalises = true});
  const Tensor w = tensor({X * 2 * F, E}), down = tensor({X * E, F}), x = tensor({T, E}), dw = floats({X * 2 * F, E});
  const Tensor gate_up = tensor({P, 2 * F});
  expect(
      "linear_of_experts", plan->linear_of_experts(T, E, 2 * F, 4, /*gathers=*/true),
      [&] { return ops->linear_of_experts(x, RowsAre::kTokens, w, routing, at::kFloat); }, /*allowed_above=*/0);
  expect(
      "..._grad_input", plan->linear_of_experts_grad_input(T, F, E, 4, /*gathers=*/true),
      [&] { return ops->linear_of_experts_grad_input(x, RowsAre::kTokens, down, routing, at::kFloat); },
      /*allowed_above=*/0);
  expect(
      "..._grad_weight", plan->linear_of_experts_grad_weight(T, E),
      [&] {
        return ops->linear_of_experts_grad_weight(gate_up, RowsAre::kPlaces, x, RowsAre::kTokens, dw, routing,
                                                  GradientUse::kSet),
               0;
      },
      /*allowed_above=*/0);
}

// Sequences that all have `longest` keys. The first has its rows from first_row on, the others from next_row on: the
// keys before are the first's, as for samples that share a prompt.
struct AttentionCase {
  int64_t sequences, longest, first_row, next_row;
  bool has_backward;
};
constexpr AttentionCase kAttentionCases[] = {
    {3, 700, 0, 400, true},     // scores of queries and keys take the most
    {64, 32, 0, 16, true},      // here the gradients of keys and values do
    {70, 900, 899, 899, false}  // one row each, as in decoding
};

TEST_P(OpsPlanTest, Attention) {
  const int64_t H = 4, G = 2, K = 32;
  for (const auto& [sequences, longest, first_row, next_row, has_backward] : kAttentionCases) {
    const int64_t blocks = (longest + 15) / 16;
    std::vector<int32_t> sequence, position, kv_tokens, kv_slots;
    for (int64_t s = 0; s < sequences; ++s)
      for (int64_t p = 0; p < longest; ++p) {
        const bool has_row = p >= (s == 0 ? first_row : next_row);
        kv_tokens.push_back(static_cast<int32_t>(has_row ? static_cast<int64_t>(sequence.size()) : p));
        kv_slots.push_back(static_cast<int32_t>(s * blocks * 16 + p));
        if (!has_row) continue;
        sequence.push_back(static_cast<int32_t>(s));
        position.push_back(static_cast<int32_t>(p));
      }
    const auto T = static_cast<int64_t>(sequence.size());
    const auto int_tensor = [](const std::vector<int32_t>& values) {
      const Tensor tensor = at::empty({static_cast<int64_t>(values.size())}, at::kInt);
      std::copy(values.begin(), values.end(), tensor.mutable_data_ptr<int32_t>());
      return tensor;
    };
    AttentionRows rows;
    rows.sequence_of_row = int_tensor(sequence);
    rows.row_position = int_tensor(position);
    rows.block_table = ids(sequences * blocks).view({sequences, blocks});
    if (has_backward) {
      rows.group_offsets = int_tensor({0, static_cast<int32_t>(T)});
      rows.kv_tokens = int_tensor(kv_tokens);
      rows.kv_slots = int_tensor(kv_slots);
    }
    AttentionLoad load = {.rows = T,
                          .tiles = 0,
                          .longest_rows = longest - first_row,
                          .longest_keys = blocks * 16,
                          .sequences = sequences,
                          .kv_blocks = sequences * blocks};
    for (int64_t s = 0; s < sequences; ++s) load.tiles += (std::count(sequence.begin(), sequence.end(), s) + 15) / 16;
    const int64_t before = source_.current(), planned = plan_.prepared(load, has_backward);
    const AttentionRows prepared = ops_->prepare(rows);
    const int64_t taken = source_.current() - before;
    EXPECT_LE(taken, planned);
    EXPECT_LE(planned, taken + taken / 50) << "sequences have indices of their own";
    const Tensor q = tensor({T, H, K}), k = tensor({T, G, K}), lse = floats({T, H});
    const Tensor cache = tensor({sequences * blocks, 2, G, K * 16}), tokens = ids(T);
    expect("kv_append", plan_.kv_append(T), [&] { return ops_->kv_append(cache, k, k, tokens, tokens), 0; });
    expect("paged_attention", plan_.paged_attention(load),
           [&] { return ops_->paged_attention(q, cache, prepared, lse); });
    if (!has_backward) continue;
    expect(
        "attention_backward", plan_.attention_backward(load),
        [&] { return ops_->attention_backward(q, q, q, lse, cache, prepared); },
        static_cast<int64_t>(kv_tokens.size()) * 64);  // memory in which a GPU sorts
  }
}

constexpr OpsShape kQwen4B = {.hidden = 2560,
                              .q_width = 4096,
                              .kv_width = 1024,
                              .mlp = 9728,
                              .vocab = 151936,
                              .num_heads = 32,
                              .num_kv_heads = 8,
                              .head_dim = 128};

// FlashAttention-2's backward took 630 MiB besides its arguments and dq, dk, dv on an H200: two prompts of 256 tokens,
// 16 completions of 1,024, heads of Qwen3-4B. Our own kernels take less.
TEST(OpsPlanOfCuda, TheGradientOfAttentionTakesWhatWasMeasured) {
  const OpsShape& shape = kQwen4B;
  const int64_t rows = 2 * 256 + 16 * 1024, keys = 2 * 256 + 16 * 1280, kMiB = int64_t{1} << 20;
  const AttentionLoad load = {.rows = rows,
                              .tiles = 0,
                              .longest_rows = 496,
                              .longest_keys = 496,
                              .sequences = 18,
                              .kv_blocks = 0,
                              .expanded_keys = keys};
  const Footprint& cuda = footprint_of("cuda");
  const OpBytes planned = cuda.plan_ops(shape, 2)->attention_backward(load);
  const int64_t expanded = 2 * keys * shape.kv_width * 2, dq = rows * shape.q_width * 2;
  EXPECT_EQ(planned.result, dq + 2 * rows * shape.kv_width * 2);
  const int64_t scratch = planned.most - 2 * expanded - dq;  // keys and values, their gradients, dq
  EXPECT_GE(scratch, 630 * kMiB);
  EXPECT_LE(scratch, 643 * kMiB);
  // In float32 and for other heads LibTorch's operations compute.
  const OpBytes aten = OpsPlan(shape, 4).attention_backward(load);
  EXPECT_EQ(cuda.plan_ops(shape, 4)->attention_backward(load).most, aten.most);
}

// Its sums of dq have columns for heads of 96 numbers where a head has 72 or 80; all else has the head's own.
TEST(OpsPlanOfCuda, TheSumsOfTheGradientHaveColumnsInSteps) {
  constexpr int64_t kRows = 16896, kKeys = 20992, kHeads = 32, kKvHeads = 8;
  const auto most = [](int64_t head_dim) {
    OpsShape shape = kQwen4B;
    shape.q_width = kHeads * head_dim;
    shape.kv_width = kKvHeads * head_dim;
    shape.head_dim = head_dim;
    const AttentionLoad load = {.rows = kRows,
                                .tiles = 0,
                                .longest_rows = 496,
                                .longest_keys = 496,
                                .sequences = 18,
                                .kv_blocks = 0,
                                .expanded_keys = kKeys};
    return int64_t{footprint_of("cuda").plan_ops(shape, 2)->attention_backward(load).most};
  };
  // Eight columns of keys, values and their gradients, of dq, and of the gradients of each query head.
  constexpr int64_t kEight = 8 * 2 * (4 * kKeys * kKvHeads + kRows * kHeads + 2 * kKeys * kHeads);
  EXPECT_EQ(most(80) - most(72), kEight);
  EXPECT_EQ(most(104) - most(96), kEight + (kRows + 18 * 128) * kHeads * 32 * 4);
}

// Small heads take more by our own kernels, which compute them in 64 columns, than by FlashAttention-2.
TEST(OpsPlanOfCuda, TheGradientOfSmallHeadsTakesItsScratch) {
  OpsShape shape = kQwen4B;
  shape.q_width = 32 * 8;
  shape.kv_width = 8 * 8;
  shape.head_dim = 8;
  const int64_t rows = 16 * 1280, keys = rows, tiles = 16 * 20;
  const AttentionLoad load = {.rows = rows,
                              .tiles = 0,
                              .longest_rows = 1280,
                              .longest_keys = 1280,
                              .sequences = 16,
                              .kv_blocks = 0,
                              .expanded_keys = keys};
  const std::unique_ptr<const OpsPlan> plan = footprint_of("cuda").plan_ops(shape, 2);
  const int64_t tensors = 4 * keys * shape.kv_width * 2 + rows * shape.q_width * 2;
  const int64_t scratch = tiles * 32 * 64 * (64 + 2) * 4;  // dq in float32, and two numbers of each row
  const int64_t planned = plan->attention_backward(load).most - tensors;
  EXPECT_GE(planned, scratch);
  EXPECT_LE(planned, (tiles + 16) * 32 * (64 * (64 + 2) * 4 + 8) + 4096)
      << "a tile for each sequence that may end within one";
  // The words of segments, tiles and items, beside those that every GPU has.
  const int64_t words = plan->prepared(load, true) - plan->prepared(load, false) - (2 * keys + rows + 2 * 16 + 3) * 4;
  EXPECT_GE(words, 16 * 5 * 4 + tiles * 3 * 4 + 16 * 10 * 8 * 4 * 4);
  EXPECT_LE(words, 16 * 5 * 4 + (tiles + 16) * 3 * 4 + 16 * 11 * 8 * 4 * 4);
}

INSTANTIATE_TEST_SUITE_P(Dtypes, OpsPlanTest, testing::Values(at::kFloat, at::kBFloat16),
                         [](const auto& info) { return info.param == at::kFloat ? "float32" : "bfloat16"; });

}  // namespace
}  // namespace tandem::device
