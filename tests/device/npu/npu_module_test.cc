// Tests of the entry of the NPU module where torch_npu is not installed: without CANN it finds no device and says why,
// and with the stand-in for CANN it counts and names devices.
#include <ATen/core/Tensor.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <string>

#include "device/backend.h"
#include "tandem/error.h"
#include "tests/base/thrown.h"

namespace tandem::device {
namespace {

const Backend& module_entry() {
  void* const module = dlopen(NPU_MODULE, RTLD_NOW | RTLD_LOCAL);
  EXPECT_NE(module, nullptr) << dlerror();
  return *reinterpret_cast<BackendEntry>(dlsym(module, kBackendEntry))();
}

// The module looks for CANN by its name, and finds the stand-in of that name where a process has loaded it.
void load_stand_in() { ASSERT_NE(dlopen(FAKE_CANN, RTLD_NOW | RTLD_GLOBAL), nullptr) << dlerror(); }

void set_stand_in(const char* option, const char* value) {
  reinterpret_cast<void (*)(const char*, const char*)>(dlsym(RTLD_DEFAULT, "fake_cann_set"))(option, value);
}

TEST(NpuModule, IsOfTheContractOfThisBuild) { EXPECT_EQ(module_entry().contract, kBackendContract); }

// The first test that needs CANN is without it, and the next ones load the stand-in.
TEST(NpuModule, WithoutCannThereIsNoDeviceAndItSaysWhy) {
  std::string why_none;
  EXPECT_EQ(module_entry().num_devices(why_none), 0);
  EXPECT_EQ(why_none,
            "libascendcl.so: cannot open shared object file: No such file or directory; install CANN and source its "
            "set_env.sh, or give --device cpu");
}

TEST(NpuModule, CountsAndNamesDevices) {
  load_stand_in();
  std::string why_none;
  set_stand_in("version", "8.2.0");
  EXPECT_EQ(module_entry().num_devices(why_none), 0);
  EXPECT_EQ(why_none, "libascendcl.so is of CANN 8.2.0, and the module needs 8.5 or newer; install CANN 9.1");
  set_stand_in("version", "9.1.0");
  EXPECT_EQ(module_entry().num_devices(why_none), 8);
  EXPECT_EQ(module_entry().device_id(1), "NPU-10111213-1415-1617-1819-1a1b1c1d1e1f");
  set_stand_in("devices", "0");
  EXPECT_EQ(module_entry().num_devices(why_none), 0);
  EXPECT_EQ(why_none, "no device; see `npu-smi info`");
  set_stand_in("devices", "8");
  set_stand_in("fail", "aclrtGetDeviceCount:0:507899");
  EXPECT_EQ(module_entry().num_devices(why_none), 0);
  EXPECT_TRUE(why_none.starts_with("aclrtGetDeviceCount: error 507899, an error of the driver")) << why_none;
}

TEST(NpuModule, WithoutItsOtherHalfItMakesNoOperations) {
  load_stand_in();
  const std::string error = base::thrown_by<EnvironmentError>([] { module_entry().make_ops(0, 1, "best"); });
  EXPECT_TRUE(error.starts_with("--device npu: ")) << error;
  EXPECT_NE(error.find("libtandem_npu_torch.so: cannot open shared object file"), std::string::npos) << error;
  EXPECT_TRUE(error.ends_with(
      "; build it with `make npu PYTHON=python3`, where that Python has torch_npu, or give --device cpu"))
      << error;
}

// They are refused before anything of Python starts.
TEST(NpuModule, RefusesNpusThatCannotRunThis) {
  load_stand_in();
  for (const char* soc : {"Ascend310P3", "Ascend910A", "Ascend910ProB", "Ascend910PremiumA", "Ascend950PR_9589"}) {
    set_stand_in("soc", soc);
    const std::string error = base::thrown_by<EnvironmentError>([] { module_entry().make_ops(1, 1, "best"); });
    EXPECT_TRUE(error.starts_with(std::string("--device npu:1: it is an ") + soc + ", ")) << error;
    EXPECT_TRUE(error.ends_with("; use an Ascend 910B or a newer 910, or give --device cpu")) << error;
  }
  for (const char* soc : {"Ascend910B1", "Ascend910_9391"}) {
    set_stand_in("soc", soc);
    EXPECT_NE(
        base::thrown_by<EnvironmentError>([] { module_entry().make_ops(0, 1, "best"); }).find("libtandem_npu_torch.so"),
        std::string::npos)
        << soc;
  }
}

TEST(NpuModule, WithoutHcclItConnectsNoRanksAndItShowsNoMemory) {
  const std::unique_ptr<Communicator> hosts = solo_communicator();
  EXPECT_EQ(
      base::thrown_by<EnvironmentError>([&] { module_entry().make_communicator(3, {.hosts = *hosts}); }),
      "several NPUs need HCCL: libhccl.so: cannot open shared object file: No such file or directory; install CANN "
      "and source its set_env.sh, or use one device");
  EXPECT_EQ(module_entry().show_memory({}), "");
  EXPECT_FALSE(module_entry().map_memory(0, "").defined());
  EXPECT_THROW(module_entry().copy_mapped({}, {}, {}), BugError);
}

}  // namespace
}  // namespace tandem::device
