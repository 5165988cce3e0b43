// Tests of what is said where CANN, one of its calls, its version or a device is missing; and of a thread's context.
#include "device/npu/acl_calls.h"

#include <dlfcn.h>

#include <string>
#include <thread>
#include <vector>

#include "tandem/error.h"
#include "tests/base/thrown.h"
#include "tests/device/npu/npu_stack.h"

namespace tandem::device::npu {
namespace {

TEST(AclCalls, AMissingLibraryIsOneLine) {
  const std::string error = base::thrown_by<EnvironmentError>([] { load_acl_calls("libascendcl_of_nobody.so"); });
  EXPECT_TRUE(error.starts_with("libascendcl_of_nobody.so: cannot open shared object file")) << error;
  EXPECT_TRUE(error.ends_with("; install CANN and source its set_env.sh, or give --device cpu")) << error;
}

// Every call is missing in turn: a required one is an error that names it, an optional one is null.
TEST(AclCalls, AMissingCallIsOneLineOrNull) {
  const NpuStack stack;
  std::vector<std::string> required, optional;
#define TANDEM_REQUIRED(call, ...) required.emplace_back(#call);
#define TANDEM_OPTIONAL(call, ...) optional.emplace_back(#call);
  TANDEM_ACL_REQUIRED_CALLS(TANDEM_REQUIRED)
  TANDEM_ACL_OPTIONAL_CALLS(TANDEM_OPTIONAL)
#undef TANDEM_OPTIONAL
#undef TANDEM_REQUIRED
  const auto load_without = [](const std::string& missing) {
    return find_acl_calls("libascendcl.so",
                          [&](const char* name) { return missing == name ? nullptr : dlsym(RTLD_DEFAULT, name); });
  };
  for (const std::string& call : required) {
    EXPECT_EQ(base::thrown_by<EnvironmentError>([&] { load_without(call); }),
              "libascendcl.so has no " + call + "; install CANN 9.1 or newer");
  }
  for (const std::string& call : optional)
    EXPECT_EQ(base::thrown_by<EnvironmentError>([&] { load_without(call); }), "") << call;
  EXPECT_EQ(load_without("aclrtDeviceGetUuid").aclrtDeviceGetUuid, nullptr);
}

TEST(AclCalls, AnOldVersionIsOneLine) {
  for (const char* version : {"9.1.0", "8.5.0", "10.0.0", "9.1.0.beta1", ""}) {
    const NpuStack stack({{"version", version}});
    EXPECT_EQ(cann_version(stack.acl()), version);
  }
  for (const char* version : {"8.2.RC1", "7.0.0"}) {
    const NpuStack stack;
    fake_cann_set("version", version);
    EXPECT_EQ(
        base::thrown_by<EnvironmentError>([] { load_acl_calls(); }),
        std::string("libascendcl.so is of CANN ") + version + ", and the module needs 8.5 or newer; install CANN 9.1");
  }
}

TEST(AclCalls, AMissingDeviceIsOneLine) {
  const NpuStack stack({{"devices", "2"}});
  EXPECT_EQ(AclDevice(stack.acl(), 1).index(), 1);
  const std::string error = base::thrown_by<EnvironmentError>([&] { AclDevice(stack.acl(), 2); });
  EXPECT_EQ(
      error,
      "aclrtSetDevice: error 107001, no such device (EE9999: the stand-in for CANN says so); choose a device that "
      "`npu-smi info` lists (ASCEND_RT_VISIBLE_DEVICES hides others)");
}

TEST(AclCalls, ErrorsAreOneLineWhateverTheCode) {
  const NpuStack stack;
  AclCalls silent = stack.acl();
  silent.aclGetRecentErrMsg = nullptr;
  EXPECT_EQ(base::thrown_by<EnvironmentError>([&] { check_acl(silent, 0, "aclrtMapMem"); }), "");
  EXPECT_EQ(base::thrown_by<EnvironmentError>([&] { check_acl(silent, kAclNoPermission, "aclInit"); }),
            "aclInit: error 207006, no permission; let this user open /dev/davinci* (a container needs the devices and "
            "the driver mounted)");
  const std::string unknown =
      base::thrown_by<EnvironmentError>([&] { check_acl(silent, 507123, "aclrtMapMem", 4096); });
  EXPECT_TRUE(unknown.starts_with("aclrtMapMem of 4096 bytes: error 507123; the device may be lost")) << unknown;
}

TEST(AclCalls, NoMemoryIsAnAnswer) {
  const NpuStack stack;
  EXPECT_TRUE(had_memory(stack.acl(), kAclSuccess, "aclrtMapMem", 1));
  for (const AclResult code : {207001, 207018, 200000}) EXPECT_FALSE(had_memory(stack.acl(), code, "aclrtMapMem", 1));
  EXPECT_THROW(had_memory(stack.acl(), 107000, "aclrtMapMem", 1), EnvironmentError);
}

TEST(CurrentContext, AThreadGetsOneAndGetsItsOwnBack) {
  const NpuStack stack;
  const AclCalls& acl = stack.acl();
  const AclDevice first(acl, 0), second(acl, 1);
  EXPECT_NE(first.context(), second.context());
  std::thread([&] {
    AclContext now = nullptr;
    EXPECT_EQ(acl.aclrtGetCurrentContext(&now), kAclNoContext);
    {
      const CurrentContext current(first);
      EXPECT_EQ(acl.aclrtGetCurrentContext(&now), kAclSuccess);
      EXPECT_EQ(now, first.context());
      const CurrentContext inner(second);
      acl.aclrtGetCurrentContext(&now);
      EXPECT_EQ(now, second.context());
    }
    acl.aclrtGetCurrentContext(&now);
    EXPECT_EQ(now, first.context());
  }).join();
}

}  // namespace
}  // namespace tandem::device::npu
