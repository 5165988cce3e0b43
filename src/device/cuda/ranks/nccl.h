// NCCL for the files of this folder, looked for at run time, where LibTorch has loaded it already. No torch.
#pragma once

#include <nccl.h>

namespace tandem::device {

#define TANDEM_NCCL_CALLS(CALL)                                                                            \
  CALL(ncclGetUniqueId)                                                                                    \
  CALL(ncclCommInitRankConfig)                                                                             \
  CALL(ncclCommGetAsyncError)                                                                              \
  CALL(ncclCommAbort) CALL(ncclCommFinalize) CALL(ncclCommDestroy) CALL(ncclGroupStart) CALL(ncclGroupEnd) \
      CALL(ncclSend) CALL(ncclRecv) CALL(ncclGetErrorString) CALL(ncclGetLastError)

struct NcclCalls {
#define TANDEM_DECLARE(call) decltype(&::call) call = nullptr;
  TANDEM_NCCL_CALLS(TANDEM_DECLARE)
#undef TANDEM_DECLARE
};

// Throws EnvironmentError if there is no library, or one without these functions.
const NcclCalls& nccl();

}  // namespace tandem::device
