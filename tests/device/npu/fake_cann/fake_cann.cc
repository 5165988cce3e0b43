#include "tests/device/npu/fake_cann/fake_cann.h"

#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "device/npu/acl_calls.h"

namespace npu = tandem::device::npu;

namespace {

constexpr size_t kHugePageBytes = size_t{2} << 20, kPageBytes = 4096;
constexpr int kCopyOnDevice = 3;

struct Options {
  int num_devices = 8;
  size_t bytes = size_t{4} << 30, host_bytes = size_t{1} << 40;
  bool is_late = false;
  std::string aliases = "yes", uuid = "yes", version = "9.1.0", soc = "Ascend910B1", visible;
  std::string jit_compile = "disable", products = "whole";
  int64_t levels = 3;
  std::string failing_call, failed_call;
  int64_t calls_until_failure = 0;
  int failure = 0;
};

struct Handle {
  int file = -1;
  size_t bytes = 0;
  int device = 0;
  int num_mappings = 0;
};
struct Mapping {
  size_t bytes = 0;
  Handle* handle = nullptr;
};
struct Block {
  size_t bytes = 0, mapped_bytes = 0;
  int device = 0;
};
struct Stream {
  std::deque<std::function<int()>> work;
  int error = 0;
};

// All of the library's state. One lock guards it; work of streams runs under it too.
struct State {
  std::recursive_mutex mutex;
  Options options;
  bool is_initialised = false;
  std::map<char*, Block> blocks;
  std::map<char*, size_t> host_blocks, reservations;
  std::set<Handle*> handles;
  std::map<char*, Mapping> mappings;
  std::map<void*, Stream> streams;
  std::map<int, size_t> used_bytes;
  int64_t num_calls = 0, num_failures = 0, deterministic = 0;
};

// It is never destroyed: torch_npu calls CANN after the program's static objects are gone.
State& state() {
  static State& it = *new State;
  return it;
}

thread_local int current_device = -1;  // of those that the process sees
char recent_words[] = "EE9999: the stand-in for CANN says so\nsecond line";

std::vector<int> visible_devices() {
  const Options& options = state().options;
  std::vector<int> devices;
  std::istringstream list(options.visible);
  for (std::string number; std::getline(list, number, ',');) devices.push_back(std::atoi(number.c_str()));
  if (options.visible.empty())
    for (int device = 0; device < options.num_devices; ++device) devices.push_back(device);
  return devices;
}

void set_option(const std::string& option, const std::string& value) {
  State& s = state();
  Options& options = s.options;
  const auto number = [&] { return std::strtoull(value.c_str(), nullptr, 10); };
  if (option == "devices") options.num_devices = static_cast<int>(number());
  if (option == "bytes") options.bytes = number();
  if (option == "host_bytes") options.host_bytes = number();
  if (option == "late") options.is_late = value == "1";
  if (option == "aliases") options.aliases = value;
  if (option == "uuid") options.uuid = value;
  if (option == "version") options.version = value;
  if (option == "soc") options.soc = value;
  if (option == "products") options.products = value;
  if (option == "levels") options.levels = static_cast<int64_t>(number());
  if (option == "jit_compile") options.jit_compile = value;
  if (option == "visible") options.visible = value;
  if (option == "fail") {
    std::istringstream text(value);
    std::string calls, code;
    options.failed_call.clear();
    std::getline(text, options.failing_call, ':');
    std::getline(text, calls, ':');
    std::getline(text, code);
    options.calls_until_failure = std::atoll(calls.c_str());
    options.failure = std::atoi(code.c_str());
  }
}

// Reads the variable when the library is loaded.
__attribute__((constructor)) void read_variable() {
  const char* const variable = std::getenv("FAKE_CANN");
  std::istringstream text(variable == nullptr ? "" : variable);
  for (std::string entry; std::getline(text, entry, ';');) {
    const size_t equals = entry.find('=');
    if (equals != std::string::npos) set_option(entry.substr(0, equals), entry.substr(equals + 1));
  }
}

template <typename Map>
bool holds(const Map& ranges, const void* address, size_t bytes, size_t (*size_of)(const typename Map::mapped_type&)) {
  auto* const begin = static_cast<char*>(const_cast<void*>(address));
  auto range = ranges.upper_bound(begin);
  if (range == ranges.begin()) return false;
  --range;
  return begin + bytes <= range->first + size_of(range->second);
}

int allocate(void** address, size_t bytes) {
  State& s = state();
  size_t& used = s.used_bytes[current_device];
  if (used + bytes > s.options.bytes) return npu::kAclMemoryAllocation;
  // A page behind the block that cannot be touched finds reads beyond the 32 bytes that CANN adds to each block.
  const size_t mapped_bytes = (bytes + 32 + kPageBytes - 1) / kPageBytes * kPageBytes;
  void* const memory =
      ::mmap(nullptr, mapped_bytes + kPageBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return npu::kAclMemoryAllocation;
  ::mprotect(static_cast<char*>(memory) + mapped_bytes, kPageBytes, PROT_NONE);
  s.blocks[static_cast<char*>(memory)] = {.bytes = bytes, .mapped_bytes = mapped_bytes, .device = current_device};
  used += bytes;
  *address = memory;
  return 0;
}

bool is_reserved(const char* address, size_t bytes) {
  return holds(state().reservations, address, bytes, [](const size_t& size) { return size; });
}

bool is_free_of_mappings(char* address, size_t bytes) {
  const auto& mappings = state().mappings;
  auto next = mappings.lower_bound(address);
  if (next != mappings.end() && next->first < address + bytes) return false;
  return next == mappings.begin() || (--next, next->first + next->second.bytes <= address);
}

}  // namespace

namespace fake_cann {

std::recursive_mutex& mutex() { return state().mutex; }

std::string option(const std::string& name) {
  const std::lock_guard lock(state().mutex);
  if (name == "jit_compile") return state().options.jit_compile;
  return name == "products" ? state().options.products : "";
}

int current_device() { return ::current_device; }

bool set_deterministic(int64_t level) {
  const std::lock_guard lock(state().mutex);
  if (level > state().options.levels) return false;
  state().deterministic = level;
  return true;
}

int begin(const char* call) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  ++s.num_calls;
  Options& options = s.options;
  if (options.failing_call != call && options.failing_call != "*") return 0;
  if (options.calls_until_failure-- != 0) return 0;
  options.failed_call = call;
  ++s.num_failures;
  return options.failure;
}

int begin_with_context(const char* call) {
  const int failure = begin(call);
  return failure == 0 && ::current_device < 0 ? npu::kAclNoContext : failure;
}

int enqueue(void* stream, std::function<int()> work) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  if (stream != nullptr && !s.streams.contains(stream)) return npu::kAclInvalidHandle;
  const bool was_empty = s.streams[stream].work.empty();
  s.streams[stream].work.push_back(std::move(work));
  if (!s.options.is_late && was_empty) step(stream);
  return 0;
}

