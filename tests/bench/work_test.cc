// Checks what a step must move and compute, against figures worked out by hand for published shapes.
#include "bench/work.h"

#include <gtest/gtest.h>

#include "bench/shapes.h"
#include "config/bench_config.h"

namespace tandem::bench {
namespace {

constexpr Ceilings kH200 = {.copy_bytes_per_s = 4.2e12, .read_bytes_per_s = 4.0e12, .flops_per_s = 763e12};

TEST(BenchShapes, EveryShapeOfTheFlagIsOne) {
  for (const std::string_view name : config::kBenchShapes) {
    const model::ModelConfig config = bench_shape(name);
    EXPECT_EQ(config.num_heads % config.num_kv_heads, 0) << name;
    EXPECT_GT(config.num_parameters(), 1'000'000) << name;
  }
  // The count is the published one; a tied table is counted once.
  EXPECT_EQ(bench_shape("qwen3-4b").num_parameters(), 4'022'468'096);
  EXPECT_EQ(bench_shape("qwen3-1.7b").num_parameters(), 1'720'574'976);
  EXPECT_EQ(bench_shape("qwen3-0.6b").num_parameters(), 596'049'920);
  EXPECT_EQ(bench_shape("qwen3-8b").num_parameters(), 8'190'735'360);
  EXPECT_EQ(bench_shape("qwen3-30b-a3b").num_parameters(), 30'532'122'624);
  EXPECT_EQ(bench_shape("moe-0.5b").num_parameters(), 646'736'384);
}

TEST(BenchWork, ADecodeStepReadsTheWeightsOnceAndTheKeysOfItsContext) {
  const model::ModelConfig config = bench_shape("qwen3-4b");
  const ModelWork work(config);
  EXPECT_EQ(work.kv_token_bytes(), 147456.0);
  EXPECT_EQ(work.forward_bytes(1), 2.0 * 4'022'468'096);
  // 256 sequences at a mean context of 768: 8.04 GB and 29 GB, 8.8 ms at 4.2 TB/s.
  const Work step = work.decode_step(256, 768, 256, 1, kH200);
  EXPECT_DOUBLE_EQ(step.bytes, 2.0 * 4'022'468'096 + 256 * 768 * 147456.0);
  EXPECT_NEAR(step.limit_seconds, 8.8e-3, 0.05e-3);
  // Eight sequences read a prompt of 256 together, which saves 7/8 of its keys.
  const Work shared = work.decode_step(256, 768, 256, 8, kH200);
  EXPECT_DOUBLE_EQ(step.bytes - shared.bytes, 256 * 256 * 147456.0 * 7 / 8);
  // An untied table is looked up: one token's row of it is nothing next to the rest.
  const model::ModelConfig untied = bench_shape("qwen3-8b");
  EXPECT_EQ(ModelWork(untied).weight_bytes() - ModelWork(untied).forward_bytes(1), 2.0 * 151936 * 4096);
}

// With 8 of 128 experts for each token, 32 tokens meet 111.8 of them where all are as likely.
TEST(BenchWork, AStepReadsTheExpertsThatItsTokensMeet) {
  const model::ModelConfig config = bench_shape("qwen3-30b-a3b");
  const ModelWork work(config);
  const double expert = 48.0 * 3 * 768 * 2048 * 2, others = 2.0 * (30'532'122'624.0 - 151936.0 * 2048) - 128 * expert;
  EXPECT_NEAR(work.forward_bytes(1), others + 8 * expert, 1);
  EXPECT_NEAR(work.forward_bytes(32), others + 111.77 * expert, 0.01 * expert);
  EXPECT_NEAR(work.forward_bytes(1e6), others + 128 * expert, 1);
  EXPECT_DOUBLE_EQ(work.decode_step(32, 0, 0, 1, kH200).bytes, work.forward_bytes(32));
  // In NF4 a weight has 4 bits and each 64 of them a byte more; the router and the two tables stay in bfloat16.
  model::ModelConfig nf4 = config;
  nf4.quantisation = device::Quantisation::kNf4;
  const ModelWork quantised(nf4);
  EXPECT_NEAR(quantised.forward_bytes(1e6) - quantised.forward_bytes(1), 120 * expert / 4 * (1 + 1.0 / 32),
              0.2 * expert);
}

TEST(BenchWork, TrainingIsBoundByItsOperationsAndTheOptimizerByItsBytes) {
  const model::ModelConfig config = bench_shape("qwen3-4b");
  const ModelWork work(config);
  const Work training = work.training(1e15, 1, kH200);
  EXPECT_DOUBLE_EQ(training.flops, 3e15);
  EXPECT_DOUBLE_EQ(training.limit_seconds, 3e15 / 763e12);
  // The optimizer reads the gradient twice, master and two moments both ways, and writes the bfloat16 weight.
  EXPECT_DOUBLE_EQ(work.optimizer(kH200).bytes, 34.0 * 4'022'468'096);
  model::ModelConfig float32 = config;
  float32.dtype = model::Dtype::kFloat32;
  EXPECT_DOUBLE_EQ(ModelWork(float32).optimizer(kH200).bytes, 32.0 * 4'022'468'096);
}

TEST(BenchWork, LimitsOfPartsThatFollowEachOtherAddUp) {
  const Work moves(4.2e12, 0, kH200), computes(0, 763e12, kH200);
  EXPECT_DOUBLE_EQ((moves + computes.times(3)).limit_seconds, 4.0);
  EXPECT_DOUBLE_EQ(Work(4.2e12, 763e12, kH200).limit_seconds, 1.0);
}

}  // namespace
}  // namespace tandem::bench
