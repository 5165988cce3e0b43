#include "device/cuda/cuda_driver.h"

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

}  // namespace

void check_driver(CUresult result, const char* call, int64_t bytes) {
  if (result == CUDA_SUCCESS) return;
  const char *name = nullptr, *text = nullptr;
  cuGetErrorName(result, &name);
  cuGetErrorString(result, &text);
  std::string message = call;
  if (bytes > 0) message += " of " + std::to_string(bytes) + " bytes";
  message += base::join_message(": error", static_cast<int>(result), name ? name : "", "-", text ? text : "unknown");
  throw EnvironmentError(message + "; " + remedy(result));
}

PrimaryContext::PrimaryContext(int ordinal) {
  check_driver(cuInit(0), "cuInit");
  check_driver(cuDeviceGet(&device_, ordinal), "cuDeviceGet");
  check_driver(cuDevicePrimaryCtxRetain(&context_, device_), "cuDevicePrimaryCtxRetain");
}

PrimaryContext::~PrimaryContext() { cuDevicePrimaryCtxRelease(device_); }

int PrimaryContext::attribute(CUdevice_attribute attribute) const {
  int value = 0;
  check_driver(cuDeviceGetAttribute(&value, attribute, device_), "cuDeviceGetAttribute");
  return value;
}

CurrentContext::CurrentContext(const PrimaryContext& context) {
  check_driver(cuCtxPushCurrent(context.get()), "cuCtxPushCurrent");
}

CurrentContext::~CurrentContext() {
  CUcontext popped = nullptr;
  cuCtxPopCurrent(&popped);
}

}  // namespace tandem::device
