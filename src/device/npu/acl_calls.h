// Gives the files of this folder AscendCL, the runtime library of Huawei's CANN, loaded at run time, so that a build
// without CANN loads there too; a device's context; and its errors as ours. No torch, and no header of CANN: the types
// that cross these calls are declared here, and acl_calls_check.cc compares them with the header where there is one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace tandem::device::npu {

// AscendCL's results: 0 is success, and there are more codes than those that our code tells apart.
using AclResult = int;
constexpr AclResult kAclSuccess = 0;
constexpr AclResult kAclInvalidParameter = 107000, kAclInvalidDevice = 107001, kAclNoContext = 107002;
constexpr AclResult kAclInvalidHandle = 107017;
constexpr AclResult kAclRepeatedInit = 100002;
constexpr AclResult kAclBadAlloc = 200000, kAclMemoryAllocation = 207001, kAclDeviceOutOfMemory = 207018;
constexpr AclResult kAclNotSupported = 207000, kAclNoDevice = 207004, kAclNoPermission = 207006;
constexpr AclResult kAclCopyFailed = 507052, kAclDriverError = 507899, kAclDeviceMemoryError = 507053;

// Values of AscendCL's enumerations.
constexpr int32_t kAclCopyToDevice = 1, kAclCopyToHost = 2;
constexpr int32_t kAclHbm = 1, kAclHbmHugePages = 4;
constexpr int32_t kAclOnDevice = 1;
constexpr int32_t kAclStreamComplete = 0, kAclStreamNotReady = 1;
constexpr int32_t kAclRecommendedGranularity = 1;
constexpr int32_t kAclHugePagesFirst = 0;

struct AclLocation {
  uint32_t id = 0;
  int32_t type = kAclOnDevice;
};
// The kind of memory that a physical allocation is of; 0 stands for "not shared with other processes" and "pinned".
struct AclMemoryProperties {
  int32_t handle_type = 0;
  int32_t allocation_type = 0;
  int32_t memory = kAclHbmHugePages;
  AclLocation location = {};
  uint64_t reserved = 0;
};
struct AclUuid {
  std::array<char, 16> bytes = {};
};
using AclHandle = void*;  // of physical memory
using AclStream = void*;
using AclContext = void*;  // one device's, for this process

// Calls that every CANN has with which the module works. Members are named as AscendCL's functions.
#define TANDEM_ACL_REQUIRED_CALLS(X)                                                                                 \
  X(aclInit, AclResult, const char* configuration)                                                                   \
  X(aclrtCreateStream, AclResult, AclStream* stream)                                                                 \
  X(aclrtDestroyStream, AclResult, AclStream stream)                                                                 \
  X(aclrtFree, AclResult, void* device)                                                                              \
  X(aclrtFreeHost, AclResult, void* host)                                                                            \
  X(aclrtFreePhysical, AclResult, AclHandle handle)                                                                  \
  X(aclrtGetCurrentContext, AclResult, AclContext* context)                                                          \
  X(aclrtGetDeviceCount, AclResult, uint32_t* count)                                                                 \
  X(aclrtGetMemInfo, AclResult, int32_t memory, size_t* free_bytes, size_t* total_bytes)                             \
  X(aclrtGetSocName, const char*, )                                                                                  \
  X(aclrtMalloc, AclResult, void** device, size_t bytes, int32_t policy)                                             \
  X(aclrtMallocHost, AclResult, void** host, size_t bytes)                                                           \
  X(aclrtMallocPhysical, AclResult, AclHandle* handle, size_t bytes, const AclMemoryProperties* properties,          \
    uint64_t flags)                                                                                                  \
  X(aclrtMapMem, AclResult, void* address, size_t bytes, size_t offset, AclHandle handle, uint64_t flags)            \
  X(aclrtMemcpy, AclResult, void* to, size_t to_bytes, const void* from, size_t bytes, int32_t kind)                 \
  X(aclrtMemcpyAsync, AclResult, void* to, size_t to_bytes, const void* from, size_t bytes, int32_t kind,            \
    AclStream stream)                                                                                                \
  X(aclrtReleaseMemAddress, AclResult, void* address)                                                                \
  X(aclrtReserveMemAddress, AclResult, void** address, size_t bytes, size_t alignment, void* wanted, uint64_t flags) \
  X(aclrtSetCurrentContext, AclResult, AclContext context)                                                           \
  X(aclrtSetDevice, AclResult, int32_t device)                                                                       \
  X(aclrtStreamQuery, AclResult, AclStream stream, int32_t* status)                                                  \
  X(aclrtSynchronizeStream, AclResult, AclStream stream)                                                             \
  X(aclrtUnmapMem, AclResult, void* address)

