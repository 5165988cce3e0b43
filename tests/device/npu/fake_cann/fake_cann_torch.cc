// The calls of CANN's runtime that torch_npu makes and our module does not, for torch_npu's wheel over the stand-in. It
// includes the wheel's own headers, so the types are those that torch_npu was built with.
#include <acl/acl.h>
#include <acl/acl_op_compiler.h>
#include <acl/acl_rt.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>

#include "tests/device/npu/fake_cann/fake_cann.h"

using fake_cann::begin;
using fake_cann::begin_with_context;
using fake_cann::option;
using fake_cann::synchronize;
using fake_cann::synchronize_all;

namespace {

// An event of a stream: how often it was recorded, and how many of these the stream has reached.
struct Event {
  int64_t num_recorded = 0, num_reached = 0;
  void* stream = nullptr;
  double reached_ms = 0;
};
using SharedEvent = std::shared_ptr<Event>;  // queued work outlives the handle

SharedEvent& event_of(void* handle) { return *static_cast<SharedEvent*>(handle); }

double now_ms() {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Runs the event's stream until it has reached that recording.
void reach(const SharedEvent& event, int64_t recording) {
  const std::lock_guard lock(fake_cann::mutex());
  while (event->num_reached < recording && !fake_cann::step(event->stream)) {
  }
}

int create_event(void** handle) {
  *handle = new SharedEvent(std::make_shared<Event>());
  return 0;
}

int memset_device(void* to, size_t to_bytes, int value, size_t bytes) {
  if (bytes > to_bytes) return ACL_ERROR_RT_PARAM_INVALID;
  if (!fake_cann::is_device_memory(to, bytes)) return ACL_ERROR_RT_COPY_DATA;
  std::memset(to, value, bytes);
  return 0;
}

}  // namespace

extern "C" {

aclError aclFinalize() { return begin("aclFinalize"); }
aclError aclrtGetDevice(int32_t* device) {
  if (const int failure = begin_with_context("aclrtGetDevice")) return failure;
  *device = fake_cann::current_device();
  return 0;
}
aclError aclrtResetDevice(int32_t /*device*/) { return begin("aclrtResetDevice"); }
aclError aclrtGetPrimaryCtxState(int32_t /*device*/, uint32_t* flags, int32_t* is_active) {
  if (flags != nullptr) *flags = 0;
  if (is_active != nullptr) *is_active = 1;
  return 0;
}

aclError aclrtCreateStreamWithConfig(aclrtStream* stream, uint32_t /*priority*/, uint32_t /*flag*/) {
  return aclrtCreateStream(stream);
}
aclError aclrtSynchronizeStreamWithTimeout(aclrtStream stream, int32_t /*timeout*/) {
  if (const int failure = begin_with_context("aclrtSynchronizeStreamWithTimeout")) return failure;
  return synchronize(stream);
}
aclError aclrtSynchronizeDevice() {
  if (const int failure = begin_with_context("aclrtSynchronizeDevice")) return failure;
  return synchronize_all();
}
aclError aclrtSynchronizeDeviceWithTimeout(int32_t /*timeout*/) {
  if (const int failure = begin_with_context("aclrtSynchronizeDeviceWithTimeout")) return failure;
  return synchronize_all();
}
aclError aclrtStreamGetId(aclrtStream /*stream*/, int32_t* id) {
  *id = 1;
  return 0;
}
aclError aclrtSetStreamFailureMode(aclrtStream /*stream*/, uint64_t /*mode*/) { return 0; }
aclError aclrtSetStreamAttribute(aclrtStream /*stream*/, aclrtStreamAttr /*attribute*/,
                                 aclrtStreamAttrValue* /*value*/) {
  return 0;
}

aclError aclrtCreateEventWithFlag(aclrtEvent* event, uint32_t /*flag*/) { return create_event(event); }
aclError aclrtCreateEventExWithFlag(aclrtEvent* event, uint32_t /*flag*/) { return create_event(event); }
aclError aclrtDestroyEvent(aclrtEvent event) {
  delete &event_of(event);
  return 0;
}
aclError aclrtRecordEvent(aclrtEvent handle, aclrtStream stream) {
  const std::lock_guard lock(fake_cann::mutex());
  const SharedEvent event = event_of(handle);
  event->stream = stream;
  const int64_t recording = ++event->num_recorded;
  return fake_cann::enqueue(stream, [event, recording] {
    event->num_reached = recording;
    event->reached_ms = now_ms();
    return 0;
  });
}
aclError aclrtResetEvent(aclrtEvent /*event*/, aclrtStream /*stream*/) { return 0; }
aclError aclrtStreamWaitEvent(aclrtStream stream, aclrtEvent handle) {
  const std::lock_guard lock(fake_cann::mutex());
  const SharedEvent event = event_of(handle);
  const int64_t recording = event->num_recorded;
  return fake_cann::enqueue(stream, [event, recording] {
    reach(event, recording);
    return 0;
  });
}
aclError aclrtSynchronizeEvent(aclrtEvent event) {
  reach(event_of(event), event_of(event)->num_recorded);
  return 0;
}
aclError aclrtQueryEventStatus(aclrtEvent handle, aclrtEventRecordedStatus* status) {
  const std::lock_guard lock(fake_cann::mutex());
  const SharedEvent event = event_of(handle);
  if (event->num_reached < event->num_recorded) fake_cann::step(event->stream);
  const bool is_complete = event->num_reached == event->num_recorded;
  *status = is_complete ? ACL_EVENT_RECORDED_STATUS_COMPLETE : ACL_EVENT_RECORDED_STATUS_NOT_READY;
  return 0;
}
aclError aclrtQueryEventWaitStatus(aclrtEvent /*event*/, aclrtEventWaitStatus* status) {
  *status = ACL_EVENT_WAIT_STATUS_COMPLETE;
  return 0;
}
aclError aclrtEventElapsedTime(float* ms, aclrtEvent from, aclrtEvent to) {
  *ms = static_cast<float>(event_of(to)->reached_ms - event_of(from)->reached_ms);
  return 0;
}

aclError aclrtMallocAlign32(void** address, size_t bytes, aclrtMemMallocPolicy policy) {
  return aclrtMalloc(address, bytes, policy);
}
aclError aclrtMemset(void* to, size_t to_bytes, int32_t value, size_t bytes) {
  if (const int failure = begin_with_context("aclrtMemset")) return failure;
  return memset_device(to, to_bytes, value, bytes);
}
aclError aclrtMemsetAsync(void* to, size_t to_bytes, int32_t value, size_t bytes, aclrtStream stream) {
  if (const int failure = begin_with_context("aclrtMemsetAsync")) return failure;
  return fake_cann::enqueue(stream, [=] { return memset_device(to, to_bytes, value, bytes); });
}
aclError aclrtPointerGetAttributes(const void* address, aclrtPtrAttributes* attributes) {
  *attributes = {};
  attributes->location.type =
      fake_cann::is_pinned(address) ? ACL_MEM_LOCATION_TYPE_HOST : ACL_MEM_LOCATION_TYPE_UNREGISTERED;
  return 0;
}

aclError aclGetDeviceCapability(uint32_t /*device*/, aclDeviceInfo /*info*/, int64_t* value) {
  *value = 20;
  return 0;
}
aclError aclrtGetDeviceInfo(uint32_t /*device*/, aclrtDevAttr /*attribute*/, int64_t* value) {
  *value = 20;
  return 0;
}
aclError aclrtDeviceCanAccessPeer(int32_t* can, int32_t /*device*/, int32_t /*peer*/) {
  *can = 1;
  return 0;
}
aclError aclrtSetDeviceSatMode(aclrtFloatOverflowMode /*mode*/) { return 0; }
aclError aclrtSetOpWaitTimeout(uint32_t /*timeout*/) { return 0; }
aclError aclrtSetOpExecuteTimeOut(uint32_t /*timeout*/) { return 0; }
aclError aclrtPeekAtLastError(aclrtLastErrLevel /*level*/) { return 0; }
aclError aclrtGetLastError(aclrtLastErrLevel /*level*/) { return 0; }
aclError aclrtCtxSetSysParamOpt(aclSysParamOpt option, int64_t value) {
  if (option != ACL_OPT_DETERMINISTIC) return 0;
  return fake_cann::set_deterministic(value) ? 0 : ACL_ERROR_RT_PARAM_INVALID;
}
aclError aclrtSetSysParamOpt(aclSysParamOpt option, int64_t value) { return aclrtCtxSetSysParamOpt(option, value); }

// torch_npu reads here whether it may compile operators on the way: then it takes the older path of operators, which
// nothing plays.
aclError aclSetCompileopt(aclCompileOpt /*option*/, const char* /*value*/) { return 0; }
size_t aclGetCompileoptSize(aclCompileOpt /*option*/) { return option("jit_compile").size() + 1; }
aclError aclGetCompileopt(aclCompileOpt /*option*/, char* value, size_t bytes) {
  std::strncpy(value, option("jit_compile").c_str(), bytes);
  return 0;
}

}  // extern "C"
