// Counts LibTorch's allocations on the host.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <cstddef>
#include <cstdint>

namespace tandem::trainer {

// Counts the bytes of all CPU tensors that are made while it exists.
class CountingAllocator final : public c10::Allocator {
 public:
  CountingAllocator() : inner_(c10::GetCPUAllocator()) { c10::SetCPUAllocator(this, /*priority=*/1); }
  ~CountingAllocator() override { c10::SetCPUAllocator(inner_, /*priority=*/1); }

  int64_t live_bytes() const { return live_bytes_; }

  c10::DataPtr allocate(size_t bytes) override {
    auto* block = new Block{inner_->allocate(bytes), static_cast<int64_t>(bytes), &live_bytes_};
    live_bytes_ += block->bytes;
    return {block->data.get(), block, &release, block->data.device()};
  }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }

 private:
  struct Block {
    c10::DataPtr data;
    int64_t bytes;
    int64_t* live_bytes;
  };
  static void release(void* context) {
    auto* block = static_cast<Block*>(context);
    *block->live_bytes -= block->bytes;
    delete block;
  }

  c10::Allocator* inner_;
  int64_t live_bytes_ = 0;
};

}  // namespace tandem::trainer
