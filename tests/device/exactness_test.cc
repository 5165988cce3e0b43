// Tests of the exact backends' promise: in every forward operation a row's bits depend on that row alone. In random
// shapes and mixes, all rows together are compared, bit for bit, with each row alone, the rows permuted, the rows split
// in two, and two threads; a failure names the operation and the seed.
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>

#include "tests/device/draw.h"
#include "tests/device/paged_case.h"

namespace tandem::device {
namespace {

constexpr uint64_t kNumSeeds = 8;

// An operation on the rows named by an index [n] int32. It returns its results, one row for each of them.
using RowOperation = std::function<Tensor(const Ops& ops, const Tensor& rows)>;

Tensor range(int64_t begin, int64_t end) {
  reference::Ids ids;
  for (int64_t i = begin; i < end; ++i) ids.push_back(static_cast<int32_t>(i));
  return to_tensor(ids);
}

class ExactnessTest : public testing::TestWithParam<BackendCase> {
 protected:
  void SetUp() override {
    if (one_ == nullptr) GTEST_SKIP() << why_missing(GetParam().name);
  }

  void for_each_seed(const std::function<void(TestDraw&)>& body) {
    for (uint64_t seed = 0; seed < kNumSeeds && !HasFailure(); ++seed) {
      SCOPED_TRACE("seed " + std::to_string(seed));
      TestDraw draw(seed);
      body(draw);
    }
  }

  void expect_rows_alone_decide(const std::string& operation, TestDraw& draw, int64_t num_rows,
                                const RowOperation& run) {
    const Tensor all = run(*one_, range(0, num_rows));
    ASSERT_EQ(all.size(0), num_rows);
    EXPECT_TRUE(same_bits(run(*two_, range(0, num_rows)), all)) << operation << ": two threads give other bits";
    for (int64_t row = 0; row < num_rows; ++row) {
      ASSERT_TRUE(same_bits(run(*one_, range(row, row + 1)), all.narrow(0, row, 1)))
          << operation << ": row " << row << " of " << num_rows << " alone gives other bits";
    }
    const Tensor order = to_tensor(draw.permutation(num_rows));
    EXPECT_TRUE(same_bits(run(*two_, order), all.index_select(0, order))) << operation << ": permuted rows differ";
    const int64_t cut = draw.integer(0, num_rows);
    for (const auto& [begin, end] : {std::pair{int64_t{0}, cut}, {cut, num_rows}}) {
      if (begin == end) continue;
      EXPECT_TRUE(same_bits(run(*two_, range(begin, end)), all.narrow(0, begin, end - begin)))
          << operation << ": rows " << begin << " to " << end << " of " << num_rows << " differ by themselves";
    }
  }

  void expect_attention_rows_stand_alone(TestDraw& draw, const PagedCase& c, int64_t window = 0) {
    const int64_t H = c.attention.H, G = c.attention.G, K = c.attention.K;
    const int64_t T = c.num_tokens;
    const Tensor q = draw.normal({T, H, K}, dtype()), k = draw.normal({T, G, K}, dtype());
    const Tensor v = draw.normal({T, G, K}, dtype());
    std::vector<PagedCache> caches;
    for (const bool share : {true, true, false}) {
      caches.push_back(place(c, draw, dtype(), share));
      one_->kv_append(caches.back().kv_layer, k, v, caches.back().rows.kv_tokens, caches.back().rows.kv_slots);
    }
    // Each call takes the next placement, so every comparison is across placements too.
    size_t call = 0;
    const RowOperation run = [&](const Ops& ops, const Tensor& rows) {
      const PagedCache& cache = caches[call++ % caches.size()];
      const AttentionRows some{.sequence_of_row = cache.rows.sequence_of_row.index_select(0, rows),
                               .row_position = cache.rows.row_position.index_select(0, rows),
                               .block_table = cache.rows.block_table,
                               .group_offsets = {},
                               .window = window};
      const Tensor lse = at::empty({rows.size(0), H}, at::kFloat);
      const Tensor out = ops.paged_attention(q.index_select(0, rows), cache.kv_layer, some, lse);
      return at::cat({out.to(at::kFloat), lse.unsqueeze(-1)}, -1);
    };
    expect_rows_alone_decide("paged_attention", draw, T, run);
  }

