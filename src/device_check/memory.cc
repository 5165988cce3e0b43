#include "device_check/memory.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/message_text.h"

namespace tandem::device_check {

namespace {

// Bytes that no other place has: `salt` names the place.
std::vector<std::byte> pattern(int64_t count, int salt) {
  std::vector<std::byte> bytes(static_cast<size_t>(count));
  for (size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::byte>((i * 31 + (i >> 8) + static_cast<size_t>(salt)) & 255);
  return bytes;
}

// Copies through pinned memory, as weights and checkpoints do.
class Copies {
 public:
  Copies(device::HostMemory& host, int64_t most) : host_(host), most_(most), pinned_(host.allocate(most)) {
    TANDEM_ENV_CHECK(pinned_ != nullptr, fmt::format("the host pins no {} bytes", base::with_commas(most)));
  }
  ~Copies() { host_.free(pinned_, most_); }
  Copies(const Copies&) = delete;
  Copies& operator=(const Copies&) = delete;

  void write(std::byte* device, const std::vector<std::byte>& bytes) {
    std::ranges::copy(bytes, pinned_);
    host_.copy_to_device(device, pinned_, std::ssize(bytes));
    host_.synchronize();
  }
  bool holds(const std::byte* device, const std::vector<std::byte>& bytes) {
    std::fill(pinned_, pinned_ + most_, std::byte{0});
    host_.copy_to_host(pinned_, device, std::ssize(bytes));
    host_.synchronize();
    return std::ranges::equal(bytes, std::span(pinned_, bytes.size()));
  }

 private:
  device::HostMemory& host_;
  const int64_t most_;
  std::byte* const pinned_;
};

// Serves LibTorch's allocations from one piece of mapped memory, as an arena does.
class OnePiece final : public device::AllocatorHook {
 public:
  OnePiece(std::byte* address, int64_t bytes) : address_(address), bytes_(bytes) {}
  std::byte* allocate(int64_t bytes) override {
    if (bytes > bytes_ || is_taken_.exchange(true)) return nullptr;
    return address_;
  }
  bool free(std::byte* address) override {
    if (address != address_) return false;
    is_taken_ = false;
    return true;
  }
  bool is_taken() const { return is_taken_; }

 private:
  std::byte* const address_;
  const int64_t bytes_;
  std::atomic<bool> is_taken_ = false;
};

void ask_tensor_source(device::MemoryDriver& memory, const device::Ops& ops, std::byte* address, int64_t bytes,
                       Answers& answers) {
  if (memory.set_tensor_source == nullptr) return answers.answer("LibTorch's tensors lie in memory of ours", false);
  OnePiece source(address, bytes);
  memory.set_tensor_source(&source);
  bool lies_there = false;
  {
    const at::Tensor tensor = at::empty({bytes / 8}, at::TensorOptions(at::kByte).device(ops.device()));
    lies_there = tensor.const_data_ptr() == address && source.is_taken();
  }
  memory.synchronize();
  memory.set_tensor_source(nullptr);
  answers.answer("LibTorch's tensors lie in memory of ours, and give it back", lies_there && !source.is_taken());
}

}  // namespace

void ask_memory(device::MemoryDriver& memory, const device::Ops& ops, Answers& answers) {
  answers.begin("memory");
  device::Vmm& vmm = *memory.vmm;
  const device::VmmCounts before = vmm.counts();
  const int64_t extent =
      std::max<int64_t>(vmm.granularity_bytes(), int64_t{2} << 20) / vmm.granularity_bytes() * vmm.granularity_bytes();
  answers.tell("granularity", fmt::format("{} bytes", base::with_commas(vmm.granularity_bytes())));
  const std::unique_ptr<device::HostMemory> host = memory.make_host();
  Copies copies(*host, extent);

  std::byte* const addresses = vmm.reserve_addresses(4 * extent);
  const std::optional<device::ExtentId> first = vmm.create_extent(extent), second = vmm.create_extent(extent);
  const bool has_memory = addresses != nullptr && first && second;
  answers.answer("addresses are reserved apart from memory", has_memory);
  if (!has_memory) return;
  const auto map = [&](int64_t place, device::ExtentId id) {
    return vmm.map(addresses + place * extent, id) && vmm.open_access(addresses + place * extent, extent);
  };
  const std::vector<std::byte> one = pattern(extent, 1), two = pattern(extent, 2);
  const bool is_mapped = map(0, *first) && map(1, *second);
  answers.answer("memory is mapped side by side", is_mapped);
  if (!is_mapped) return;
  copies.write(addresses, one);
  copies.write(addresses + extent, two);
  answers.answer("copies through pinned memory come back",
                 copies.holds(addresses, one) && copies.holds(addresses + extent, two));
  if (vmm.can_alias()) {
    const bool is_aliased = map(3, *first);
    bool is_same = is_aliased && copies.holds(addresses + 3 * extent, one);
    copies.write(addresses, two);
    is_same = is_same && copies.holds(addresses + 3 * extent, two);
    answers.answer("one extent at two addresses is one memory", is_same);
    if (is_aliased) vmm.unmap(addresses + 3 * extent, extent);
    copies.write(addresses, one);
  } else {
    answers.tell("one extent at two addresses", "not on this device: a change of phase unmaps and maps");
  }
  vmm.unmap(addresses, extent);
  answers.answer("what is mapped elsewhere keeps its contents",
                 map(2, *first) && copies.holds(addresses + 2 * extent, one));
  ask_tensor_source(memory, ops, addresses + 2 * extent, extent, answers);
  vmm.unmap(addresses + extent, 2 * extent);
  vmm.release_extent(*first);
  vmm.release_extent(*second);
  const int64_t too_much = (vmm.device_bytes().total / extent + 1) * extent * 64;
  const std::optional<device::ExtentId> huge = vmm.create_extent(too_much);
  answers.answer(fmt::format("{} bytes are refused as out of memory", base::with_commas(too_much)), !huge);
  if (huge) vmm.release_extent(*huge);
  vmm.free_addresses(addresses, 4 * extent);
  answers.answer("all of it is given back", vmm.counts() == before);
}

}  // namespace tandem::device_check
