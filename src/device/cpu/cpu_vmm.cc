#include "device/cpu/cpu_vmm.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/check.h"
#include "base/machine_memory.h"

namespace tandem::device {

namespace {

[[noreturn]] void fail_call(const char* call, int64_t bytes, int error) {
  const char* remedy = "see whether the system limits mappings (vm.max_map_count) or memory files";
  if (error == EMFILE || error == ENFILE) remedy = "raise the limit of open files (ulimit -n) or take larger extents";
  if (error == EFBIG) remedy = "memory counts as a file here: raise the limit of file sizes (ulimit -f)";
  throw EnvironmentError(base::join_message(call, "of", bytes, "bytes:", std::strerror(error)) + "; " + remedy);
}

bool is_out_of_memory(int error) { return error == ENOMEM || error == ENOSPC || error == EAGAIN; }

}  // namespace

int64_t available_host_bytes() {
  const std::optional<int64_t> bytes = base::meminfo_bytes("MemAvailable");
  TANDEM_ENV_CHECK(bytes.has_value(), "/proc/meminfo has no line MemAvailable; Linux 3.14 or later is needed");
  return *bytes;
}

CpuVmm::CpuVmm(int64_t total_bytes, bool can_alias)
    : granularity_bytes_(sysconf(_SC_PAGESIZE)),
      total_bytes_(total_bytes > 0 ? total_bytes : available_host_bytes()),
      can_alias_(can_alias),
      table_(granularity_bytes_, can_alias) {}

CpuVmm::~CpuVmm() {
  for (const auto& [extent, descriptor] : descriptors_) ::close(descriptor);
}

DeviceBytes CpuVmm::device_bytes() const {
  std::lock_guard lock(mutex_);
  return {.free = total_bytes_ - table_.taken_bytes(), .total = total_bytes_};
}

VmmCounts CpuVmm::counts() const {
  std::lock_guard lock(mutex_);
  return table_.counts();
}

std::byte* CpuVmm::reserve_addresses(int64_t bytes) {
  std::lock_guard lock(mutex_);
  table_.check_bytes(bytes);
  void* address =
      ::mmap(nullptr, static_cast<size_t>(bytes), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) {
    if (is_out_of_memory(errno)) return nullptr;
    fail_call("mmap", bytes, errno);
  }
  table_.reserved(static_cast<std::byte*>(address), bytes);
  return static_cast<std::byte*>(address);
}

void CpuVmm::free_addresses(std::byte* address, int64_t bytes) {
  std::lock_guard lock(mutex_);
  table_.check_free(address, bytes);
  if (::munmap(address, static_cast<size_t>(bytes)) != 0) fail_call("munmap", bytes, errno);
  table_.freed(address);
}

std::optional<ExtentId> CpuVmm::create_extent(int64_t bytes) {
  std::lock_guard lock(mutex_);
  table_.check_bytes(bytes);
  // The kernel ends a process rather than refuse pages of a memfd, so the free memory is checked before.
  if (bytes > total_bytes_ - table_.taken_bytes() || bytes > available_host_bytes()) return std::nullopt;
  const int descriptor = ::memfd_create("tandem_extent", MFD_CLOEXEC);
  if (descriptor < 0) {
    if (is_out_of_memory(errno)) return std::nullopt;
    fail_call("memfd_create", bytes, errno);
  }
  int result = 0;
  do {
    result = ::fallocate(descriptor, 0, 0, bytes);
  } while (result != 0 && errno == EINTR);
  if (result != 0) {
    const int error = errno;
    ::close(descriptor);
    if (is_out_of_memory(error)) return std::nullopt;
    fail_call("fallocate", bytes, error);
  }
  const ExtentId extent = table_.created(bytes);
  descriptors_[extent] = descriptor;
  return extent;
}

void CpuVmm::release_extent(ExtentId extent) {
  std::lock_guard lock(mutex_);
  table_.check_extent(extent);
  ::close(descriptors_.at(extent));  // Linux closes it even where it reports an error
  descriptors_.erase(extent);
  table_.released(extent);
}

bool CpuVmm::map(std::byte* address, ExtentId extent) {
  std::lock_guard lock(mutex_);
  table_.check_map(address, extent);
  const int64_t bytes = table_.extent_bytes(extent);
  if (::mmap(address, static_cast<size_t>(bytes), PROT_NONE, MAP_SHARED | MAP_FIXED, descriptors_.at(extent), 0) ==
      MAP_FAILED) {
    if (is_out_of_memory(errno)) return false;
    fail_call("mmap", bytes, errno);
  }
  table_.mapped(address, extent);
  return true;
}

void CpuVmm::unmap(std::byte* address, int64_t bytes) {
  std::lock_guard lock(mutex_);
  table_.check_mapped(address, bytes);
  // The range becomes a reservation again: the addresses stay ours.
  if (::mmap(address, static_cast<size_t>(bytes), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
             -1, 0) == MAP_FAILED)
    fail_call("mmap", bytes, errno);
  table_.unmapped(address, bytes);
}

bool CpuVmm::open_access(std::byte* address, int64_t bytes) {
  std::lock_guard lock(mutex_);
  table_.check_mapped(address, bytes);
  if (::mprotect(address, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE) == 0) return true;
  if (!is_out_of_memory(errno)) fail_call("mprotect", bytes, errno);
  return false;
}

}  // namespace tandem::device