// Calls that older versions lack. They are null there.
#define TANDEM_ACL_OPTIONAL_CALLS(X)                                                                             \
  X(aclGetRecentErrMsg, const char*, )                                                                           \
  X(aclrtDeviceGetUuid, AclResult, int32_t device, AclUuid* uuid)                                                \
  X(aclrtGetLogicDevIdByUserDevId, AclResult, int32_t user_device, int32_t* logic_device)                        \
  X(aclrtGetPhyDevIdByLogicDevId, AclResult, int32_t logic_device, int32_t* physical_device)                     \
  X(aclrtMemGetAllocationGranularity, AclResult, AclMemoryProperties* properties, int32_t option, size_t* bytes) \
  X(aclsysGetVersionStr, AclResult, char* package, char* version)

struct AclCalls {
#define TANDEM_MEMBER(call, result, ...) result (*call)(__VA_ARGS__) = nullptr;
  TANDEM_ACL_REQUIRED_CALLS(TANDEM_MEMBER)
  TANDEM_ACL_OPTIONAL_CALLS(TANDEM_MEMBER)
#undef TANDEM_MEMBER
};

// Loads `library`, a name for the system's loader or a path; it stays loaded for the life of the process. Throws
// EnvironmentError if it is missing, lacks a required call, or is of a version that the module does not work with.
AclCalls load_acl_calls(const std::string& library = "libascendcl.so");
// Does the same for calls that `find` returns by name, null for those that are missing. `library` is for messages.
AclCalls find_acl_calls(const std::string& library, const std::function<void*(const char* name)>& find);

// Returns CANN's version, "9.1.0", or "" where CANN does not tell.
std::string cann_version(const AclCalls& acl);

bool is_out_of_memory(AclResult result);
// Throws EnvironmentError unless `result` is success. The message has call, bytes, the code and its meaning, CANN's own
// words and a remedy, in one line.
void check_acl(const AclCalls& acl, AclResult result, const char* call, int64_t bytes = 0);
// Returns false if the device or the host is out of memory. Throws for every other failure.
bool had_memory(const AclCalls& acl, AclResult result, const char* call, int64_t bytes);

// The context of one device, which all threads of the process share. It stays for the life of the process, because
// torch_npu computes in the same one.
class AclDevice {
 public:
  // Initialises AscendCL where nobody has yet. Throws EnvironmentError where there is no such device. `acl` outlives
  // this object.
  AclDevice(const AclCalls& acl, int index);
  const AclCalls& acl() const { return *acl_; }
  int index() const { return index_; }
  AclContext context() const { return context_; }

 private:
  const AclCalls* acl_;
  int index_;
  AclContext context_ = nullptr;
};

// Makes a device's context current on this thread for as long as it lives, since calls come from threads that never
// used AscendCL. Where a thread had no context before, it keeps this one.
class CurrentContext {
 public:
  explicit CurrentContext(const AclDevice& device);
  ~CurrentContext();
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;

 private:
  const AclDevice& device_;
  AclContext before_ = nullptr;
};

}  // namespace tandem::device::npu
