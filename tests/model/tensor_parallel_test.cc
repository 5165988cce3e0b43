// A model on tensor ranks, each with a part of the weights. Forward and backward are compared with one process that has
// all weights: bit for bit where it adds up its sums as the ranks do, else within a tolerance.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cstring>
#include <limits>
#include <numeric>

#include "model/model.h"
#include "model/registry.h"
#include "tandem/error.h"
#include "tests/device/draw.h"
#include "tests/device/ranks/thread_ranks.h"
#include "tests/model/function_sink.h"
#include "tests/model/model_parts.h"
#include "tests/model/random_weights.h"
#include "tests/model/sequence_attention.h"
#include "tests/model/small_models.h"
#include "tests/model/split_ops.h"

namespace tandem::model {
namespace {

using at::Tensor;
using device::same_bits;

constexpr uint64_t kRanksSeed = 23;
constexpr int64_t kTokens = 37;

struct Case {
  std::string architecture;
  at::ScalarType dtype;
  bool tied;
  int size;
  bool sequence_parallel = false;
};
void PrintTo(const Case& c, std::ostream* out) {
  *out << c.architecture << ' ' << c.dtype << ' ' << c.size << (c.sequence_parallel ? " rows too" : "");
}

std::vector<Case> cases(const std::vector<at::ScalarType>& dtypes, const std::vector<int>& sizes,
                        const std::vector<bool>& sequence_parallel = {false}) {
  std::vector<Case> result;
  for (const std::string& architecture : kShardableArchitectures)
    for (const at::ScalarType dtype : dtypes)
      for (const bool tied : {true, false})
        for (const int size : sizes)
          for (const bool rows : sequence_parallel) result.push_back({architecture, dtype, tied, size, rows});
  return result;
}

std::string name_of(const testing::TestParamInfo<Case>& info) {
  const Case& c = info.param;
  return c.architecture + (c.dtype == at::kFloat ? "_float32_" : "_bfloat16_") + (c.tied ? "tied_" : "untied_") +
         std::to_string(c.size) + (c.sequence_parallel ? "_rows" : "");
}

// The results of a forward and a backward. embedded_TE and dembedded_TE are what the rank keeps of the residual stream.
struct Pass {
  Tensor embedded_TE, normed_TE, logits_RV, own_logits_RV, dnormed_TE, dembedded_TE;
  std::map<std::string, Tensor> gradients;  // by packed name
};

class TensorParallelTest : public testing::TestWithParam<Case> {
 protected:
  TensorParallelTest() : config_(config_of(GetParam())), store_(build_layout(config_), GetParam().dtype) {
    draw_weights(store_, config_.initializer_range, kRanksSeed);
    set_tokens(kTokens);
  }
  // Sets the number of tokens in the batch of run().
  void set_tokens(int64_t num_tokens) {
    device::TestDraw draw(kRanksSeed);
    ids_T_ = device::to_tensor(draw.ids(num_tokens, 0, static_cast<int32_t>(config_.vocab) - 1));
    dlogits_RV_ = draw.normal({num_tokens, config_.vocab}, at::kFloat);
  }

  // The parts of the vocabulary are unequal: 70 rows over two and four ranks.
  static ModelConfig config_of(const Case& c) {
    ModelConfig config = small_config(/*num_layers=*/2, c.architecture);
    config.num_heads = 8;
    config.num_kv_heads = 4;
    config.mlp = 96;
    config.tied_embeddings = c.tied;
    return config;
  }
  int size() const { return GetParam().size; }
  ModelConfig part(int rank, bool sequence_parallel) const {
    return shard_of(config_, {.rank = rank, .size = size(), .sequence_parallel = sequence_parallel});
  }
  ModelConfig part(int rank) const { return part(rank, GetParam().sequence_parallel); }
  // Returns the columns of the vocabulary that a rank has.
  static Tensor columns_of(const Tensor& all, const ModelConfig& part) {
    const VocabRows rows = vocab_rows(part);
    return all.narrow(1, rows.begin, rows.count()).contiguous();
  }
  // Returns what a rank keeps of all rows.
  Tensor kept(const Tensor& all, int rank, bool sequence_parallel) const {
    if (!sequence_parallel) return all;
    const int64_t begin = all.size(0) * rank / size(), end = all.size(0) * (rank + 1) / size();
    return all.narrow(0, begin, end - begin);
  }

