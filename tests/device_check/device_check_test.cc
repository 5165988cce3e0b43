// Asks the check of a device about operations and memory with planted faults: each is answered by no in its section,
// and without it every answer is yes. The kept answers come back for their stack alone.
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "device/cpu/cpu_vmm.h"
#include "device/kept_check.h"
#include "device/registry.h"
#include "device_check/memory.h"
#include "device_check/numbers.h"
#include "device_check/rows.h"
#include "tests/base/temporary_directory.h"
#include "tests/device/hosted_ops.h"

namespace tandem::device_check {
namespace {

using at::Tensor;

constexpr RowWidths kWidths = {
    .hidden = 96, .intermediate = 160, .heads = 4, .kv_heads = 2, .head_dim = 16, .vocab = 200};

// The CPU's operations, as those of a device; tests plant faults in what they override.
class Ops : public device::HostedOps {
 public:
  Ops() : HostedOps(device::make_cpu_ops("scalar", 1)) {}
};

// A product adds less than a unit in the last place where more than one row is multiplied: as a library does that
// chooses its order of addition by the number of rows.
class RowsDependOnTheirBatch final : public Ops {
 public:
  Tensor linear(const Tensor& x, const Tensor& w, at::ScalarType out) const override {
    const Tensor y = Ops::linear(x, w, out);
    return x.size(0) > 64 ? y.mul(1.0000002) : y;
  }
};

class NormIsWrong final : public Ops {
 public:
  Tensor rms_norm(const Tensor& x, const Tensor& w, const device::Norm& norm) const override {
    return Ops::rms_norm(x, w, norm.eps + 0.01);
  }
};

class EmbeddingGradientDiffersEachTime final : public Ops {
 public:
  void embedding_backward(const Tensor& dy, const Tensor& ids, const Tensor& dtable) const override {
    Ops::embedding_backward(dy, ids, dtable);
    dtable.mul_(1.0 + 1e-6 * static_cast<double>(num_calls_++ % 2));
  }

 private:
  mutable int num_calls_ = 0;
};

class NormIsNotANumber final : public Ops {
 public:
  Tensor silu_mul(const Tensor& gate_up) const override {
    const Tensor y = Ops::silu_mul(gate_up);
    y.select(0, 0).fill_(std::numeric_limits<float>::quiet_NaN());
    return y;
  }
};

std::string first_no(const device::Ops& ops, void (*ask)(const device::Ops&, Answers&)) {
  Answers answers(/*prints=*/false);
  const at::NoGradGuard without_graph;
  ask(ops, answers);
  return answers.first_no();
}

void ask_small_rows(const device::Ops& ops, Answers& answers) { ask_rows(ops, kWidths, answers); }

TEST(DeviceCheck, SaysYesToTheOperationsOfTheCpu) {
  EXPECT_EQ(first_no(Ops(), ask_numbers), "");
  EXPECT_EQ(first_no(Ops(), ask_repeats), "");
  EXPECT_EQ(first_no(Ops(), ask_small_rows), "");
}

TEST(DeviceCheck, FindsRowsThatDependOnTheirBatch) {
  EXPECT_EQ(first_no(RowsDependOnTheirBatch(), ask_numbers), "") << "each number is right";
  EXPECT_EQ(first_no(RowsDependOnTheirBatch(), ask_repeats), "") << "and the same each time";
  EXPECT_THAT(first_no(RowsDependOnTheirBatch(), ask_small_rows), testing::StartsWith("rows: a product"));
}

TEST(DeviceCheck, NamesTheOperationWhoseNumbersAreWrong) {
  EXPECT_THAT(first_no(NormIsWrong(), ask_numbers), testing::StartsWith("numbers: rms_norm"));
  EXPECT_THAT(first_no(NormIsNotANumber(), ask_numbers), testing::StartsWith("numbers: silu_mul"));
}

TEST(DeviceCheck, FindsWhatDiffersWhenItIsCalledAgain) {
  EXPECT_EQ(first_no(EmbeddingGradientDiffersEachTime(), ask_numbers), "");
  EXPECT_THAT(first_no(EmbeddingGradientDiffersEachTime(), ask_repeats),
              testing::StartsWith("repeat: embedding_backward"));
}

// The host's memory, with faults that a device's may have.
class Vmm final : public device::Vmm {
 public:
  enum class Fault { kNone, kCannotAlias, kAliasIsACopy, kRemapsToZeros, kKeepsAnExtent };
  explicit Vmm(Fault fault) : fault_(fault) {}

