// A stand-in for HCCL, as a library of the same name, over the stand-in for CANN (fake_cann): ranks are processes of
// this machine, and bytes go through sockets. It checks that its callers use it as HCCL's headers say; it shows nothing
// of how HCCL behaves or how fast it is.
//
// A transfer is work of the stream that it was queued on, and makes progress while somebody asks for that stream. Both
// ranks of a pair state how many bytes they expect, so that calls in another order are an error and not other bytes.
//
// It is set up by options:
//   connect_s=10     how long a rank waits for the others when it joins
//   shuffle=SEED     bytes of different ranks arrive in another order each time
//   deaf=1           a lost rank is not noticed: transfers with it go on for ever
//   async_error=CODE what HcclGetCommAsyncError reports from now on; transfers go on for ever
//   fail=CALL:CODE   the next call of CALL does nothing and returns CODE
#pragma once

extern "C" void fake_hccl_set(const char* option, const char* value);