  // `wants` tells whether the gradient of a tensor is wanted.
  Pass run(
      Model& model,
      const std::function<bool(const std::string&)>& wants = [](const std::string&) { return true; }) const {
    Pass pass;
    const weights::Layout layout = build_layout(model.config());
    FunctionSink sink([&](const std::string& name) -> GradientTarget {
      if (!wants(name)) return {};
      Tensor& gradient = pass.gradients[name];
      if (gradient.defined()) return {.memory = gradient, .use = device::GradientUse::kAdd};
      gradient = at::full(layout.find(name).shape, std::numeric_limits<float>::quiet_NaN(), at::kFloat);
      return {.memory = gradient, .use = device::GradientUse::kSet};
    });
    model.set_gradient_sink(&sink);
    const int64_t num_tokens = ids_T_.size(0);
    SequenceAttention attention(model.ops(), model.config(), num_tokens, model.dtype());
    pass.embedded_TE = model.embed(ids_T_).set_requires_grad(true);
    Tensor hidden_TE = pass.embedded_TE;
    for (int64_t layer = 0; layer < config_.num_layers; ++layer)
      hidden_TE = model.block(layer, hidden_TE, int32_range(0, num_tokens), attention);
    const Tensor normed_TE = model.final_norm(hidden_TE, num_tokens);
    pass.normed_TE = normed_TE.detach();
    pass.logits_RV = model.head(pass.normed_TE);
    pass.own_logits_RV = model.own_logits(pass.logits_RV);
    pass.dnormed_TE = model.head_backward(columns_of(dlogits_RV_, model.config()), pass.normed_TE);
    pass.dembedded_TE = torch::autograd::grad({normed_TE}, {pass.embedded_TE}, {pass.dnormed_TE})[0];
    model.embed_backward(pass.dembedded_TE, ids_T_);
    model.set_gradient_sink(nullptr);
    return pass;
  }

  // Calls f(model, rank) on all ranks.
  template <typename F>
  auto on_ranks(F f) const {
    return on_ranks(f, GetParam().sequence_parallel);
  }
  template <typename F>
  auto on_ranks(F f, bool sequence_parallel) const {
    return device::on_thread_ranks(size(), [&](device::Communicator& ranks) {
      const std::unique_ptr<device::Ops> ops = device::make_cpu_ops("auto", 1);
      const ModelConfig config = part(ranks.rank(), sequence_parallel);
      const weights::WeightStore store = part_of_store(store_, config);
      return f(*make_model(config, store.view(), *ops, ranks), ranks.rank());
    });
  }

  // Runs with whole weights; sums are split as the ranks split them, and added up in that order.
  Pass run_in_one_process(const std::vector<int>& order) const {
    const SplitOps ops(*ops_, store_, config_, order, GetParam().sequence_parallel);
    return run(*make_model(config_, store_.view(), ops));
  }
  std::vector<int> order_of_ranks() const {
    std::vector<int> order(static_cast<size_t>(size()));
    std::iota(order.begin(), order.end(), 0);
    return order;
  }