  int64_t granularity_bytes() const override { return inner_.granularity_bytes(); }
  bool can_alias() const override { return fault_ != Fault::kCannotAlias; }
  device::DeviceBytes device_bytes() const override { return inner_.device_bytes(); }
  device::VmmCounts counts() const override {
    device::VmmCounts counts = inner_.counts();
    if (fault_ == Fault::kKeepsAnExtent) counts.num_extents += num_released_;
    return counts;
  }
  std::byte* reserve_addresses(int64_t bytes) override { return inner_.reserve_addresses(bytes); }
  void free_addresses(std::byte* address, int64_t bytes) override { inner_.free_addresses(address, bytes); }
  std::optional<device::ExtentId> create_extent(int64_t bytes) override { return inner_.create_extent(bytes); }
  void release_extent(device::ExtentId extent) override {
    inner_.release_extent(extent);
    ++num_released_;
  }
  bool map(std::byte* address, device::ExtentId extent) override {
    ++num_mapped_;
    if (fault_ == Fault::kAliasIsACopy && num_mapped_ == 3) extent = inner_.create_extent(2 << 20).value();
    return inner_.map(address, extent);
  }
  void unmap(std::byte* address, int64_t bytes) override { inner_.unmap(address, bytes); }
  bool open_access(std::byte* address, int64_t bytes) override {
    const bool is_open = inner_.open_access(address, bytes);
    if (fault_ == Fault::kRemapsToZeros && num_mapped_ == 4) std::fill_n(address, bytes, std::byte{0});
    return is_open;
  }

 private:
  const Fault fault_;
  device::CpuVmm inner_;
  int num_mapped_ = 0, num_released_ = 0;
};

std::string first_no_of_memory(Vmm::Fault fault) {
  const Ops ops;
  device::MemoryDriver memory = device::open_memory({});
  memory.vmm = std::make_unique<Vmm>(fault);
  Answers answers(/*prints=*/false);
  ask_memory(memory, ops, answers);
  return answers.first_no();
}

TEST(DeviceCheck, FindsWhatMemoryDoesNotKeep) {
  EXPECT_EQ(first_no_of_memory(Vmm::Fault::kNone), "");
  EXPECT_EQ(first_no_of_memory(Vmm::Fault::kCannotAlias), "") << "an arena can do without";
  EXPECT_EQ(first_no_of_memory(Vmm::Fault::kAliasIsACopy), "memory: one extent at two addresses is one memory");
  EXPECT_EQ(first_no_of_memory(Vmm::Fault::kRemapsToZeros), "memory: what is mapped elsewhere keeps its contents");
  EXPECT_EQ(first_no_of_memory(Vmm::Fault::kKeepsAnExtent), "memory: all of it is given back");
}

TEST(KeptCheck, IsOfOneStack) {
  const base::TemporaryDirectory folder;
  setenv("XDG_CACHE_HOME", folder.path().c_str(), /*overwrite=*/1);
  const device::Stack stack = {{"SoC", "one"}, {"CANN", "9.1"}}, other = {{"SoC", "one"}, {"CANN", "9.2"}};
  EXPECT_FALSE(device::read_kept_check(stack));
  device::keep_check(stack, {.rung = "rows64", .is_right = true, .is_exact = false, .first_no = "rows: add"},
                     {{"rows", 1}});
  const std::optional<device::KeptCheck> kept = device::read_kept_check(stack);
  ASSERT_TRUE(kept);
  EXPECT_EQ(kept->rung, "rows64");
  EXPECT_TRUE(kept->is_right);
  EXPECT_FALSE(kept->is_exact);
  EXPECT_EQ(kept->first_no, "rows: add");
  EXPECT_FALSE(device::read_kept_check(other));
  unsetenv("XDG_CACHE_HOME");
}

}  // namespace
}  // namespace tandem::device_check
