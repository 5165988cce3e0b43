#include "trainer/pinned_memory.h"

#include <cstring>
#include <exception>

#include "base/check.h"
#include "base/log.h"

namespace tandem::trainer {
namespace {

std::byte* allocate_zeros(device::HostMemory& memory, int64_t bytes) {
  std::byte* const data = memory.allocate(bytes);
  TANDEM_ENV_CHECK(data != nullptr, "the host has no", bytes,
                   "bytes that can be pinned for the optimizer's state; free host memory, raise the limit of locked "
                   "memory (ulimit -l), or drop --offload-optimizer");
  std::memset(data, 0, static_cast<size_t>(bytes));
  return data;
}

}  // namespace

PinnedMemory::PinnedMemory(device::HostMemory& memory, int64_t bytes) : memory_(memory), bytes_(bytes) {
  TANDEM_CHECK(bytes > 0, bytes);
  data_ = std::async(std::launch::async, [&memory, bytes] { return allocate_zeros(memory, bytes); }).share();
}

PinnedMemory::~PinnedMemory() {
  std::byte* data = nullptr;
  try {
    data = data_.get();
  } catch (const std::exception&) {
    return;  // nothing was allocated; the caller of data() has got the error
  }
  try {
    memory_.free(data, bytes_);
  } catch (const EnvironmentError& error) {
    base::log_error("the optimizer's pinned memory was not given back: {}", error.what());
  }
}

}  // namespace tandem::trainer
