// Tests of the NPU module with torch_npu's own wheel over the stand-ins for CANN (fake_cann): what torch_npu does with
// memory that is ours. LD_LIBRARY_PATH names the stand-ins; npu_wheel_test.py runs this.
#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <mutex>
#include <thread>

#include "device/registry.h"
#include "tandem/error.h"

namespace tandem::device {
namespace {

const DeviceSpec kNpu{.backend = "npu", .index = 0};

// A function of the stand-in, which the module has loaded.
template <typename Function>
Function* stand_in(const char* name) {
  void* const library = dlopen("libascendcl.so", RTLD_NOW | RTLD_LOCAL);
  EXPECT_NE(library, nullptr) << dlerror();
  return reinterpret_cast<Function*>(dlsym(library, name));
}
void set_stand_in(const char* option, const char* value) {
  stand_in<void(const char*, const char*)>("fake_cann_set")(option, value);
}
int64_t count(const char* what) { return stand_in<int64_t(const char*)>("fake_cann_count")(what); }

class NpuWheel : public testing::Test {
 protected:
  void SetUp() override { set_stand_in("late", "1"); }
  void TearDown() override {
    driver_.set_tensor_source(nullptr);
    driver_.synchronize();
    set_stand_in("late", "0");
    set_stand_in("bytes", "4294967296");
  }
  std::unique_ptr<Ops> ops_ = make_ops(kNpu, {.num_threads = 1});
  MemoryDriver driver_ = open_memory(kNpu);
  at::Device device_ = ops_->device();
};

TEST_F(NpuWheel, ItsNameSaysTheWholeStack) {
  const std::string name = ops_->name();
  EXPECT_TRUE(name.starts_with("npu/aten on Ascend910B1, CANN 9.1.0, torch_npu 2.11.0")) << name;
  EXPECT_TRUE(name.ends_with(", level 2")) << name;  // 2.11.0 refuses level 3
  EXPECT_EQ(device_id(kNpu), "NPU-00010203-0405-0607-0809-0a0b0c0d0e0f");
}

// torch_npu frees temporaries while its queue, and a device that is late, still have to read them.
TEST_F(NpuWheel, TemporariesAreThereUntilQueuedWorkHasReadThem) {
  const at::Tensor start = at::randn({640, 640});  // so large that each has a piece of memory of its own
  at::Tensor expected = start, x = start.to(device_);
  for (int i = 0; i < 50; ++i) {
    expected = (expected + start).mul(0.5);
    x = (x + start.to(device_)).mul(0.5);
    if (i % 10 == 9) driver_.release_unused();
  }
  EXPECT_TRUE(at::equal(x.cpu(), expected));
}

// Serves all requests from memory that a Vmm mapped, as an arena does, and counts them.
class MappedSource final : public AllocatorHook {
 public:
  MappedSource(std::byte* begin, int64_t bytes) : begin_(begin), end_(begin + bytes), next_(begin) {}
  std::byte* allocate(int64_t bytes) override {
    const std::lock_guard lock(mutex_);
    if (end_ - next_ < bytes) return nullptr;
    std::byte* const address = next_;
    next_ += bytes;
    sizes_.push_back(bytes);
    return address;
  }
  bool free(std::byte* address) override { return begin_ <= address && address < end_; }
  std::vector<int64_t> sizes() {
    const std::lock_guard lock(mutex_);
    return sizes_;
  }

 private:
  std::mutex mutex_;
  std::byte *begin_, *end_, *next_;
  std::vector<int64_t> sizes_;
};

// Memory of the driver for one test: addresses with one extent mapped.
class Mapped {
 public:
  Mapped(Vmm& vmm, int64_t bytes) : vmm_(vmm), bytes_(bytes), address_(vmm.reserve_addresses(bytes)) {
    const ExtentId extent = vmm.create_extent(bytes).value();
    vmm.map(address_, extent);
    vmm.release_extent(extent);
    EXPECT_TRUE(vmm.open_access(address_, bytes));
  }
  ~Mapped() {
    vmm_.unmap(address_, bytes_);
    vmm_.free_addresses(address_, bytes_);
  }
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;
  std::byte* address() const { return address_; }