bool step(void* stream) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  Stream& queue = s.streams[stream];
  if (queue.work.empty()) return true;
  const std::function<int()> work = queue.work.front();
  const int error = work();
  if (error == kNotReady) return false;
  queue.work.pop_front();
  if (error != 0) queue.error = error;
  return queue.work.empty();
}

int synchronize(void* stream) {
  State& s = state();
  {
    const std::lock_guard lock(s.mutex);
    if (stream != nullptr && !s.streams.contains(stream)) return npu::kAclInvalidHandle;
  }
  while (!step(stream)) std::this_thread::yield();  // other threads may call while work is not ready
  const std::lock_guard lock(s.mutex);
  return std::exchange(s.streams[stream].error, 0);
}

int synchronize_all() {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  std::vector<void*> streams;
  for (const auto& [stream, queue] : s.streams) streams.push_back(stream);
  int error = 0;
  for (void* const stream : streams)
    if (const int one = synchronize(stream); one != 0) error = one;
  return error;
}

bool is_device_memory(const void* address, size_t bytes) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  if (holds(s.blocks, address, bytes, [](const Block& block) { return block.mapped_bytes; })) return true;
  auto* at = static_cast<char*>(const_cast<void*>(address));
  char* const end = at + bytes;  // a run of mappings may be copied at once
  while (at < end) {
    auto mapping = s.mappings.upper_bound(at);
    if (mapping == s.mappings.begin()) return false;
    --mapping;
    if (at >= mapping->first + mapping->second.bytes) return false;
    at = mapping->first + mapping->second.bytes;
  }
  return true;
}

bool is_pinned(const void* address) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  return holds(s.host_blocks, address, 1, [](const size_t& size) { return size; });
}

int copy(void* to, const void* from, size_t bytes, int kind) {
  const bool is_to_device = kind == npu::kAclCopyToDevice || kind == kCopyOnDevice,
             is_from_device = kind == npu::kAclCopyToHost || kind == kCopyOnDevice;
  if (is_to_device && !is_device_memory(to, bytes)) return npu::kAclCopyFailed;
  if (is_from_device && !is_device_memory(from, bytes)) return npu::kAclCopyFailed;
  std::memcpy(to, from, bytes);
  return 0;
}

}  // namespace fake_cann

