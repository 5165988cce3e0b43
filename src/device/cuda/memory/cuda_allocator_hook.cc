#include "device/cuda/memory/cuda_allocator_hook.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/cuda/MemPool.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <c10/core/AllocatorConfig.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <torch/csrc/cuda/CUDAPluggableAllocator.h>

#include <atomic>

#include "base/check.h"

namespace tandem::device {

namespace {

namespace caching = c10::cuda::CUDACachingAllocator;
namespace pluggable = torch::cuda::CUDAPluggableAllocator;

std::atomic<AllocatorHook*> current_source = nullptr;
caching::CUDAAllocator* caching_allocator = nullptr;  // LibTorch's own allocator
bool had_expandable_segments = false;

void* allocate(size_t bytes, int /*device*/, cudaStream_t stream) {
  AllocatorHook* const source = current_source.load(std::memory_order_acquire);
  if (source != nullptr && bytes > 0) {
    if (std::byte* const address = source->allocate(static_cast<int64_t>(bytes))) return address;
  }
  return caching_allocator->raw_alloc_with_stream(bytes, stream);
}

void release(void* address, size_t /*bytes*/, int /*device*/, cudaStream_t /*stream*/) {
  AllocatorHook* const source = current_source.load(std::memory_order_acquire);
  if (source != nullptr && source->free(static_cast<std::byte*>(address))) return;
  caching_allocator->raw_delete(address);
}

void install() {
  namespace settings = c10::CachingAllocator;
  had_expandable_segments = settings::AcceleratorAllocatorConfig::use_expandable_segments();
  if (had_expandable_segments) {
    settings::setAllocatorSettings(settings::getAllocatorSettings() + ",expandable_segments:False");
  }
  caching_allocator = caching::get();
  const auto ours = pluggable::createCustomAllocator(allocate, release);
  auto& hooks = dynamic_cast<pluggable::CUDAPluggableAllocator&>(*ours);
  hooks.set_reset_fn(release_cuda_cache);
  hooks.set_record_stream_fn([](void*, cudaStream_t) {});  // one stream computes
  pluggable::changeCurrentAllocator(ours);
  caching_allocator->init(c10::cuda::device_count());  // LibTorch will now initialise ours alone
}

void multiply() {
  const at::TensorOptions options(at::kCUDA);
  const at::Tensor x = at::ones({64, 64}, options.dtype(at::kFloat)), y = x.to(at::kBFloat16);
  at::mm(x, x);
  at::mm(y, y);
  at::mm(y, y, at::kFloat);
  at::bmm(x.unsqueeze(0), x.unsqueeze(0));
}

}  // namespace

void install_cuda_tensor_source() {
  static const bool installed = (install(), true);
  TANDEM_CHECK(installed);
}

bool expandable_segments_were_on() { return had_expandable_segments; }

void set_cuda_tensor_source(AllocatorHook* source) {
  TANDEM_CHECK(source == nullptr || current_source.load() == nullptr, "one source at a time");
  current_source.store(source, std::memory_order_release);
}

void make_cublas_workspaces() {
  multiply();
  at::Tensor x = at::ones({1}, at::TensorOptions(at::kCUDA).dtype(at::kFloat)).requires_grad_();
  const at::Tensor y = x * 2.0;
  y.register_hook([](const at::Tensor&) { multiply(); });
  y.backward();
}

GraphPool::GraphPool(c10::DeviceIndex device)
    : device_(device), id_(at::cuda::MemPool::graph_pool_handle(/*is_user_created=*/false)) {}
GraphPool::~GraphPool() {
  if (is_used_) caching_allocator->releasePool(device_, id_);
}

GraphPool::Scope::Scope(const GraphPool& pool, cudaStream_t stream) : pool_(pool) {
  caching_allocator->beginAllocateToPool(pool.device_, pool.id_, [stream](cudaStream_t of) { return of == stream; });
  pool.is_used_ = true;
}
GraphPool::Scope::~Scope() { caching_allocator->endAllocateToPool(pool_.device_, pool_.id_); }

void release_cuda_cache() { caching_allocator->emptyCache(); }

}  // namespace tandem::device
