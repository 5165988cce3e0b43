// Tests of the facts that each backend states of itself, and of how a text of --device finds it.
#include "device/backends.h"

#include <gtest/gtest.h>

#include <set>

#include "tandem/error.h"

namespace tandem::device {
namespace {

constexpr OpsShape kShape = {.hidden = 1024,
                             .q_width = 2048,
                             .kv_width = 1024,
                             .mlp = 3072,
                             .vocab = 151936,
                             .num_heads = 16,
                             .num_kv_heads = 8,
                             .head_dim = 128};

TEST(Backends, HaveARowThatIsWhole) {
  std::set<std::string> names;
  for (const BackendRow& row : backends()) {
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
    EXPECT_EQ(find_backend(row.name), &row);
    EXPECT_EQ(&footprint_of(row.name), row.footprint);
    EXPECT_STRNE(row.communicator, "") << row.name;
    EXPECT_STRNE(row.moves_tensors, "") << row.name;
    ASSERT_NE(row.footprint->plan_ops, nullptr) << row.name;
    // A module says what to do if it is missing, and which variable numbers its devices.
    EXPECT_EQ(*row.remedy != 0, row.is_module()) << row.name;
    EXPECT_EQ(*row.visible_devices != 0, row.is_module()) << row.name;
    EXPECT_EQ(row.footprint->context_bytes + row.footprint->library_bytes > 0, row.is_module()) << row.name;
  }
}

TEST(Backends, AreFoundByTheTextOfADevice) {
  EXPECT_EQ(device_choices(), "cpu, cuda, cuda:N, npu or npu:N");
  EXPECT_EQ(device_help(), "cpu, cuda, cuda:N for GPU N, npu, or npu:N for NPU N");
  EXPECT_EQ(module_names(), "cuda, npu");
  EXPECT_EQ(&footprint_of("cuda:3"), find_backend("cuda")->footprint);
  EXPECT_EQ(find_backend("tpu"), nullptr);
  EXPECT_THROW(footprint_of("tpu"), UserError) << "it is nobody's, above all not that of a GPU";
}

TEST(Backends, OnlyTheCpuSharesTheHostsMemory) {
  for (const BackendRow& row : backends()) {
    EXPECT_EQ(row.footprint->shares_host_memory, std::string(row.name) == "cpu") << row.name;
  }
}

// A step is recorded where attention is a kernel: in bfloat16, for the head sizes that it has.
TEST(Backends, StateWhichHeadsHaveAKernel) {
  const auto has_kernel = [](const char* device, int64_t head_dim, int64_t element_bytes) {
    OpsShape shape = kShape;
    shape.head_dim = head_dim;
    return footprint_of(device).plan_ops(shape, element_bytes)->has_attention_kernel();
  };
  for (const int64_t head_dim : {16, 20, 64, 96, 128, 256, 264}) {
    EXPECT_EQ(has_kernel("cuda", head_dim, 2), head_dim != 20 && head_dim != 264) << head_dim;
    EXPECT_FALSE(has_kernel("cuda", head_dim, 4)) << head_dim;
    EXPECT_FALSE(has_kernel("cpu", head_dim, 2)) << head_dim;
    EXPECT_FALSE(has_kernel("npu", head_dim, 2)) << head_dim;
  }
}

TEST(Backends, StateWhichExpertsAreRecorded) {
  const auto records = [](const char* device, int64_t experts, int64_t chosen, int64_t width, int64_t head_dim = 128) {
    OpsShape shape = kShape;
    shape.head_dim = head_dim;
    shape.experts = experts;
    shape.chosen = chosen;
    shape.mlp = width;
    return footprint_of(device).plan_ops(shape, 2)->records_steps();
  };
  EXPECT_TRUE(records("cuda", 0, 0, 768));
  EXPECT_TRUE(records("cuda", 512, 32, 768));
  EXPECT_FALSE(records("cuda", 513, 8, 768)) << "experts that no kernel chooses among";
  EXPECT_FALSE(records("cuda", 128, 33, 768));
  EXPECT_FALSE(records("cuda", 128, 8, 772)) << "a width that is no multiple of 8";
  EXPECT_FALSE(records("cuda", 128, 8, 768, /*head_dim=*/264)) << "attention without a kernel";
  EXPECT_FALSE(records("cpu", 128, 8, 768));
  EXPECT_FALSE(records("npu", 128, 8, 768));
  // Without kernels there are temporaries: the sorted logits, and the product of one expert beside those of all.
  OpsShape many = kShape;
  many.experts = 1024;
  many.chosen = 8;
  const auto plan = footprint_of("cuda").plan_ops(many, 2);
  EXPECT_GT(plan->route(100).most, plan->route(100).result + int64_t{100} * 1024 * 8);
  const OpBytes product = plan->linear_of_experts(100, 64, 32, 2, /*gathers=*/false);
  EXPECT_EQ(product.most - product.result, 100 * 32 * 2);
}

// In plain ATen operations make float32 temporaries; the CPU's own and CUDA's kernels do not.
TEST(Backends, StateTheScratchOfTheirOwnOperations) {
  const OpsPlan aten(kShape, 2);
  const auto cpu = footprint_of("cpu").plan_ops(kShape, 2), cuda = footprint_of("cuda").plan_ops(kShape, 2);
  constexpr int64_t kRows = 1000;
  for (const OpsPlan* plan : {cpu.get(), cuda.get()}) {
    const OpBytes bytes = plan->silu_mul(kRows);
    EXPECT_EQ(bytes.result, aten.silu_mul(kRows).result);
    EXPECT_EQ(bytes.most, bytes.result);
    EXPECT_LT(bytes.most, aten.silu_mul(kRows).most);
  }
  // A norm's gradient is summed in 528 parts, each as wide as a row, in float32.
  const OpBytes norm = cuda->rms_norm_backward(kRows);
  EXPECT_EQ(norm.most - norm.result, 528 * kShape.hidden * 4);
  EXPECT_EQ(cpu->rms_norm_backward(kRows).most, norm.result);
  // The gradient of logits takes their place, or is in bfloat16.
  EXPECT_EQ(cpu->logits_gradient_bytes(), 4);
  EXPECT_EQ(cuda->logits_gradient_bytes(), 2);
  EXPECT_EQ(cuda->logprob_backward(kRows, 10, false).result, kRows * 10 * 2);
  // The CPU keeps buffers by its threads; a recorded step on a GPU keeps six words of each row, a table, and two
  // counters.
  const KeptLoad load = {.rows = kRows, .logits_rows = 10, .context = 512, .trains = true};
  EXPECT_EQ(cuda->kept(load, 8), 0);
  EXPECT_GT(cpu->kept(load, 8) - cpu->kept(load, 4), 4 << 20);
  EXPECT_EQ(cuda->prepared_bytes(8, 3, 5), (6 * 8 + 3 * 5 + 2) * 4);
  EXPECT_EQ(cpu->prepared_bytes(8, 3, 5), 0);
  // An NPU's are plain ATen's, but for sums of squares, which the host makes.
  const auto npu = footprint_of("npu").plan_ops(kShape, 2);
  EXPECT_EQ(npu->silu_mul(kRows).most, aten.silu_mul(kRows).most);
  EXPECT_EQ(npu->sums_of_squares(1 << 20, 4096).most, 0);
  EXPECT_EQ(aten.sums_of_squares(1 << 20, 4096).most, 8 << 20);
}

}  // namespace
}  // namespace tandem::device