using fake_cann::begin;
using fake_cann::begin_with_context;

extern "C" {

void fake_cann_set(const char* option, const char* value) {
  const std::lock_guard lock(state().mutex);
  set_option(option, value);
}

int64_t fake_cann_count(const char* what) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  const std::string_view name(what);
  if (name == "reservations") return std::ssize(s.reservations);
  if (name == "handles") return std::ssize(s.handles);
  if (name == "mappings") return std::ssize(s.mappings);
  if (name == "blocks") return std::ssize(s.blocks);
  if (name == "host_blocks") return std::ssize(s.host_blocks);
  if (name == "streams") return std::ssize(s.streams) - (s.streams.contains(nullptr) ? 1 : 0);
  if (name == "used_bytes") return static_cast<int64_t>(s.used_bytes[current_device]);
  if (name == "calls") return s.num_calls;
  if (name == "failures") return s.num_failures;
  if (name == "deterministic") return s.deterministic;
  return -1;
}

const char* fake_cann_failed_call() {
  static thread_local std::string call;
  const std::lock_guard lock(state().mutex);
  call = state().options.failed_call;
  return call.c_str();
}

int aclInit(const char* /*configuration*/) {
  if (const int failure = begin("aclInit")) return failure;
  const std::lock_guard lock(state().mutex);
  return std::exchange(state().is_initialised, true) ? npu::kAclRepeatedInit : 0;
}

const char* aclGetRecentErrMsg() { return recent_words; }

const char* aclrtGetSocName() {
  static thread_local std::string soc;
  const std::lock_guard lock(state().mutex);
  soc = state().options.soc;
  return soc.c_str();
}

int aclsysGetVersionStr(char* package, char* version) {
  if (const int failure = begin("aclsysGetVersionStr")) return failure;
  const std::lock_guard lock(state().mutex);
  if (std::strcmp(package, "runtime") != 0 && std::strcmp(package, "CANN") != 0) return 100003;
  if (state().options.version.empty()) return 100003;  // no such file
  std::strcpy(version, state().options.version.c_str());
  return 0;
}

int aclrtGetDeviceCount(uint32_t* count) {
  if (const int failure = begin("aclrtGetDeviceCount")) return failure;
  const std::lock_guard lock(state().mutex);
  *count = static_cast<uint32_t>(visible_devices().size());
  return 0;
}

int aclrtSetDevice(int32_t device) {
  if (const int failure = begin("aclrtSetDevice")) return failure;
  const std::lock_guard lock(state().mutex);
  if (!state().is_initialised) return 100001;
  if (device < 0 || device >= std::ssize(visible_devices())) return npu::kAclInvalidDevice;
  current_device = device;
  return 0;
}

int aclrtGetCurrentContext(void** context) {
  if (const int failure = begin_with_context("aclrtGetCurrentContext")) return failure;
  *context = reinterpret_cast<void*>(static_cast<intptr_t>(current_device + 1));
  return 0;
}

int aclrtSetCurrentContext(void* context) {
  if (const int failure = begin("aclrtSetCurrentContext")) return failure;
  if (context == nullptr) return npu::kAclInvalidParameter;
  current_device = static_cast<int>(reinterpret_cast<intptr_t>(context)) - 1;
  return 0;
}

int aclrtDeviceGetUuid(int32_t device, void* uuid) {
  if (const int failure = begin("aclrtDeviceGetUuid")) return failure;
  const std::lock_guard lock(state().mutex);
  std::array<char, 16> bytes = {};
  if (state().options.uuid != "zeros")
    for (size_t i = 0; i < bytes.size(); ++i)
      bytes[i] = static_cast<char>(16 * visible_devices().at(static_cast<size_t>(device)) + static_cast<int>(i));
  std::memcpy(uuid, bytes.data(), bytes.size());
  return 0;
}

int aclrtGetLogicDevIdByUserDevId(int32_t user_device, int32_t* logic_device) {
  if (const int failure = begin("aclrtGetLogicDevIdByUserDevId")) return failure;
  const std::lock_guard lock(state().mutex);
  if (user_device < 0 || user_device >= std::ssize(visible_devices())) return npu::kAclInvalidDevice;
  *logic_device = visible_devices().at(static_cast<size_t>(user_device));
  return 0;
}

// The machine's devices are plugged in the other way round.
int aclrtGetPhyDevIdByLogicDevId(int32_t logic_device, int32_t* physical_device) {
  if (const int failure = begin("aclrtGetPhyDevIdByLogicDevId")) return failure;
  const std::lock_guard lock(state().mutex);
  *physical_device = state().options.num_devices - 1 - logic_device;
  return 0;
}

