#include "device/npu/acl_calls.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/check.h"

namespace tandem::device::npu {
namespace {

struct Meaning {
  AclResult result;
  const char* text;
  const char* remedy;
};

constexpr const char* kFreeMemory = "free memory of this device, or ask for less";
constexpr const char* kChooseDevice =
    "choose a device that `npu-smi info` lists (ASCEND_RT_VISIBLE_DEVICES hides others)";
constexpr const char* kNewerCann = "install a newer CANN and driver, or run on the CPU";
constexpr const char* kStartAgain =
    "the device may be lost (earlier work failed): see `npu-smi info` and CANN's log, and start again";

constexpr std::array kMeanings = {
    Meaning{kAclInvalidParameter, "a parameter is invalid", "please report it with the version of CANN"},
    Meaning{kAclInvalidDevice, "no such device", kChooseDevice},
    Meaning{kAclNoContext, "the thread has no context", "please report it with the version of CANN"},
    Meaning{kAclInvalidHandle, "a handle is invalid", "please report it with the version of CANN"},
    Meaning{kAclRepeatedInit, "AscendCL is already initialised", kStartAgain},
    Meaning{kAclBadAlloc, "no memory", kFreeMemory},
    Meaning{kAclMemoryAllocation, "no memory", kFreeMemory},
    Meaning{kAclDeviceOutOfMemory, "no memory on the device", kFreeMemory},
    Meaning{kAclNotSupported, "not supported", kNewerCann},
    Meaning{kAclNoDevice, "no device", kChooseDevice},
    Meaning{kAclNoPermission, "no permission",
            "let this user open /dev/davinci* (a container needs the devices and the driver mounted)"},
    Meaning{kAclCopyFailed, "a copy failed", kStartAgain},
    Meaning{kAclDeviceMemoryError, "a fault of the device's memory", kStartAgain},
    Meaning{kAclDriverError, "an error of the driver", kStartAgain},
};

// The first line of CANN's own words about the last error of this thread, or "".
std::string recent_words(const AclCalls& acl) {
  const char* const words = acl.aclGetRecentErrMsg == nullptr ? nullptr : acl.aclGetRecentErrMsg();
  if (words == nullptr) return "";
  const std::string text(words);
  return text.substr(0, text.find('\n'));
}

// Returns the first two numbers of a version as one that can be compared: "9.1.0" is 901. Returns 0 for other texts.
int comparable(const std::string& version) {
  int major = 0, minor = 0;
  const char* const end = version.data() + version.size();
  const auto [dot, error] = std::from_chars(version.data(), end, major);
  if (error != std::errc() || dot == end || *dot != '.') return 0;
  return std::from_chars(dot + 1, end, minor).ec == std::errc() ? 100 * major + minor : 0;
}

// Deterministic computation exists from there on, by Huawei's documentation.
constexpr int kOldestCann = 805;

}  // namespace

AclCalls find_acl_calls(const std::string& library, const std::function<void*(const char* name)>& find) {
  AclCalls calls;
#define TANDEM_FIND(call, result, ...) calls.call = reinterpret_cast<decltype(calls.call)>(find(#call));
#define TANDEM_REQUIRE(call, result, ...) \
  TANDEM_FIND(call, result, __VA_ARGS__)  \
  TANDEM_ENV_CHECK(calls.call != nullptr, library, "has no", #call "; install CANN 9.1 or newer");
  TANDEM_ACL_OPTIONAL_CALLS(TANDEM_FIND)
  TANDEM_ACL_REQUIRED_CALLS(TANDEM_REQUIRE)
#undef TANDEM_REQUIRE
#undef TANDEM_FIND
  const std::string version = cann_version(calls);
  const int number = comparable(version);
  TANDEM_ENV_CHECK(
      number == 0 || number >= kOldestCann,
      fmt::format("{} is of CANN {}, and the module needs 8.5 or newer; install CANN 9.1", library, version));
  return calls;
}

AclCalls load_acl_calls(const std::string& library) {
  void* const loaded = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  const char* const why = loaded == nullptr ? dlerror() : "";
  TANDEM_ENV_CHECK(loaded != nullptr,
                   fmt::format("{}; install CANN and source its set_env.sh, or give --device cpu", why));
  return find_acl_calls(library, [loaded](const char* name) { return dlsym(loaded, name); });
}

std::string cann_version(const AclCalls& acl) {
  if (acl.aclsysGetVersionStr == nullptr) return "";
  std::string package = "runtime";
  std::array<char, 256> version = {};  // AscendCL's longest is 128
  return acl.aclsysGetVersionStr(package.data(), version.data()) == kAclSuccess ? version.data() : "";
}

bool is_out_of_memory(AclResult result) {
  return result == kAclMemoryAllocation || result == kAclDeviceOutOfMemory || result == kAclBadAlloc;
}

void check_acl(const AclCalls& acl, AclResult result, const char* call, int64_t bytes) {
  if (result == kAclSuccess) return;
  const auto* const meaning = std::ranges::find(kMeanings, result, &Meaning::result);
  const bool is_known = meaning != kMeanings.end();
  std::string message = call;
  if (bytes > 0) message += fmt::format(" of {} bytes", bytes);
  message += fmt::format(": error {}", result);
  if (is_known) message += fmt::format(", {}", meaning->text);
  if (const std::string words = recent_words(acl); !words.empty()) message += fmt::format(" ({})", words);
  throw EnvironmentError(message + "; " + (is_known ? meaning->remedy : kStartAgain));
}

bool had_memory(const AclCalls& acl, AclResult result, const char* call, int64_t bytes) {
  if (is_out_of_memory(result)) return false;
  check_acl(acl, result, call, bytes);
  return true;
}

AclDevice::AclDevice(const AclCalls& acl, int index) : acl_(&acl), index_(index) {
  const AclResult initialised = acl.aclInit(nullptr);
  if (initialised != kAclRepeatedInit) check_acl(acl, initialised, "aclInit");
  check_acl(acl, acl.aclrtSetDevice(index), "aclrtSetDevice");
  check_acl(acl, acl.aclrtGetCurrentContext(&context_), "aclrtGetCurrentContext");
}

CurrentContext::CurrentContext(const AclDevice& device) : device_(device) {
  const AclCalls& acl = device.acl();
  if (acl.aclrtGetCurrentContext(&before_) != kAclSuccess) before_ = nullptr;  // this thread has none
  if (before_ != device.context())
    check_acl(acl, acl.aclrtSetCurrentContext(device.context()), "aclrtSetCurrentContext");
}

CurrentContext::~CurrentContext() {
  if (before_ != nullptr && before_ != device_.context()) device_.acl().aclrtSetCurrentContext(before_);
}

}  // namespace tandem::device::npu
