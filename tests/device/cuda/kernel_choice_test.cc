// Which kernels compute on which GPU, asked for the limits that CUDA's programming guide states.
#include "device/cuda/kernel_choice.h"

#include <gtest/gtest.h>

#include <string>

namespace tandem::device::cuda {
namespace {

constexpr int64_t kKiB = 1024;

GpuLimits limits(int64_t capability, int64_t block_kib, int64_t multiprocessors, int64_t multiprocessor_kib) {
  return {.capability = capability,
          .shared_bytes = block_kib * kKiB,
          .multiprocessors = multiprocessors,
          .multiprocessor_shared_bytes = multiprocessor_kib * kKiB};
}

struct Gpu {
  std::string name;
  GpuLimits limits;
  bool has_warpgroups;
  int64_t most_one_token_terms;  // the longest sum, in steps of 128, that the kernel of a single token serves
  int64_t items[3];              // items of attention at once, for heads of 64, 128 and 256
};

const Gpu kGpus[] = {
    {"8.0, A100", limits(80, 163, 108, 164), false, 50688, {216, 216, 216}},
    {"8.6, A10", limits(86, 99, 72, 100), false, 17920, {72, 72, 72}},
    {"8.9, L40S", limits(89, 99, 142, 100), false, 17920, {142, 142, 142}},
    {"9.0, H200", limits(90, 227, 132, 228), true, 83456, {396, 396, 264}},
    {"10.0, B200", limits(100, 227, 148, 228), false, 83456, {444, 444, 296}},
    {"12.0, RTX 5090", limits(120, 99, 170, 100), false, 17920, {170, 170, 170}},
    {"a GPU that does not answer", {}, false, 0, {1, 1, 1}},
};

TEST(KernelChoice, EveryGpuHasRoomForTheKernelsWithoutAChoice) {
  for (int64_t head_dim = 8; supports_head_dim(head_dim); head_dim += 8) {
    EXPECT_LE(attention_shared_bytes(head_dim), kLeastSharedBytes) << "head dim " << head_dim;
  }
  for (const ExpertsTiling tiling : {ExpertsTiling::kFewPlaces, ExpertsTiling::kManyPlaces}) {
    EXPECT_LE(experts_shared_bytes(tiling, 1 << 20), kLeastSharedBytes);
  }
  for (const Gpu& gpu : kGpus) {
    if (gpu.limits.capability == 0) continue;
    EXPECT_GE(gpu.limits.shared_bytes, kLeastSharedBytes) << gpu.name;
  }
}

TEST(KernelChoice, KernelsOfWarpgroupsNeedCapability90AndTheirSharedMemory) {
  for (const Gpu& gpu : kGpus) {
    SCOPED_TRACE(gpu.name);
    for (const int64_t head_dim : {32, 64, 80, 96, 128}) {
      EXPECT_EQ(runs_large_attention(gpu.limits, head_dim), gpu.has_warpgroups) << "head dim " << head_dim;
    }
    EXPECT_FALSE(runs_large_attention(gpu.limits, 256)) << "its tiles would take 450 KiB";
    for (const int64_t head_dim : {8, 64, 80, 128, 136, 256}) {
      EXPECT_EQ(runs_attention_grad(gpu.limits, head_dim), gpu.has_warpgroups) << "head dim " << head_dim;
    }
    EXPECT_FALSE(runs_attention_grad(gpu.limits, 84)) << "rows that are no multiple of 16 bytes";
    EXPECT_EQ(runs_experts_grad_weight(gpu.limits), gpu.has_warpgroups);
    EXPECT_EQ(runs_few_rows(gpu.limits), gpu.has_warpgroups);
    EXPECT_EQ(runs_some_rows(gpu.limits), gpu.has_warpgroups);
  }
  const GpuLimits cut = limits(90, 200, 132, 228);
  EXPECT_FALSE(runs_large_attention(cut, 128));
  EXPECT_TRUE(runs_large_attention(cut, 64));
  EXPECT_FALSE(runs_attention_grad(cut, 128));
  EXPECT_TRUE(runs_attention_grad(cut, 64));
  EXPECT_FALSE(runs_experts_grad_weight(limits(90, 192, 132, 228)));
  EXPECT_FALSE(runs_few_rows(limits(90, 152, 132, 228)));
  EXPECT_FALSE(runs_some_rows(limits(90, 191, 132, 228)));
}

TEST(KernelChoice, FewItemsHaveAMultiprocessorForEachOfFourParts) {
  for (const Gpu& gpu : kGpus) {
    SCOPED_TRACE(gpu.name);
    for (const int64_t head_dim : {32, 64, 80, 128, 256}) {
      EXPECT_EQ(runs_few_attention(gpu.limits, head_dim, 1), gpu.has_warpgroups) << "head dim " << head_dim;
    }
    EXPECT_FALSE(runs_few_attention(gpu.limits, 128, 1000));
  }
  const GpuLimits h200 = limits(90, 227, 132, 228);
  EXPECT_TRUE(runs_few_attention(h200, 128, 33));
  EXPECT_FALSE(runs_few_attention(h200, 128, 34));
  // The product behind it has its own memory beside a block of it.
  constexpr int64_t kReserved = 1024, kBarriersOfProduct = 3072;
  EXPECT_LE(few_attention_shared_bytes(128) + kFewRowsSharedBytes + kBarriersOfProduct + 2 * kReserved, 228 * kKiB);
}

TEST(KernelChoice, AttentionFillsAsManyBlocksAsFit) {
  for (const Gpu& gpu : kGpus) {
    SCOPED_TRACE(gpu.name);
    EXPECT_EQ(attention_items_at_once(gpu.limits, 64), gpu.items[0]);
    EXPECT_EQ(attention_items_at_once(gpu.limits, 96), gpu.items[1]);
    EXPECT_EQ(attention_items_at_once(gpu.limits, 256), gpu.items[2]);
  }
}

TEST(KernelChoice, ASingleTokensRowMayBeTooLongForSharedMemory) {
  for (const Gpu& gpu : kGpus) {
    SCOPED_TRACE(gpu.name);
    const auto tiling_of = [&](int64_t K) {
      return experts_tiling({.num_experts = 128, .num_places = 8, .num_chosen = 8, .K = K}, gpu.limits);
    };
    const int64_t most = gpu.most_one_token_terms;
    EXPECT_EQ(tiling_of(most + kOneTokenDepth), ExpertsTiling::kFewPlaces);
    if (most == 0) continue;
    EXPECT_EQ(tiling_of(most), ExpertsTiling::kOneToken);
  }
}

TEST(KernelChoice, TilingsFollowTheNumberOfPlaces) {
  const GpuLimits gpu = limits(80, 163, 108, 164);
  ExpertsSizes sizes = {.num_experts = 128, .num_places = 8, .num_chosen = 8, .K = 2048};
  EXPECT_EQ(experts_tiling(sizes, gpu), ExpertsTiling::kOneToken);
  sizes.transposed = true;
  EXPECT_EQ(experts_tiling(sizes, gpu), ExpertsTiling::kFewPlaces) << "its weights lie the other way";
  sizes = {.num_experts = 128, .num_places = 8, .num_chosen = 8, .K = 2048 + 64};
  EXPECT_EQ(experts_tiling(sizes, gpu), ExpertsTiling::kFewPlaces) << "its sums are no whole pieces";
  sizes.num_places = 1024;
  EXPECT_EQ(experts_tiling(sizes, gpu), ExpertsTiling::kFewPlaces);
  sizes.num_places = 1032;
  EXPECT_EQ(experts_tiling(sizes, gpu), ExpertsTiling::kManyPlaces);
}

// The bits of a row follow from the step, so it must not follow from the GPU; and the shared memory follows from the
// step.
TEST(KernelChoice, HeadsHaveTheirColumnsAndSteps) {
  struct Case {
    int64_t head_dim, width, step, shared_bytes;
  };
  for (const Case& c : {Case{8, 64, 256, 66 * kKiB},
                        {32, 64, 256, 66 * kKiB},
                        {64, 64, 256, 66 * kKiB},
                        {80, 128, 128, 68 * kKiB},
                        {96, 128, 128, 68 * kKiB},
                        {128, 128, 128, 68 * kKiB},
                        {136, 256, 64, 72 * kKiB + 512},
                        {256, 256, 64, 72 * kKiB + 512}}) {
    SCOPED_TRACE("head dim " + std::to_string(c.head_dim));
    EXPECT_TRUE(supports_head_dim(c.head_dim));
    EXPECT_EQ(head_width(c.head_dim), c.width);
    EXPECT_EQ(attention_step(c.head_dim), c.step);
    EXPECT_EQ(attention_shared_bytes(c.head_dim), c.shared_bytes);
  }
  for (const int64_t head_dim : {0, 4, 20, 100, 260, 264}) EXPECT_FALSE(supports_head_dim(head_dim)) << head_dim;
}

}  // namespace
}  // namespace tandem::device::cuda