  const ModelConfig config_;
  weights::WeightStore store_;
  std::unique_ptr<device::Ops> ops_ = device::make_cpu_ops("auto", 1);
  Tensor ids_T_, dlogits_RV_;
};

INSTANTIATE_TEST_SUITE_P(Models, TensorParallelTest,
                         testing::ValuesIn(cases({at::kFloat, at::kBFloat16}, {2, 4}, {false, true})), name_of);

TEST_P(TensorParallelTest, ForwardAndBackwardAreThoseOfOneProcessThatAddsInTheirOrder) {
  const bool sequence_parallel = GetParam().sequence_parallel;
  const Pass want = run_in_one_process(order_of_ranks());
  const std::vector<Pass> passes = on_ranks([&](Model& model, int /*rank*/) { return run(model); });
  for (int rank = 0; rank < size(); ++rank) {
    SCOPED_TRACE(testing::Message() << "rank " << rank << "; seed " << kRanksSeed);
    const Pass& got = passes[static_cast<size_t>(rank)];
    EXPECT_TRUE(same_bits(got.embedded_TE, kept(want.embedded_TE, rank, sequence_parallel))) << "embedded tokens";
    EXPECT_TRUE(same_bits(got.normed_TE, want.normed_TE)) << "hidden states";
    EXPECT_TRUE(same_bits(got.logits_RV, columns_of(want.logits_RV, part(rank)))) << "logits";
    EXPECT_TRUE(same_bits(got.own_logits_RV, kept(want.logits_RV, rank, /*sequence_parallel=*/true))) << "own logits";
    EXPECT_TRUE(same_bits(got.dnormed_TE, want.dnormed_TE)) << "gradient of the head's input";
    EXPECT_TRUE(same_bits(got.dembedded_TE, kept(want.dembedded_TE, rank, sequence_parallel)))
        << "gradient of the first block's input";
    const weights::Layout layout = build_layout(part(rank));
    EXPECT_EQ(got.gradients.size(), layout.tensors.size());
    for (const weights::PackedTensor& packed : layout.tensors) {
      const Tensor of_part = part_of(want.gradients.at(packed.name), store_.layout().find(packed.name), packed);
      EXPECT_TRUE(same_bits(got.gradients.at(packed.name), of_part)) << "gradient of " << packed.name;
    }
  }
}

// Shows that the comparison above tells one order of a sum from another. A sum of two has one value whatever the order,
// and rounding to bfloat16 hides most differences, so there are four ranks and float32.
class TensorParallelOrderTest : public TensorParallelTest {};

INSTANTIATE_TEST_SUITE_P(Models, TensorParallelOrderTest, testing::ValuesIn(cases({at::kFloat}, {4})), name_of);

TEST_P(TensorParallelOrderTest, AnotherOrderOfTheSumsIsNoticed) {
  const std::vector<int> order = order_of_ranks();
  const Pass in_order = run_in_one_process(order), reversed = run_in_one_process({order.rbegin(), order.rend()});
  EXPECT_FALSE(same_bits(in_order.normed_TE, reversed.normed_TE)) << "seed " << kRanksSeed;
  EXPECT_FALSE(same_bits(in_order.dembedded_TE, reversed.dembedded_TE)) << "seed " << kRanksSeed;
}

// A row's bits do not depend on its batch: a sequence gives the same token by token, in pieces, and at once.
TEST_P(TensorParallelTest, RowsAreTheSameAloneAndInBatches) {
  const auto forward = [&](Model& model, int64_t rows_at_once) {
    const c10::NoGradGuard no_graph;
    SequenceAttention attention(model.ops(), model.config(), kTokens, model.dtype());
    std::vector<Tensor> hidden, logits;
    for (int64_t begin = 0; begin < kTokens; begin += rows_at_once) {
      const int64_t end = std::min(begin + rows_at_once, kTokens);
      hidden.push_back(forward_hidden(model, ids_T_.narrow(0, begin, end - begin), int32_range(begin, end), attention));
      logits.push_back(model.head(hidden.back()));
    }
    return std::pair(at::cat(hidden), at::cat(logits));
  };
  on_ranks([&](Model& model, int rank) {
    const auto [hidden, logits] = forward(model, kTokens);
    for (const int64_t rows_at_once : {1, 5}) {
      const auto [hidden_again, logits_again] = forward(model, rows_at_once);
      EXPECT_TRUE(same_bits(hidden_again, hidden)) << rows_at_once << " rows, rank " << rank << "; seed " << kRanksSeed;
      EXPECT_TRUE(same_bits(logits_again, logits)) << rows_at_once << " rows, rank " << rank << "; seed " << kRanksSeed;
    }
    return 0;
  });
}

// Returns the largest difference as a share of the largest number.
double difference(const Tensor& got, const Tensor& want) {
  const Tensor wide = want.detach().to(at::kDouble);
  return ((got.detach().to(at::kDouble) - wide).abs().max() / wide.abs().max()).item<double>();
}

TEST_P(TensorParallelTest, IsCloseToTheModelOfOneRank) {
  const Pass want = run(*make_model(config_, store_.view(), *ops_));
  const std::vector<Pass> passes = on_ranks([&](Model& model, int /*rank*/) { return run(model); });
  const double tolerance = GetParam().dtype == at::kFloat ? 2e-5 : 6e-2;
  for (int rank = 0; rank < size(); ++rank) {
    const Pass& got = passes[static_cast<size_t>(rank)];
    EXPECT_LE(difference(got.logits_RV, columns_of(want.logits_RV, part(rank))), tolerance) << "seed " << kRanksSeed;
    const Tensor dembedded_TE = kept(want.dembedded_TE, rank, GetParam().sequence_parallel);
    EXPECT_LE(difference(got.dembedded_TE, dembedded_TE), tolerance) << "seed " << kRanksSeed;
    for (const weights::PackedTensor& packed : build_layout(part(rank)).tensors) {
      const Tensor of_part = part_of(want.gradients.at(packed.name), store_.layout().find(packed.name), packed);
      EXPECT_LE(difference(got.gradients.at(packed.name), of_part), tolerance)
          << packed.name << "; seed " << kRanksSeed;
    }
  }
}

// Sharing rows changes no bit of a forward. The gradients of norms are added up in another order, the others are not.
class SequenceParallelTest : public TensorParallelTest {
 protected:
  static bool is_norm_of_stream(const std::string& name) {
    return name == "final_norm" || name.ends_with(".input_norm") || name.ends_with(".post_norm");
  }
  void expect_equal_but_for_norms() const {
    const auto pass = [&](Model& model, int /*rank*/) { return run(model); };
    const std::vector<Pass> whole = on_ranks(pass, false), cut = on_ranks(pass, true);
    for (int rank = 0; rank < size(); ++rank) {
      SCOPED_TRACE(testing::Message() << ids_T_.size(0) << " tokens, rank " << rank << "; seed " << kRanksSeed);
      const Pass &got = cut[static_cast<size_t>(rank)], &want = whole[static_cast<size_t>(rank)];
      EXPECT_TRUE(same_bits(got.embedded_TE, kept(want.embedded_TE, rank, true))) << "embedded tokens";
      EXPECT_TRUE(same_bits(got.normed_TE, want.normed_TE)) << "hidden states";
      EXPECT_TRUE(same_bits(got.logits_RV, want.logits_RV)) << "logits";
      EXPECT_TRUE(same_bits(got.dembedded_TE, kept(want.dembedded_TE, rank, true))) << "gradient of hidden states";
      ASSERT_EQ(got.gradients.size(), want.gradients.size());
      for (const auto& [name, gradient] : want.gradients) {
        if (is_norm_of_stream(name)) {
          EXPECT_LE(difference(got.gradients.at(name), gradient), 1e-6) << name;
          EXPECT_TRUE(same_bits(got.gradients.at(name), cut[0].gradients.at(name))) << name << " on all ranks";
        } else {
          EXPECT_TRUE(same_bits(got.gradients.at(name), gradient)) << name;
        }
      }
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Models, SequenceParallelTest, testing::ValuesIn(cases({at::kFloat, at::kBFloat16}, {2, 4})),
                         name_of);

TEST_P(SequenceParallelTest, ChangesTheGradientsOfNormsAlone) { expect_equal_but_for_norms(); }

TEST_P(SequenceParallelTest, ChangesNoMoreWhereThereAreFewerRowsThanRanks) {
  for (const int64_t num_tokens : {1, 3}) {
    set_tokens(num_tokens);
    expect_equal_but_for_norms();
  }
}

// Ranks that want no gradients make the calls that the others wait for.
TEST_P(TensorParallelTest, GradientsThatOneRankDoesNotWantAreThoseOfTheOthersAllTheSame) {
  const std::vector<Pass> all = on_ranks([&](Model& model, int /*rank*/) { return run(model); });
  const std::vector<Pass> some = on_ranks(
      [&](Model& model, int rank) { return run(model, [rank](const std::string& /*name*/) { return rank == 0; }); });
  EXPECT_EQ(some[1].gradients.size(), 0U);
  ASSERT_EQ(some[0].gradients.size(), all[0].gradients.size());
  for (const auto& [name, gradient] : all[0].gradients)
    EXPECT_TRUE(same_bits(some[0].gradients.at(name), gradient)) << name << "; seed " << kRanksSeed;
  EXPECT_TRUE(same_bits(some[1].dembedded_TE, all[1].dembedded_TE)) << "seed " << kRanksSeed;
}

TEST(TensorParallel, APartWithoutItsRanksIsABug) {
  const ModelConfig part = shard_of(small_config(), {.rank = 0, .size = 2});
  const weights::WeightStore store(build_layout(part), at::kFloat);
  const std::unique_ptr<device::Ops> ops = device::make_cpu_ops("auto", 1);
  EXPECT_THROW(make_model(part, store.view(), *ops), BugError);
  const auto others = device::thread_communicators(2);
  EXPECT_THROW(make_model(part, store.view(), *ops, *others[1]), BugError);
}

}  // namespace
}  // namespace tandem::model
