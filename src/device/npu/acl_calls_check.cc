// Compares the types of acl_calls.h and hccl_calls.h with the headers of CANN that torch_npu's wheel carries, where one
// is installed: each call must have as many arguments, of the same kind and size, and each constant its value.
#include <acl/acl.h>
#include <acl/acl_rt.h>
#include <third_party/hccl/inc/hccl/hccl.h>

#include <cstddef>
#include <type_traits>

#include "device/npu/acl_calls.h"
#include "device/npu/hccl_calls.h"

namespace tandem::device::npu {
namespace {

// A pointer stands for any other; a number for a number or an enumeration of its size.
template <typename Ours, typename Theirs>
constexpr bool kSameValue =
    std::is_pointer_v<Ours> ? std::is_pointer_v<Theirs>
                            : std::is_integral_v<Ours> && !std::is_pointer_v<Theirs> && sizeof(Ours) == sizeof(Theirs);

template <typename Ours, typename Theirs>
constexpr bool kSameCall = false;
template <typename OurResult, typename... Ours, typename TheirResult, typename... Theirs>
constexpr bool kSameCall<OurResult (*)(Ours...), TheirResult (*)(Theirs...)> = [] {
  if constexpr (sizeof...(Ours) == sizeof...(Theirs)) {
    return kSameValue<OurResult, TheirResult> && (... && kSameValue<Ours, Theirs>);
  } else {
    return false;
  }
}();

#define TANDEM_COMPARE(call, ...) \
  static_assert(kSameCall<decltype(AclCalls::call), decltype(&::call)>, #call " is another in this CANN");
TANDEM_ACL_REQUIRED_CALLS(TANDEM_COMPARE)
TANDEM_ACL_OPTIONAL_CALLS(TANDEM_COMPARE)
#undef TANDEM_COMPARE
#define TANDEM_COMPARE(call, ...) \
  static_assert(kSameCall<decltype(HcclCalls::call), decltype(&::call)>, #call " is another in this HCCL");
TANDEM_HCCL_CALLS(TANDEM_COMPARE)
#undef TANDEM_COMPARE

static_assert(sizeof(HcclRootInfo) == sizeof(::HcclRootInfo));
static_assert(sizeof(HcclSendRecvItem) == sizeof(::HcclSendRecvItem));
static_assert(offsetof(HcclSendRecvItem, type) == offsetof(::HcclSendRecvItem, sendRecvType));
static_assert(offsetof(HcclSendRecvItem, data) == offsetof(::HcclSendRecvItem, buf));
static_assert(offsetof(HcclSendRecvItem, count) == offsetof(::HcclSendRecvItem, count));
static_assert(offsetof(HcclSendRecvItem, data_type) == offsetof(::HcclSendRecvItem, dataType));
static_assert(offsetof(HcclSendRecvItem, remote_rank) == offsetof(::HcclSendRecvItem, remoteRank));
static_assert(kHcclSend == HCCL_SEND && kHcclReceive == HCCL_RECV && kHcclBytes == HCCL_DATA_TYPE_UINT8);
static_assert(kHcclSuccess == HCCL_SUCCESS && kHcclInvalidParameter == HCCL_E_PARA && kHcclNullPointer == HCCL_E_PTR);
static_assert(kHcclNotSupported == HCCL_E_NOT_SUPPORT && kHcclTimeout == HCCL_E_TIMEOUT);
static_assert(kHcclRemoteError == HCCL_E_REMOTE);
static_assert(kAclStreamComplete == ACL_STREAM_STATUS_COMPLETE && kAclStreamNotReady == ACL_STREAM_STATUS_NOT_READY);

static_assert(sizeof(AclLocation) == sizeof(aclrtMemLocation));
static_assert(offsetof(AclLocation, type) == offsetof(aclrtMemLocation, type));
static_assert(sizeof(AclMemoryProperties) == sizeof(aclrtPhysicalMemProp));
static_assert(offsetof(AclMemoryProperties, handle_type) == offsetof(aclrtPhysicalMemProp, handleType));
static_assert(offsetof(AclMemoryProperties, allocation_type) == offsetof(aclrtPhysicalMemProp, allocationType));
static_assert(offsetof(AclMemoryProperties, memory) == offsetof(aclrtPhysicalMemProp, memAttr));
static_assert(offsetof(AclMemoryProperties, location) == offsetof(aclrtPhysicalMemProp, location));
static_assert(offsetof(AclMemoryProperties, reserved) == offsetof(aclrtPhysicalMemProp, reserve));
static_assert(sizeof(AclUuid) == sizeof(aclrtUuid));

static_assert(ACL_MEM_HANDLE_TYPE_NONE == 0 && ACL_MEM_ALLOCATION_TYPE_PINNED == 0);
static_assert(kAclSuccess == ACL_SUCCESS && kAclRepeatedInit == ACL_ERROR_REPEAT_INITIALIZE);
static_assert(kAclInvalidParameter == ACL_ERROR_RT_PARAM_INVALID && kAclInvalidDevice == ACL_ERROR_RT_INVALID_DEVICEID);
static_assert(kAclNoContext == ACL_ERROR_RT_CONTEXT_NULL && kAclInvalidHandle == ACL_ERROR_RT_INVALID_HANDLE);
static_assert(kAclBadAlloc == ACL_ERROR_BAD_ALLOC && kAclMemoryAllocation == ACL_ERROR_RT_MEMORY_ALLOCATION);
static_assert(kAclDeviceOutOfMemory == ACL_ERROR_RT_DEVICE_OOM && kAclNotSupported == ACL_ERROR_RT_FEATURE_NOT_SUPPORT);
static_assert(kAclNoDevice == ACL_ERROR_RT_NO_DEVICE && kAclNoPermission == ACL_ERROR_RT_NO_PERMISSION);
static_assert(kAclCopyFailed == ACL_ERROR_RT_COPY_DATA && kAclDriverError == ACL_ERROR_RT_DRV_INTERNAL_ERROR);
static_assert(kAclDeviceMemoryError == ACL_ERROR_RT_DEVICE_MEM_ERROR);
static_assert(kAclCopyToDevice == ACL_MEMCPY_HOST_TO_DEVICE && kAclCopyToHost == ACL_MEMCPY_DEVICE_TO_HOST);
static_assert(kAclHbm == ACL_HBM_MEM && kAclHbmHugePages == ACL_HBM_MEM_HUGE);
static_assert(kAclOnDevice == ACL_MEM_LOCATION_TYPE_DEVICE && kAclHugePagesFirst == ACL_MEM_MALLOC_HUGE_FIRST);
static_assert(kAclRecommendedGranularity == ACL_RT_MEM_ALLOC_GRANULARITY_RECOMMENDED);

}  // namespace
}  // namespace tandem::device::npu
