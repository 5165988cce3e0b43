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
}

TEST(BenchWork, ADecodeStepReadsTheWeightsOnceAndTheKeysOfItsContext) {
  const model::ModelConfig config = bench_shape("qwen3-4b");
  const ModelWork work(config);
  EXPECT_EQ(work.kv_token_bytes(), 147456.0);
  EXPECT_EQ(work.forward_bytes(), 2.0 * 4'022'468'096);
  // 256 sequences at a mean context of 768: 8.04 GB and 29 GB, 8.8 ms at 4.2 TB/s.
  const Work step = work.decode_step(256, 768, 256, 1, kH200);
  EXPECT_DOUBLE_EQ(step.bytes, 2.0 * 4'022'468'096 + 256 * 768 * 147456.0);
  EXPECT_NEAR(step.limit_seconds, 8.8e-3, 0.05e-3);
  // Eight sequences read a prompt of 256 together, which saves 7/8 of its keys.
  const Work shared = work.decode_step(256, 768, 256, 8, kH200);
  EXPECT_DOUBLE_EQ(step.bytes - shared.bytes, 256 * 256 * 147456.0 * 7 / 8);
  // An untied table is looked up: one token's row of it is nothing next to the rest.
  const model::ModelConfig untied = bench_shape("qwen3-8b");
  EXPECT_EQ(ModelWork(untied).weight_bytes() - ModelWork(untied).forward_bytes(), 2.0 * 151936 * 4096);
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