  at::ScalarType dtype() const { return GetParam().dtype; }
  std::unique_ptr<Ops> one_ = make_backend(GetParam().name, 1), two_ = make_backend(GetParam().name, 2);
};

INSTANTIATE_TEST_SUITE_P(Backends, ExactnessTest, testing::ValuesIn(in_both_dtypes(and_modules(cpu_isas()))),
                         [](const auto& info) {
                           return info.param.name + (info.param.dtype == at::kFloat ? "_float32" : "_bfloat16");
                         });

TEST_P(ExactnessTest, LinearRowsStandAlone) {
  for_each_seed([&](TestDraw& draw) {
    const int64_t T = draw.integer(1, 70), K = draw.integer(1, 300), N = draw.integer(1, 200);
    const Tensor x = draw.normal({T, K}, dtype()), w = draw.normal({N, K}, dtype());
    for (const at::ScalarType out : {at::kFloat, dtype()}) {
      expect_rows_alone_decide(
          "linear " + std::to_string(K) + " to " + std::to_string(N), draw, T,
          [&](const Ops& ops, const Tensor& rows) { return ops.linear(x.index_select(0, rows), w, out); });
    }
    const Tensor residual = draw.normal({T, N}, dtype());
    expect_rows_alone_decide("linear_add", draw, T, [&](const Ops& ops, const Tensor& rows) {
      return ops.linear_add(x.index_select(0, rows), w, residual.index_select(0, rows));
    });
    // The result is a window of the columns of a larger one.
    const Tensor wide = draw.normal({T, N + 16}, dtype());
    expect_rows_alone_decide("linear_add_to", draw, T, [&](const Ops& ops, const Tensor& rows) {
      const Tensor y = wide.index_select(0, rows);
      ops.linear_add_to(x.index_select(0, rows), w, y.narrow(1, 8, N));
      return y;
    });
  });
}

// Some instruction sets multiply few rows by one kernel and many by another: both sides of that border have the same
// bits.
TEST_P(ExactnessTest, LinearRowsStandAloneAmongHundreds) {
  for_each_seed([&](TestDraw& draw) {
    const int64_t T = draw.integer(500, 700), K = 32 * draw.integer(1, 3), N = draw.integer(1, 70);
    const Tensor x = draw.normal({T, K}, dtype()), w = draw.normal({N, K}, dtype());
    expect_rows_alone_decide(
        "linear " + std::to_string(K) + " to " + std::to_string(N), draw, T,
        [&](const Ops& ops, const Tensor& rows) { return ops.linear(x.index_select(0, rows), w, dtype()); });
    const Tensor residual = draw.normal({T, N}, dtype());
    expect_rows_alone_decide("linear_add", draw, T, [&](const Ops& ops, const Tensor& rows) {
      return ops.linear_add(x.index_select(0, rows), w, residual.index_select(0, rows));
    });
  });
}

// A weight's rows stand alone too: a packed product gives what its slices give, so sharded and merged layouts agree.
TEST_P(ExactnessTest, LinearColumnsStandAlone) {
  for (const std::string& name : device_backends()) {
    if (GetParam().name == name)
      GTEST_SKIP()
          << "a library chooses its matrix product by the weight's size, so the promise is not made for this backend";
  }
  for_each_seed([&](TestDraw& draw) {
    const int64_t T = draw.integer(1, 20), K = draw.integer(1, 200), N = draw.integer(2, 150);
    const Tensor x = draw.normal({T, K}, dtype()), w = draw.normal({N, K}, dtype());
    const int64_t cut = draw.integer(1, N - 1);
    const Tensor halves = at::cat(
        {one_->linear(x, w.narrow(0, 0, cut), at::kFloat), one_->linear(x, w.narrow(0, cut, N - cut), at::kFloat)}, 1);
    EXPECT_TRUE(same_bits(two_->linear(x, w, at::kFloat), halves)) << "linear, cut at " << cut << " of " << N;
  });
}

TEST_P(ExactnessTest, RowwiseOperationsStandAlone) {
  for_each_seed([&](TestDraw& draw) {
    const int64_t T = draw.integer(1, 150), E = draw.integer(1, 200);
    const Tensor x = draw.normal({T, E}, dtype(), 0.1, 3.0), y = draw.normal({T, E}, dtype());
    const Tensor weight = draw.normal({E}, dtype(), 1.0), gate_up = draw.normal({T, 2 * E}, dtype(), 0.0, 3.0);
    const Tensor ids = to_tensor(draw.ids(T, 0, T - 1));
    using Rows = const Tensor&;
    expect_rows_alone_decide("add", draw, T, [&](const Ops& ops, Rows rows) {
      return ops.add(x.index_select(0, rows), y.index_select(0, rows));
    });
    expect_rows_alone_decide("add_bias", draw, T, [&](const Ops& ops, Rows rows) {
      const Tensor sum = x.index_select(0, rows);
      ops.add_bias(sum, weight);
      return sum;
    });
    expect_rows_alone_decide("rms_norm", draw, T, [&](const Ops& ops, Rows rows) {
      return ops.rms_norm(x.index_select(0, rows), weight, 1e-6);
    });
    expect_rows_alone_decide("silu_mul", draw, T,
                             [&](const Ops& ops, Rows rows) { return ops.silu_mul(gate_up.index_select(0, rows)); });
    expect_rows_alone_decide("gelu_mul", draw, T,
                             [&](const Ops& ops, Rows rows) { return ops.gelu_mul(gate_up.index_select(0, rows)); });
    expect_rows_alone_decide("rms_norm with an offset", draw, T, [&](const Ops& ops, Rows rows) {
      return ops.rms_norm(x.index_select(0, rows), weight, {1e-6, 1.0});
    });
    expect_rows_alone_decide("embedding", draw, T,
                             [&](const Ops& ops, Rows rows) { return ops.embedding(x, ids.index_select(0, rows)); });
    const int64_t first = draw.integer(0, T - 1);
    expect_rows_alone_decide("embedding_part", draw, T, [&](const Ops& ops, Rows rows) {
      return ops.embedding_part(x.narrow(0, first, T - first), first, ids.index_select(0, rows));
    });
    const Tensor part = draw.normal({T, E}, at::kFloat), other = draw.normal({T, E}, at::kFloat);
    expect_rows_alone_decide("sum_parts", draw, T, [&](const Ops& ops, Rows rows) {
      const Tensor sum = at::empty({rows.size(0), E}, dtype());
      ops.sum_parts({part.index_select(0, rows), other.index_select(0, rows)}, x.index_select(0, rows), sum);
      return sum;
    });
  });
}

TEST_P(ExactnessTest, QkNormRopeRowsStandAlone) {
  for_each_seed([&](TestDraw& draw) {
    const int64_t T = draw.integer(1, 90), G = draw.integer(1, 3), H = G * draw.integer(1, 3);
    const int64_t K = draw.choose<int64_t>({2, 32, 48, 64, 80, 96, 128, 256});
    const Tensor qkv = draw.normal({T, (H + 2 * G) * K}, dtype());
    const Tensor q_norm = draw.normal({K}, dtype(), 1.0), k_norm = draw.normal({K}, dtype(), 1.0);
    const Tensor positions = to_tensor(draw.ids(T, 0, 3000));
    expect_rows_alone_decide("qk_norm_rope", draw, T, [&](const Ops& ops, const Tensor& rows) {
      const Ops::Qkv split = ops.qk_norm_rope(qkv.index_select(0, rows), q_norm, k_norm,
                                              positions.index_select(0, rows), {H, G, K, 1e6, 1e-6});
      return at::cat({split.q_THK, split.k_TGK, split.v_TGK}, 1);
    });
  });
}

TEST_P(ExactnessTest, RopeRowsStandAlone) {
  for_each_seed([&](TestDraw& draw) {
    const int64_t T = draw.integer(1, 90), G = draw.integer(1, 3), H = G * draw.integer(1, 3);
    const int64_t K = draw.choose<int64_t>({2, 32, 48, 64, 80, 96, 128, 256});
    const Tensor qkv = draw.normal({T, (H + 2 * G) * K}, dtype());
    const Tensor positions = to_tensor(draw.ids(T, 0, 3000));
    Ops::QkvShape shape{H, G, K, 5e5, 0.0};
    if (draw.integer(0, 1) == 1) shape.rope_factors.assign(static_cast<size_t>(K / 2), 0.3F);
    expect_rows_alone_decide("rope", draw, T, [&](const Ops& ops, const Tensor& rows) {
      const Ops::Qkv split = ops.rope(qkv.index_select(0, rows), positions.index_select(0, rows), shape);
      return at::cat({split.q_THK, split.k_TGK, split.v_TGK}, 1);
    });
  });
}

TEST_P(ExactnessTest, LogprobRowsStandAlone) {
  for_each_seed([&](TestDraw& draw) {
    const int64_t R = draw.integer(1, 60), V = draw.integer(1, 700);
    const double temperature = draw.choose<double>({1.0, 0.7, 1.3});
    const Tensor logits = draw.normal({R, V}, at::kFloat, 0.0, 4.0);
    const Tensor targets = to_tensor(draw.ids(R, -1, V - 1));
    expect_rows_alone_decide("logprob", draw, R, [&](const Ops& ops, const Tensor& rows) {
      const Tensor result = at::empty({3, rows.size(0)}, at::kFloat);
      ops.logprob(logits.index_select(0, rows), targets.index_select(0, rows), temperature, result.select(0, 0),
                  result.select(0, 1), result.select(0, 2));
      return result.t().contiguous();
    });
  });
}

// Nor do the place of the keys, blocks that sequences share, and the contents past a sequence's end change anything.
TEST_P(ExactnessTest, AttentionRowsStandAloneWhereverTheirKeysLie) {
  for_each_seed([&](TestDraw& draw) {
    const int64_t G = draw.integer(1, 3), H = G * draw.integer(1, 4);
    const int64_t K = draw.choose<int64_t>({2, 32, 48, 64, 80, 96, 128, 256});
    expect_attention_rows_stand_alone(draw, draw_groups(draw, draw.integer(1, 3), H, G, K));
  });
}

TEST_P(ExactnessTest, AttentionRowsWithAWindowStandAlone) {
  const std::vector<int64_t> head_dims =
      is_module(GetParam().name) ? std::vector<int64_t>{20, 64, 80, 128, 256} : std::vector<int64_t>{2, 32, 80};
  for_each_seed([&](TestDraw& draw) {
    const int64_t G = draw.integer(1, 2), H = G * draw.integer(1, 4), K = draw.choose(head_dims);
    const PagedCase c = draw_groups(draw, draw.integer(1, 3), H, G, K);
    expect_attention_rows_stand_alone(draw, c, /*window=*/draw.integer(1, 40));
  });
}

// A GPU has kernels for most head sizes, each in more columns than some of them have, and one for runs of many rows,
// such as these prompts.
TEST_P(ExactnessTest, AttentionRowsStandAloneAmongHundredsOfKeys) {
  const std::vector<std::string> cpu = cpu_isas();
  const bool is_cpu = std::find(cpu.begin(), cpu.end(), GetParam().name) != cpu.end();
  for (const int64_t K : is_cpu ? std::vector<int64_t>{32} : std::vector<int64_t>{20, 32, 64, 80, 96, 128, 256}) {
    SCOPED_TRACE("head dim " + std::to_string(K));
    TestDraw draw(kNumSeeds);
    expect_attention_rows_stand_alone(draw, draw_groups(draw, 1, 4, 2, K, kLongPrompts));
  }
}

// The same with windows, of which a GPU's kernels walk the tiles that they touch: of 64 to 256 keys, in parts of a
// quarter. A float32 model has the operations of plain ATen there, which the tests of few keys ask.
TEST_P(ExactnessTest, AttentionRowsWithAWindowStandAloneAmongHundredsOfKeys) {
  if (is_module(GetParam().name) && dtype() == at::kFloat) GTEST_SKIP() << "asked where there are kernels";
  const std::vector<int64_t> head_dims =
      is_module(GetParam().name) ? std::vector<int64_t>{64, 80, 128, 256} : std::vector<int64_t>{32};
  for (const int64_t K : head_dims) {
    TestDraw draw(kNumSeeds);
    for (const int64_t window :
         {int64_t{1}, int64_t{64}, draw.integer(65, 127), int64_t{256}, draw.integer(257, 400)}) {
      SCOPED_TRACE(testing::Message() << "head dim " << K << ", window " << window);
      expect_attention_rows_stand_alone(draw, draw_groups(draw, 1, 4, 2, K, kLongPrompts), window);
    }
  }
}

// A token's row of a whole sparse MLP depends on that row alone: which experts it chooses, beside whom it stands at an
// expert, and the sum of its places. Batch mates crowd one expert, or leave all of a row's experts to it.
TEST_P(ExactnessTest, ExpertsLinearRowsStandAlone) {
  for_each_seed([&](TestDraw& draw) {
    // A GPU has kernels for more rows than a CPU does.
    const int64_t most = is_module(GetParam().name) ? 140 : 60;
    const int64_t T = draw.choose<int64_t>({2, 9, 40, most}), X = draw.choose<int64_t>({4, 16, 128});
    const int64_t E = draw.choose<int64_t>({64, 96, 128}), F = draw.choose<int64_t>({32, 40, 64});
    const RouteRule rule{.chosen = draw.integer(1, 4), .normalises = draw.integer(0, 1) == 1};
    const Tensor x = draw.normal({T, E}, dtype()), residual = draw.normal({T, E}, dtype());
    const Tensor gate_up = draw.normal({X * 2 * F, E}, dtype()), down = draw.normal({X * E, F}, dtype());
    const Tensor logits = draw.normal({T, X}, at::kFloat);
    auto* const data = logits.mutable_data_ptr<float>();
    const int64_t crowded = draw.integer(0, X - 1);
    for (int64_t t = 1; t < T; ++t) {
      if (draw.integer(0, 1) == 1) data[t * X + crowded] = 20.0F;
      if (draw.integer(0, 3) == 0) data[t * X + 1] = data[t * X];  // a tie, at the cut in some rows
    }
    // The experts are computed by three ranks, one share after the other.
    const auto sum_of_shares = [&](const Ops& ops, const Tensor& rows, const Routing& routing, const Tensor& added) {
      const Tensor y_PE = at::zeros({routing.num_places(), E}, rows.options());
      for (int64_t rank = 0; rank < 3; ++rank) {
        ops.results_of_experts(rows, gate_up, down, routing, experts_of_rank(X, rank, 3), y_PE);
      }
      return ops.sum_of_experts(y_PE, routing.weights_TC, routing, added, dtype());
    };
    for (const at::ScalarType part : {at::kFloat, dtype()}) {
      expect_rows_alone_decide("experts", draw, T, [&](const Ops& ops, const Tensor& rows) {
        const Routing routing = ops.route(logits.index_select(0, rows), rule);
        const Tensor added = part == dtype() ? residual.index_select(0, rows) : Tensor();
        const auto in_one = [&](bool keeps_gate_up) {
          return ops.mlp_of_experts(x.index_select(0, rows), gate_up, down, routing, added, part, keeps_gate_up);
        };
        const Ops::ExpertsMlp mlp = in_one(/*keeps_gate_up=*/true);
        const Ops::ExpertsMlp one_by_one =
            ops.Ops::mlp_of_experts(x.index_select(0, rows), gate_up, down, routing, added, part, true);
        EXPECT_TRUE(mlp.sum_TE.equal(one_by_one.sum_TE)) << "a sum of " << rows.size(0) << " tokens";
        EXPECT_TRUE(mlp.gate_up_P2F.equal(one_by_one.gate_up_P2F)) << "gate and up of " << rows.size(0) << " tokens";
        EXPECT_TRUE(mlp.sum_TE.equal(in_one(/*keeps_gate_up=*/false).sum_TE)) << rows.size(0) << " tokens";
        if (part == dtype()) {
          EXPECT_TRUE(mlp.sum_TE.equal(sum_of_shares(ops, x.index_select(0, rows), routing, added)));
        }
        return at::cat({routing.ids_TC.to(at::kFloat), routing.weights_TC, mlp.sum_TE.to(at::kFloat)}, 1);
      });
    }
  });
}

}  // namespace
}  // namespace tandem::device
