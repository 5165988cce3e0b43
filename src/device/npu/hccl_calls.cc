#include "device/npu/hccl_calls.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include "base/check.h"

namespace tandem::device::npu {

HcclCalls find_hccl_calls(const std::string& library, const std::function<void*(const char* name)>& find) {
  HcclCalls calls;
#define TANDEM_REQUIRE(call, result, ...)                           \
  calls.call = reinterpret_cast<decltype(calls.call)>(find(#call)); \
  TANDEM_ENV_CHECK(calls.call != nullptr, library, "has no", #call "; install CANN 9.1 or newer");
  TANDEM_HCCL_CALLS(TANDEM_REQUIRE)
#undef TANDEM_REQUIRE
  return calls;
}

HcclCalls load_hccl_calls(const std::string& library) {
  void* const loaded = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  const char* const why = loaded == nullptr ? dlerror() : "";
  TANDEM_ENV_CHECK(
      loaded != nullptr,
      fmt::format("several NPUs need HCCL: {}; install CANN and source its set_env.sh, or use one device", why));
  return find_hccl_calls(library, [loaded](const char* name) { return dlsym(loaded, name); });
}

}  // namespace tandem::device::npu