 private:
  Vmm& vmm_;
  int64_t bytes_;
  std::byte* address_;
};

constexpr int64_t kSourceBytes = int64_t{8} << 20;

TEST_F(NpuWheel, EveryTensorComesFromTheSourceAlsoOnOtherThreads) {
  const Mapped memory(*driver_.vmm, kSourceBytes);
  MappedSource source(memory.address(), kSourceBytes);
  driver_.set_tensor_source(&source);
  {
    const at::Tensor x = at::ones({4, 4}).to(device_);
    at::Tensor weight = at::ones({4, 4}).to(device_).requires_grad_();
    (weight * x).sum().backward();  // on a thread of LibTorch's own
    EXPECT_TRUE(at::equal(weight.grad().cpu(), at::ones({4, 4})));
    std::thread([&] { EXPECT_TRUE(at::equal(at::mm(x, x).cpu(), at::ones({4, 4}).mul(4))); }).join();
  }
  driver_.synchronize();
  driver_.set_tensor_source(nullptr);
  ASSERT_GT(source.sizes().size(), 5U);
  for (const int64_t bytes : source.sizes()) EXPECT_EQ(bytes, 512) << "64 bytes of numbers, and 32 beyond them";
}

TEST_F(NpuWheel, AThousandStartsAndEndsLeaveNothing) {
  const auto live = [&] {
    MemoryDriver driver = open_memory(kNpu);
    const Mapped memory(*driver.vmm, kSourceBytes);
    const std::unique_ptr<HostMemory> host = driver.make_host();
    std::byte* const pinned = host->allocate(4096);
    host->copy_to_device(memory.address() + kSourceBytes - 4096, pinned, 4096);
    host->synchronize();
    host->free(pinned, 4096);
    MappedSource source(memory.address(), kSourceBytes / 2);
    driver.set_tensor_source(&source);
    at::Tensor inside = at::ones({256}).to(device_);
    driver.set_tensor_source(nullptr);
    const at::Tensor outside = at::ones({256}).to(device_) + inside;
    driver.set_tensor_source(&source);
    driver.synchronize();
    inside.reset();
    driver.set_tensor_source(nullptr);
    EXPECT_EQ(outside.sum().item<float>(), 512.0F);
  };
  const auto counts = [&] {
    driver_.release_unused();
    std::map<std::string, int64_t> result;
    for (const char* what : {"reservations", "handles", "mappings", "blocks", "host_blocks", "streams", "used_bytes"})
      result[what] = count(what);
    return result;
  };
  live();
  const std::map<std::string, int64_t> before = counts();
  for (int i = 0; i < 1000; ++i) live();
  EXPECT_EQ(counts(), before);
}

TEST_F(NpuWheel, AFullDeviceIsOneLineAndNotTheEnd) {
  driver_.release_unused();
  set_stand_in("bytes", "67108864");
  const at::TensorOptions bytes(at::kByte);
  try {
    std::vector<at::Tensor> tensors;
    for (int i = 0; i < 100; ++i) tensors.push_back(at::empty({3 << 20}, bytes.device(device_)));
    FAIL();
  } catch (const EnvironmentError& error) {
    EXPECT_TRUE(std::string(error.what()).starts_with("npu:0: no memory for a tensor of 3145728 bytes; "))
        << error.what();
  }
  // The memory of freed tensors is kept for tensors of the same size, and given back where others need it.
  EXPECT_EQ(at::empty({40 << 20}, bytes.device(device_)).numel(), 40 << 20);
}

TEST_F(NpuWheel, ChecksumsAreThoseOfTheHost) {
  const at::Tensor host = at::randn({1000, 33}), small = at::randn({5});
  const std::vector<Checksum> sums = checksums(kNpu, {host.to(device_), small.to(device_)});
  EXPECT_EQ(sums, checksums({}, {host, small}));
}

TEST_F(NpuWheel, UsedBytesFollowAllocations) {
  driver_.release_unused();
  const int64_t before = driver_.used_bytes(0);
  {
    const at::Tensor tensor = at::empty({10 << 20}, at::TensorOptions(at::kByte).device(device_));
    EXPECT_EQ(driver_.used_bytes(0) - before, 12 << 20) << "whole pages of 2 MiB";
  }
  driver_.release_unused();
  EXPECT_EQ(driver_.used_bytes(0), before);
}

}  // namespace
}  // namespace tandem::device
