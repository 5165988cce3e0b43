#include "device/cuda/memory/cuda_driver.h"

#include <dlfcn.h>

#include <string>

#include "base/check.h"

namespace tandem::device {

namespace {

const char* remedy(CUresult result) {
  switch (result) {
    case CUDA_ERROR_OUT_OF_MEMORY: return "free memory of this device, or ask for less";
    case CUDA_ERROR_NO_DEVICE:
    case CUDA_ERROR_INVALID_DEVICE: return "choose a device that nvidia-smi lists (CUDA_VISIBLE_DEVICES hides others)";
    case CUDA_ERROR_STUB_LIBRARY:
    case CUDA_ERROR_NOT_INITIALIZED:
    case CUDA_ERROR_SYSTEM_DRIVER_MISMATCH: return "install the NVIDIA driver, or run on the CPU";
    case CUDA_ERROR_NOT_SUPPORTED:
    case CUDA_ERROR_NOT_PERMITTED: return "this device, driver or container does not allow it";
    default: return "the device may be lost (an earlier kernel failed): see dmesg for Xid lines, and start again";
  }
}

constexpr const char* kLibrary = "libcuda.so.1";

DriverCalls find_calls() {
  void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);  // stays loaded for the life of the process
  TANDEM_ENV_CHECK(library != nullptr, dlerror(), "; install the NVIDIA driver, or run on the CPU");
  DriverCalls calls;
#define TANDEM_NAME(call) #call
#define TANDEM_FIND(call)                                                                 \
  calls.call = reinterpret_cast<decltype(calls.call)>(dlsym(library, TANDEM_NAME(call))); \
  TANDEM_ENV_CHECK(calls.call != nullptr, kLibrary, "has no", TANDEM_NAME(call), "; install a newer NVIDIA driver");
  TANDEM_CUDA_DRIVER_CALLS(TANDEM_FIND)
#undef TANDEM_FIND
#undef TANDEM_NAME
  return calls;
}

}  // namespace

const DriverCalls& driver() {
  static const DriverCalls calls = find_calls();
  return calls;
}

void check_driver(CUresult result, const char* call, int64_t bytes) {
  if (result == CUDA_SUCCESS) return;
  const char *name = nullptr, *text = nullptr;
  driver().cuGetErrorName(result, &name);
  driver().cuGetErrorString(result, &text);
  std::string message = call;
  if (bytes > 0) message += " of " + std::to_string(bytes) + " bytes";
  message += base::join_message(": error", static_cast<int>(result), name ? name : "", "-", text ? text : "unknown");
  throw EnvironmentError(message + "; " + remedy(result));
}

PrimaryContext::PrimaryContext(int ordinal) {
  check_driver(driver().cuInit(0), "cuInit");
  check_driver(driver().cuDeviceGet(&device_, ordinal), "cuDeviceGet");
  check_driver(driver().cuDevicePrimaryCtxRetain(&context_, device_), "cuDevicePrimaryCtxRetain");
}

PrimaryContext::~PrimaryContext() { driver().cuDevicePrimaryCtxRelease(device_); }

int PrimaryContext::attribute(CUdevice_attribute attribute) const {
  int value = 0;
  check_driver(driver().cuDeviceGetAttribute(&value, attribute, device_), "cuDeviceGetAttribute");
  return value;
}

CurrentContext::CurrentContext(const PrimaryContext& context) {
  check_driver(driver().cuCtxPushCurrent(context.get()), "cuCtxPushCurrent");
}

CurrentContext::~CurrentContext() {
  CUcontext popped = nullptr;
  driver().cuCtxPopCurrent(&popped);
}

}  // namespace tandem::device
