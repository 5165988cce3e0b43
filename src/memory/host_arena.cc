#include "memory/host_arena.h"

#include "base/check.h"
#include "base/log.h"

namespace tandem::memory {

HostArena::HostArena(device::HostMemory& memory, int64_t bytes, std::string_view remedy)
    : memory_(memory), bytes_(bytes) {
  TANDEM_CHECK(bytes >= 0 && bytes % ViewAllocator::kAlignmentBytes == 0, bytes);
  if (bytes == 0) return;
  data_ = memory.allocate(bytes);
  TANDEM_ENV_CHECK(data_ != nullptr, "the host has no", bytes,
                   "bytes that can be pinned; free host memory, raise the limit of locked memory (ulimit -l), or",
                   remedy);
  allocator_.add(0, bytes);
}

HostArena::~HostArena() {
  if (data_ == nullptr) return;
  try {
    memory_.free(data_, bytes_);
  } catch (const EnvironmentError& error) {
    base::log_error("host memory was not given back: {}", error.what());
  }
}

std::byte* HostArena::allocate(int64_t bytes, Tag tag, std::string_view name) {
  const std::optional<int64_t> offset = allocator_.allocate(bytes, tag, name);
  return offset ? data_ + *offset : nullptr;
}

void HostArena::free(std::byte* address) { allocator_.free(address - data_); }

}  // namespace tandem::memory