int aclrtGetMemInfo(int32_t /*memory*/, size_t* free_bytes, size_t* total_bytes) {
  if (const int failure = begin_with_context("aclrtGetMemInfo")) return failure;
  State& s = state();
  const std::lock_guard lock(s.mutex);
  *total_bytes = s.options.bytes;
  *free_bytes = s.options.bytes - s.used_bytes[current_device];
  return 0;
}

int aclrtMalloc(void** address, size_t bytes, int32_t /*policy*/) {
  if (const int failure = begin_with_context("aclrtMalloc")) return failure;
  const std::lock_guard lock(state().mutex);
  return bytes == 0 ? npu::kAclInvalidParameter : allocate(address, bytes);
}

int aclrtFree(void* address) {
  if (const int failure = begin("aclrtFree")) return failure;
  State& s = state();
  const std::lock_guard lock(s.mutex);
  const auto block = s.blocks.find(static_cast<char*>(address));
  if (block == s.blocks.end()) return npu::kAclInvalidParameter;
  ::munmap(address, block->second.mapped_bytes + kPageBytes);
  s.used_bytes[block->second.device] -= block->second.bytes;
  s.blocks.erase(block);
  return 0;
}

int aclrtMallocHost(void** address, size_t bytes) {
  if (const int failure = begin_with_context("aclrtMallocHost")) return failure;
  State& s = state();
  const std::lock_guard lock(s.mutex);
  size_t used = 0;
  for (const auto& [block, size] : s.host_blocks) used += size;
  if (used + bytes > s.options.host_bytes) return npu::kAclMemoryAllocation;
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return npu::kAclMemoryAllocation;
  s.host_blocks[static_cast<char*>(memory)] = bytes;
  *address = memory;
  return 0;
}

int aclrtFreeHost(void* address) {
  if (const int failure = begin("aclrtFreeHost")) return failure;
  State& s = state();
  const std::lock_guard lock(s.mutex);
  const auto block = s.host_blocks.find(static_cast<char*>(address));
  if (block == s.host_blocks.end()) return npu::kAclInvalidParameter;
  ::munmap(address, block->second);
  s.host_blocks.erase(block);
  return 0;
}

int aclrtMemcpy(void* to, size_t to_bytes, const void* from, size_t bytes, int32_t kind) {
  if (const int failure = begin_with_context("aclrtMemcpy")) return failure;
  return bytes > to_bytes ? npu::kAclInvalidParameter : fake_cann::copy(to, from, bytes, kind);
}

int aclrtMemcpyAsync(void* to, size_t to_bytes, const void* from, size_t bytes, int32_t kind, void* stream) {
  if (const int failure = begin_with_context("aclrtMemcpyAsync")) return failure;
  if (bytes > to_bytes) return npu::kAclInvalidParameter;
  return fake_cann::enqueue(stream, [=] { return fake_cann::copy(to, from, bytes, kind); });
}

int aclrtReserveMemAddress(void** address, size_t bytes, size_t /*alignment*/, void* wanted, uint64_t /*flags*/) {
  if (const int failure = begin_with_context("aclrtReserveMemAddress")) return failure;
  if (wanted != nullptr || bytes % kHugePageBytes != 0) return npu::kAclInvalidParameter;
  void* const range = ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (range == MAP_FAILED) return npu::kAclMemoryAllocation;
  const std::lock_guard lock(state().mutex);
  state().reservations[static_cast<char*>(range)] = bytes;
  *address = range;
  return 0;
}

int aclrtReleaseMemAddress(void* address) {
  if (const int failure = begin("aclrtReleaseMemAddress")) return failure;
  State& s = state();
  const std::lock_guard lock(s.mutex);
  const auto reservation = s.reservations.find(static_cast<char*>(address));
  if (reservation == s.reservations.end()) return npu::kAclInvalidParameter;
  if (!is_free_of_mappings(reservation->first, reservation->second)) return npu::kAclInvalidParameter;
  ::munmap(address, reservation->second);
  s.reservations.erase(reservation);
  return 0;
}

int aclrtMallocPhysical(void** handle, size_t bytes, const npu::AclMemoryProperties* properties, uint64_t flags) {
  if (const int failure = begin_with_context("aclrtMallocPhysical")) return failure;
  State& s = state();
  const std::lock_guard lock(s.mutex);
  if (flags != 0 || bytes % kHugePageBytes != 0 || properties->location.type != npu::kAclOnDevice)
    return npu::kAclInvalidParameter;
  const auto device = static_cast<int>(properties->location.id);
  if (device >= std::ssize(visible_devices())) return npu::kAclInvalidDevice;
  size_t& used = s.used_bytes[device];
  if (used + bytes > s.options.bytes) return npu::kAclMemoryAllocation;
  const int file = ::memfd_create("fake_cann", MFD_CLOEXEC);
  if (file < 0 || ::ftruncate(file, static_cast<off_t>(bytes)) != 0) return npu::kAclMemoryAllocation;
  auto* const memory = new Handle{.file = file, .bytes = bytes, .device = device};
  s.handles.insert(memory);
  used += bytes;
  *handle = memory;
  return 0;
}

