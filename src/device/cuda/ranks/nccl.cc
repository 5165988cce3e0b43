#include "device/cuda/ranks/nccl.h"

#include <dlfcn.h>

#include "base/check.h"

namespace tandem::device {
namespace {

constexpr const char* kLibrary = "libnccl.so.2";

NcclCalls find_calls() {
  void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);  // stays loaded for the life of the process
  TANDEM_ENV_CHECK(library != nullptr, "several devices need NCCL:", dlerror(), "; run `make cuda`, or use one device");
  NcclCalls calls;
#define TANDEM_NAME(call) #call
#define TANDEM_FIND(call)                                                                 \
  calls.call = reinterpret_cast<decltype(calls.call)>(dlsym(library, TANDEM_NAME(call))); \
  TANDEM_ENV_CHECK(calls.call != nullptr, kLibrary, "has no", TANDEM_NAME(call), "; run `make cuda` for a newer one");
  TANDEM_NCCL_CALLS(TANDEM_FIND)
#undef TANDEM_FIND
#undef TANDEM_NAME
  return calls;
}

}  // namespace

const NcclCalls& nccl() {
  static const NcclCalls calls = find_calls();
  return calls;
}

}  // namespace tandem::device
