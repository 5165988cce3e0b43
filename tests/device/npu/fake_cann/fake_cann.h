// A stand-in for AscendCL, the runtime library of Huawei's CANN, as a library of the same name: memory of the host
// behind addresses of a device, virtual memory over memfd, streams and events. It keeps the rules that CANN documents
// and checks that its callers do; it shows nothing of how an NPU computes or how fast. Our module's tests use
// fake_cann.cc alone; fake_cann_torch.cc adds what torch_npu calls too.
//
// It is set up by options, from the variable FAKE_CANN ("devices=2;late=1") when it is loaded and by fake_cann_set():
//   devices=8        how many there are
//   bytes=N          each device's memory
//   host_bytes=N     how much pinned memory the host has
//   late=1           work runs when somebody waits for its stream or its event, and not before
//   aliases=yes      one piece of memory may be mapped at several addresses; refused: the second mapping is an error;
//                    copies: it is accepted, and shows other bytes
//   uuid=yes         zeros: as an old driver answers
//   version=9.1.0    "" stands for a CANN that does not tell
//   soc=Ascend910B1
//   visible=4,5      the devices that the process sees, as CANN reads ASCEND_RT_VISIBLE_DEVICES; "" for all
//   levels=3         the highest level of deterministic computation that is accepted
//   jit_compile=disable   what the option of this name is set to, enable or disable
//   products=whole   rows: operators multiply each row alone, so that it has the same bits among any others;
//                    zeros: a matrix product is zeros, as where torch_npu takes operators that are not there
//   fail=CALL:K:CODE the K-th call of CALL from now on (from 0; * stands for any) does nothing and returns CODE
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <string>

namespace fake_cann {

// Guards all of the stand-in's state. Work of streams runs under it.
std::recursive_mutex& mutex();
// Returns the value of an option that is a text.
std::string option(const std::string& name);
int current_device();
// Takes a level of deterministic computation. Returns whether it is accepted.
bool set_deterministic(int64_t level);

// A call begins with this. Returns the code that it must return at once, or 0.
int begin(const char* call);
// begin() for calls that need a current context; their code is 107002 without one.
int begin_with_context(const char* call);

// Work returns this, and is called again later, while it waits for something: for another rank, for example.
constexpr int kNotReady = -1;

// Queues work on a stream, null for the default one. What it returns is the stream's error, which the next wait for
// the stream returns.
int enqueue(void* stream, std::function<int()> work);
// Runs all that is queued on a stream, and returns its error.
int synchronize(void* stream);
int synchronize_all();
// Runs the oldest work of a stream, which stays if it is not ready. Returns whether the stream is empty then.
bool step(void* stream);

// Returns whether `bytes` at `address` lie in device memory that is allocated, or mapped.
bool is_device_memory(const void* address, size_t bytes);
bool is_pinned(const void* address);
// A copy that is refused where its device side is no device memory. `kind` is AscendCL's.
int copy(void* to, const void* from, size_t bytes, int kind);

}  // namespace fake_cann

extern "C" {
void fake_cann_set(const char* option, const char* value);
// Returns a count of what is there now: reservations, handles, mappings, blocks, host_blocks, streams, used_bytes (of
// the current device); of what was: calls, and failures of the option `fail`; or the deterministic level that was set.
int64_t fake_cann_count(const char* what);
// Returns the name of the call that the option `fail` let fail last, "" where none did.
const char* fake_cann_failed_call();
}
