#include "device/cpu/cpu_allocator_hook.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <atomic>

#include "base/check.h"

namespace tandem::device {

namespace {

std::atomic<AllocatorHook*> current_source = nullptr;
c10::Allocator* torch_allocator = nullptr;  // LibTorch's own allocator

// One deleter serves both origins, as raw_deleter() promises.
void free_anywhere(void* address) {
  if (address == nullptr) return;
  AllocatorHook* const source = current_source.load(std::memory_order_acquire);
  if (source != nullptr && source->free(static_cast<std::byte*>(address))) return;
  torch_allocator->raw_deallocate(address);
}

class SourcedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    AllocatorHook* const source = current_source.load(std::memory_order_acquire);
    void* address = nullptr;
    if (source != nullptr && bytes > 0) address = source->allocate(static_cast<int64_t>(bytes));
    if (address == nullptr) address = torch_allocator->raw_allocate(bytes);
    return {address, address, &free_anywhere, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_anywhere; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
};

// LibTorch keeps the pointer beyond all destructors.
void install() {
  torch_allocator = c10::GetCPUAllocator();
  constexpr uint8_t kHighestPriority = 255;
  c10::SetCPUAllocator(new SourcedAllocator, kHighestPriority);
}

}  // namespace

void set_cpu_tensor_source(AllocatorHook* source) {
  static const bool installed = (install(), true);
  TANDEM_CHECK(installed && (source == nullptr || current_source.load() == nullptr), "one source at a time");
  current_source.store(source, std::memory_order_release);
}

}  // namespace tandem::device
