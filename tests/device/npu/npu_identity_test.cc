// Tests of the names of NPUs: two devices never share one, whatever CANN does not tell, and every process knows a
// device by the same.
#include "device/npu/npu_identity.h"

#include <set>

#include "tandem/error.h"
#include "tests/device/npu/npu_stack.h"

namespace tandem::device {
namespace {

const NpuHost kHost{.boot_id = "11111111-aaaa", .visible_devices = ""};
const NpuHost kOtherHost{.boot_id = "22222222-bbbb", .visible_devices = ""};

npu::AclCalls without_uuid(const npu::AclCalls& acl) {
  npu::AclCalls old = acl;
  old.aclrtDeviceGetUuid = nullptr;
  return old;
}

npu::AclCalls without_numbers(const npu::AclCalls& acl) {
  npu::AclCalls old = without_uuid(acl);
  old.aclrtGetPhyDevIdByLogicDevId = nullptr;
  return old;
}

TEST(NpuIdentity, IsTheUuidWhereCannTellsOne) {
  const NpuStack stack;
  EXPECT_EQ(npu_identity(stack.acl(), 2, kHost), "NPU-20212223-2425-2627-2829-2a2b2c2d2e2f");
  EXPECT_EQ(npu_identity(stack.acl(), 2, kOtherHost), npu_identity(stack.acl(), 2, kHost));
}

// torch_npu passes zeros on where CANN has no such call, and old drivers answer them: eight ranks would then be told
// that they share a device.
TEST(NpuIdentity, ZerosAreNoUuid) {
  const NpuStack stack({{"uuid", "zeros"}});
  EXPECT_EQ(npu_identity(stack.acl(), 2, kHost), "11111111-aaaa/npu-5");
  EXPECT_EQ(npu_identity(without_uuid(stack.acl()), 2, kHost), "11111111-aaaa/npu-5");
}

TEST(NpuIdentity, AUuidThatCannotBeAskedForIsNone) {
  const NpuStack stack;
  NpuStack::fail("aclrtDeviceGetUuid", 0, npu::kAclNotSupported);
  EXPECT_EQ(npu_identity(stack.acl(), 2, kHost), "11111111-aaaa/npu-5");
}

TEST(NpuIdentity, DevicesAndHostsDiffer) {
  const NpuStack stack({{"uuid", "zeros"}});
  for (const npu::AclCalls& acl : {stack.acl(), without_uuid(stack.acl()), without_numbers(stack.acl())}) {
    std::set<std::string> names;
    for (const NpuHost& host : {kHost, kOtherHost})
      for (int index = 0; index < 8; ++index) names.insert(npu_identity(acl, index, host));
    EXPECT_EQ(names.size(), 16U);
  }
}

// A launcher shows each process one device, which each process calls npu:0.
TEST(NpuIdentity, ProcessesThatSeeOneDeviceEachHaveDifferentNames) {
  for (const bool has_numbers : {true, false}) {
    std::set<std::string> names;
    for (int device = 0; device < 8; ++device) {
      const std::string list = std::to_string(device);
      const NpuStack stack({{"uuid", "zeros"}, {"visible", list}});
      const npu::AclCalls acl = has_numbers ? without_uuid(stack.acl()) : without_numbers(stack.acl());
      names.insert(npu_identity(acl, 0, {.boot_id = "11111111-aaaa", .visible_devices = list}));
    }
    EXPECT_EQ(names.size(), 8U) << has_numbers;
  }
}

TEST(NpuIdentity, EveryProcessKnowsADeviceByTheSameName) {
  const std::string in_all = [] {
    const NpuStack stack({{"uuid", "zeros"}});
    return npu_identity(without_numbers(stack.acl()), 5, kHost);
  }();
  const NpuStack stack({{"uuid", "zeros"}, {"visible", "4,5"}});
  EXPECT_EQ(npu_identity(without_numbers(stack.acl()), 1, {.boot_id = kHost.boot_id, .visible_devices = "4,5"}),
            in_all);
}

TEST(NpuIdentity, WithoutAnythingToNameItByThereIsNoName) {
  const NpuStack stack({{"uuid", "zeros"}});
  const auto error_of = [&](int index, const NpuHost& host) -> std::string {
    try {
      return "named " + npu_identity(without_numbers(stack.acl()), index, host);
    } catch (const EnvironmentError& error) {
      return error.what();
    }
  };
  EXPECT_EQ(error_of(0, {}),
            "npu:0: CANN tells no UUID, and /proc/sys/kernel/random/boot_id cannot be read, so the device has no name; "
            "install CANN 9.1 or newer");
  for (const char* list : {"4,x", "4,-1", "4", "4,5x"}) {
    EXPECT_EQ(error_of(1, {.boot_id = "b", .visible_devices = list}),
              std::string("ASCEND_RT_VISIBLE_DEVICES=") + list +
                  ": no number at place 1, counted from 0, so npu:1 has no name; set it to numbers with commas between "
                  "them");
  }
}

TEST(NpuIdentity, ThisHostHasABootId) {
  const NpuHost host = this_npu_host();
  EXPECT_EQ(host.boot_id.size(), 36U) << host.boot_id;
}

}  // namespace
}  // namespace tandem::device
