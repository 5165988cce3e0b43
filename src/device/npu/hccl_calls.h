// Gives the files of this folder HCCL, the library of Huawei's CANN that moves bytes between NPUs, loaded at run time.
// No torch, and no header of CANN: the types that cross these calls are declared here.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>

#include "device/npu/acl_calls.h"

namespace tandem::device::npu {

// HCCL's results: 0 is success. The first three of the others say that the caller is wrong.
using HcclResult = int;
constexpr HcclResult kHcclSuccess = 0, kHcclInvalidParameter = 1, kHcclNullPointer = 2, kHcclNotSupported = 5;
constexpr HcclResult kHcclTimeout = 9, kHcclRemoteError = 21;

using HcclComm = void*;  // one rank's end of a group
// The bytes by which ranks find rank 0 of their group.
struct HcclRootInfo {
  std::array<char, 4108> bytes = {};
};

// Values of HCCL's enumerations.
constexpr int32_t kHcclSend = 0, kHcclReceive = 1;
constexpr int32_t kHcclBytes = 7;  // uint8

struct HcclSendRecvItem {
  int32_t type = kHcclSend;
  void* data = nullptr;
  uint64_t count = 0;  // elements of data_type
  int32_t data_type = kHcclBytes;
  uint32_t remote_rank = 0;
};

// Members are named as HCCL's functions.
#define TANDEM_HCCL_CALLS(X)                                                                                   \
  X(HcclGetRootInfo, HcclResult, HcclRootInfo* root)                                                           \
  X(HcclCommInitRootInfo, HcclResult, uint32_t size, const HcclRootInfo* root, uint32_t rank, HcclComm* group) \
  X(HcclBatchSendRecv, HcclResult, HcclSendRecvItem* items, uint32_t count, HcclComm group, AclStream stream)  \
  X(HcclGetCommAsyncError, HcclResult, HcclComm group, HcclResult* error)                                      \
  X(HcclGetErrorString, const char*, HcclResult result)                                                        \
  X(HcclCommDestroy, HcclResult, HcclComm group)

struct HcclCalls {
#define TANDEM_MEMBER(call, result, ...) result (*call)(__VA_ARGS__) = nullptr;
  TANDEM_HCCL_CALLS(TANDEM_MEMBER)
#undef TANDEM_MEMBER
};

// Loads `library`, a name for the system's loader or a path; it stays loaded for the life of the process. Throws
// EnvironmentError if it is missing or lacks a call.
HcclCalls load_hccl_calls(const std::string& library = "libhccl.so");
// Does the same for calls that `find` returns by name, null for those that are missing. `library` is for messages.
HcclCalls find_hccl_calls(const std::string& library, const std::function<void*(const char* name)>& find);

}  // namespace tandem::device::npu