// CANN does not say what happens to a handle that is freed while it is mapped, so here that is an error.
int aclrtFreePhysical(void* handle) {
  if (const int failure = begin("aclrtFreePhysical")) return failure;
  State& s = state();
  const std::lock_guard lock(s.mutex);
  auto* const memory = static_cast<Handle*>(handle);
  if (!s.handles.contains(memory) || memory->num_mappings > 0) return npu::kAclInvalidHandle;
  s.used_bytes[memory->device] -= memory->bytes;
  s.handles.erase(memory);
  ::close(memory->file);
  delete memory;
  return 0;
}

int aclrtMapMem(void* address, size_t bytes, size_t offset, void* handle, uint64_t flags) {
  if (const int failure = begin_with_context("aclrtMapMem")) return failure;
  State& s = state();
  const std::lock_guard lock(s.mutex);
  auto* const memory = static_cast<Handle*>(handle);
  auto* const begin = static_cast<char*>(address);
  if (!s.handles.contains(memory)) return npu::kAclInvalidHandle;
  if (flags != 0 || offset != 0 || bytes != memory->bytes) return npu::kAclInvalidParameter;
  if (!is_reserved(begin, bytes) || !is_free_of_mappings(begin, bytes)) return npu::kAclInvalidParameter;
  const bool is_second = memory->num_mappings > 0;
  if (is_second && s.options.aliases == "refused") return npu::kAclInvalidParameter;
  const int sharing = is_second && s.options.aliases == "copies" ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
  const int file = (sharing & MAP_ANONYMOUS) != 0 ? -1 : memory->file;
  if (::mmap(address, bytes, PROT_READ | PROT_WRITE, sharing | MAP_FIXED, file, 0) == MAP_FAILED)
    return npu::kAclMemoryAllocation;
  ++memory->num_mappings;
  s.mappings[begin] = {.bytes = bytes, .handle = memory};
  return 0;
}

int aclrtUnmapMem(void* address) {
  if (const int failure = begin("aclrtUnmapMem")) return failure;
  State& s = state();
  const std::lock_guard lock(s.mutex);
  const auto mapping = s.mappings.find(static_cast<char*>(address));
  if (mapping == s.mappings.end()) return npu::kAclInvalidParameter;
  ::mmap(address, mapping->second.bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
  --mapping->second.handle->num_mappings;
  s.mappings.erase(mapping);
  return 0;
}

int aclrtMemGetAllocationGranularity(npu::AclMemoryProperties* /*properties*/, int32_t /*option*/, size_t* bytes) {
  if (const int failure = begin_with_context("aclrtMemGetAllocationGranularity")) return failure;
  *bytes = kHugePageBytes;
  return 0;
}

int aclrtCreateStream(void** stream) {
  if (const int failure = begin_with_context("aclrtCreateStream")) return failure;
  State& s = state();
  const std::lock_guard lock(s.mutex);
  *stream = new char;
  s.streams[*stream] = {};
  return 0;
}

int aclrtDestroyStream(void* stream) {
  if (const int failure = begin("aclrtDestroyStream")) return failure;
  State& s = state();
  const std::lock_guard lock(s.mutex);
  if (!s.streams.contains(stream)) return npu::kAclInvalidHandle;
  s.streams.erase(stream);
  delete static_cast<char*>(stream);
  return 0;
}

// Somebody who asks again and again gets on by one piece of work each time.
int aclrtStreamQuery(void* stream, int32_t* status) {
  if (const int failure = begin_with_context("aclrtStreamQuery")) return failure;
  const std::lock_guard lock(state().mutex);
  if (stream != nullptr && !state().streams.contains(stream)) return npu::kAclInvalidHandle;
  *status = fake_cann::step(stream) ? npu::kAclStreamComplete : npu::kAclStreamNotReady;
  return *status == npu::kAclStreamComplete ? std::exchange(state().streams[stream].error, 0) : 0;
}

int aclrtSynchronizeStream(void* stream) {
  if (const int failure = begin_with_context("aclrtSynchronizeStream")) return failure;
  return fake_cann::synchronize(stream);
}

}  // extern "C"
