// Tests of Ops::sample(): what it writes and what it leaves alone, and tokens that go from one step into the next.
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <random>
#include <span>
#include <vector>

#include "device/draw.h"
#include "device/ops.h"
#include "device/ops_aten.h"
#include "device/sampler.h"

namespace tandem::device {
namespace {

struct Drawn {
  Tensor tokens, logprobs, behaviors;
};

Drawn sample(const Ops& ops, const Tensor& logits, const std::vector<Draw>& draws) {
  const auto n = static_cast<int64_t>(draws.size());
  const Drawn drawn{.tokens = at::full({n}, 77, at::TensorOptions(at::kInt)),
                    .logprobs = at::full({n}, 77.0, at::TensorOptions(at::kFloat)),
                    .behaviors = at::full({n}, 77.0, at::TensorOptions(at::kFloat))};
  const Tensor bytes = at::from_blob(const_cast<Draw*>(draws.data()), {n * static_cast<int64_t>(sizeof(Draw))},
                                     at::TensorOptions(at::kByte));
  ops.sample(logits, bytes, drawn.tokens, drawn.logprobs, drawn.behaviors);
  return drawn;
}

// Returns draws from rows in any order, some twice, some not at all, of every kind; some draw nothing.
std::vector<Draw> random_draws(uint32_t seed, int64_t count, int64_t num_rows) {
  std::mt19937 random(seed);
  std::vector<Draw> draws;
  for (int64_t i = 0; i < count; ++i) {
    Draw draw;
    draw.seed = seed;
    draw.sample_id = random() % 50;
    draw.position = static_cast<int32_t>(random() % 100);
    draw.row = static_cast<int32_t>(i % num_rows);
    const double temperatures[] = {1.0, 1.0, 0.7, 0.0};
    draw.temperature = temperatures[random() % 4];
    if (random() % 4 == 0) draw.top_p = 0.8;
    if (random() % 4 == 0) draw.top_k = 5;
    if (random() % 4 == 0) draw.log_min_p = -2.0;
    if (random() % 3 == 0) draw.row = static_cast<int32_t>(random() % static_cast<uint64_t>(num_rows));
    if (random() % 5 == 0) draw.row = -1;
    draws.push_back(draw);
  }
  return draws;
}

class SampleTest : public testing::TestWithParam<std::string> {
 protected:
  const std::unique_ptr<Ops> ops_ = GetParam() == "aten" ? make_aten_ops(1) : make_cpu_ops(GetParam(), 2);
};

INSTANTIATE_TEST_SUITE_P(Backends, SampleTest, testing::Values("auto", "scalar", "aten"),
                         [](const auto& info) { return info.param; });

TEST_P(SampleTest, DrawsWhatTheSamplerDrawsAndGivesThePolicysLogprobs) {
  for (uint32_t seed = 1; seed <= 10; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const int64_t num_rows = 1 + seed * 3, vocab = 100 * seed;
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0.0F, 2.0F);
    const Tensor logits = at::empty({num_rows, vocab}, at::kFloat);
    for (int64_t i = 0; i < logits.numel(); ++i) logits.mutable_data_ptr<float>()[i] = normal(random);
    const std::vector<Draw> draws = random_draws(seed, 40, num_rows);
    const Drawn drawn = sample(*ops_, logits, draws);
    Sampler sampler;
    for (size_t i = 0; i < draws.size(); ++i) {
      SCOPED_TRACE(testing::Message() << "draw " << i << " from row " << draws[i].row);
      const auto at = static_cast<int64_t>(i);
      const int32_t token = drawn.tokens.const_data_ptr<int32_t>()[at];
      const float logprob = drawn.logprobs.const_data_ptr<float>()[at];
      const float behavior = drawn.behaviors.const_data_ptr<float>()[at];
      if (draws[i].row < 0) {
        EXPECT_TRUE(token == 77 && logprob == 77.0F && behavior == 77.0F);
        continue;
      }
      const Tensor row = logits.narrow(0, draws[i].row, 1);
      const SampledToken expected = sampler.draw({row.const_data_ptr<float>(), static_cast<size_t>(vocab)}, draws[i]);
      EXPECT_EQ(token, expected.token);
      EXPECT_EQ(behavior, expected.behavior_logprob);
      const Tensor logp = at::empty({1}, at::kFloat), lse = at::empty({1}, at::kFloat);
      ops_->logprob(row, drawn.tokens.narrow(0, at, 1), draws[i].temperature == 0.0 ? 1.0 : draws[i].temperature, logp,
                    Tensor(), lse);
      EXPECT_EQ(logprob, logp.const_data_ptr<float>()[0]);
    }
  }
}

TEST_P(SampleTest, SaysWhichRowsAreNotFinite) {
  Tensor logits = at::full({3, 50}, 1.0, at::TensorOptions(at::kFloat));
  logits.mutable_data_ptr<float>()[50 + 7] = std::numeric_limits<float>::quiet_NaN();
  std::vector<Draw> draws(3);
  for (int32_t i = 0; i < 3; ++i) draws[static_cast<size_t>(i)].row = i;
  const Drawn drawn = sample(*ops_, logits, draws);
  const auto* token = drawn.tokens.const_data_ptr<int32_t>();
  EXPECT_GE(token[0], 0);
  EXPECT_EQ(token[1], -1);
  EXPECT_GE(token[2], 0);
}

TEST_P(SampleTest, TakesTokensOfTheStepBefore) {
  const Tensor ids = at::tensor({5, -1, 0, -3, -2, 9, -1}, at::kInt);
  ops_->take_drawn(ids, at::tensor({11, -1, 13}, at::kInt));
  EXPECT_TRUE(ids.equal(at::tensor({5, 11, 0, 13, 0, 9, 11}, at::kInt))) << "a row that was not finite gives 0";
}

TEST_P(SampleTest, FetchesWhatATensorHoldsNow) {
  const Tensor x = at::tensor({1, 2, 3}, at::kInt);
  const auto fetch = ops_->fetch(x);
  x.fill_(0);
  EXPECT_TRUE(fetch->wait().equal(at::tensor({1, 2, 3}, at::kInt)));
  ops_->send(at::tensor({7, 8, 9}, at::kInt), x);
  EXPECT_TRUE(x.equal(at::tensor({7, 8, 9}, at::kInt)));
}

TEST_P(SampleTest, ReplaysWhatItRecorded) {
  const Tensor x = at::tensor({1, 2, 3}, at::kInt), y = at::full({3}, 0, at::TensorOptions(at::kInt));
  const auto recording = ops_->record([&] { y.add_(x); });
  EXPECT_TRUE(y.equal(at::tensor({0, 0, 0}, at::kInt))) << "recording runs nothing";
  recording->replay();
  x.mul_(10);
  recording->replay();
  EXPECT_TRUE(y.equal(at::tensor({11, 22, 33}, at::kInt)));
}

// Rows that fill a batch up change nothing for the others, and their keys and values go nowhere.
TEST_P(SampleTest, RowsThatFillABatchUpAreNotSeen) {
  constexpr int64_t kRows = 5, kPadded = 8, kHeads = 4, kKvHeads = 2, kHeadDim = 16, kBlocks = 4;
  at::manual_seed(3);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const Tensor q = at::randn({kPadded, kHeads, kHeadDim}).to(dtype);
    const Tensor k = at::randn({kPadded, kKvHeads, kHeadDim}).to(dtype);
    const Tensor v = at::randn({kPadded, kKvHeads, kHeadDim}).to(dtype);
    const Tensor tokens = at::arange(kPadded, at::TensorOptions(at::kInt));
    const Tensor positions = at::tensor({0, 1, 2, 17, 18, 0, 0, 0}, at::kInt);
    // Sequence 0 has positions 0 to 2 in block 3; of sequence 1 the test reads only what is written here.
    const Tensor slots = at::tensor({48, 49, 50, 17, 18, -1, -1, -1}, at::kInt);
    const Tensor sequence_of_row = at::tensor({0, 0, 0, 1, 1, -1, -1, -1}, at::kInt);
    const Tensor table = at::tensor({3, 0, 0, 1}, at::kInt).view({2, 2});
    const auto attend = [&](int64_t rows, Tensor& cache) {
      cache = at::full({kBlocks, 2, kKvHeads, kHeadDim * kBlockTokens}, 0.25, at::TensorOptions(dtype));
      ops_->kv_append(cache, k.narrow(0, 0, rows), v.narrow(0, 0, rows), tokens.narrow(0, 0, rows),
                      slots.narrow(0, 0, rows));
      const AttentionRows batch{.sequence_of_row = sequence_of_row.narrow(0, 0, rows),
                                .row_position = positions.narrow(0, 0, rows),
                                .block_table = table,
                                .group_offsets = {}};
      return ops_->paged_attention(q.narrow(0, 0, rows), cache, ops_->prepare(batch), Tensor());
    };
    Tensor cache, padded_cache;
    const Tensor out = attend(kRows, cache), padded = attend(kPadded, padded_cache);
    EXPECT_TRUE(padded_cache.equal(cache));
    EXPECT_TRUE(padded.narrow(0, 0, kRows).equal(out));
  }
}

}  // namespace
}  // namespace tandem::device
