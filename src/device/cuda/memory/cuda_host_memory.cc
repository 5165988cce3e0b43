#include "device/cuda/memory/cuda_host_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "base/check.h"
#include "device/cuda/memory/cuda_driver.h"

namespace tandem::device {

namespace {

// The bytes of one registration are large enough that a copy is seldom cut, and small enough that all threads get some.
constexpr int64_t kPieceBytes = int64_t{256} << 20;

CUstream stream(void* opaque) { return static_cast<CUstream>(opaque); }

int64_t num_pieces(int64_t bytes) { return (bytes + kPieceBytes - 1) / kPieceBytes; }
int64_t piece_bytes(int64_t piece, int64_t bytes) { return std::min(kPieceBytes, bytes - piece * kPieceBytes); }

void unregister(std::byte* host, int64_t bytes, const std::vector<CUresult>& registered) {
  for (int64_t piece = 0; piece < num_pieces(bytes); ++piece)
    if (registered[static_cast<size_t>(piece)] == CUDA_SUCCESS)
      driver().cuMemHostUnregister(host + piece * kPieceBytes);
}

}  // namespace

CudaHostMemory::CudaHostMemory(int ordinal, int num_threads)
    : context_(std::make_unique<PrimaryContext>(ordinal)), num_threads_(num_threads) {
  const CurrentContext current(*context_);
  CUstream to_host = nullptr, to_device = nullptr;
  check_driver(driver().cuStreamCreate(&to_host, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  to_host_stream_ = to_host;
  if (const CUresult result = driver().cuStreamCreate(&to_device, CU_STREAM_NON_BLOCKING); result != CUDA_SUCCESS) {
    driver().cuStreamDestroy(to_host);
    check_driver(result, "cuStreamCreate");
  }
  to_device_stream_ = to_device;
}

CudaHostMemory::~CudaHostMemory() {
  if (driver().cuCtxPushCurrent(context_->get()) != CUDA_SUCCESS) return;  // the driver has shut down
  for (void* queue : {to_host_stream_, to_device_stream_}) {
    driver().cuStreamSynchronize(stream(queue));
    driver().cuStreamDestroy(stream(queue));
  }
  for (const auto& [host, bytes] : allocations_) {
    auto* const address = const_cast<std::byte*>(host);
    unregister(address, bytes, std::vector<CUresult>(static_cast<size_t>(num_pieces(bytes)), CUDA_SUCCESS));
    ::munmap(address, static_cast<size_t>(bytes));
  }
  CUcontext popped = nullptr;
  driver().cuCtxPopCurrent(&popped);
}

std::byte* CudaHostMemory::allocate(int64_t bytes) {
  TANDEM_CHECK(bytes > 0, bytes);
  void* address =
      ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED) return nullptr;
  ::madvise(address, static_cast<size_t>(bytes), MADV_HUGEPAGE);  // a hint: small pages work too
  auto* const host = static_cast<std::byte*>(address);

  std::vector<CUresult> results(static_cast<size_t>(num_pieces(bytes)), CUDA_ERROR_UNKNOWN);
  std::atomic<int64_t> next_piece = 0;
  const auto register_pieces = [&] {
    if (driver().cuCtxPushCurrent(context_->get()) != CUDA_SUCCESS) return;
    for (int64_t piece = next_piece++; piece < num_pieces(bytes); piece = next_piece++)
      results[static_cast<size_t>(piece)] = driver().cuMemHostRegister(
          host + piece * kPieceBytes, static_cast<size_t>(piece_bytes(piece, bytes)), CU_MEMHOSTREGISTER_PORTABLE);
    CUcontext popped = nullptr;
    driver().cuCtxPopCurrent(&popped);
  };
  std::vector<std::thread> threads;
  for (int64_t i = 1; i < std::min<int64_t>(num_threads_, num_pieces(bytes)); ++i)
    threads.emplace_back(register_pieces);
  register_pieces();
  for (std::thread& thread : threads) thread.join();

  const auto failed = std::find_if(results.begin(), results.end(), [](CUresult r) { return r != CUDA_SUCCESS; });
  if (failed == results.end()) {
    allocations_[host] = bytes;
    return host;
  }
  const CUresult result = *failed;
  {
    const CurrentContext current(*context_);
    unregister(host, bytes, results);
  }
  ::munmap(address, static_cast<size_t>(bytes));
  if (result != CUDA_ERROR_OUT_OF_MEMORY) check_driver(result, "cuMemHostRegister", bytes);
  return nullptr;
}

void CudaHostMemory::free(std::byte* host, int64_t bytes) {
  const auto allocation = allocations_.find(host);
  TANDEM_CHECK(allocation != allocations_.end() && allocation->second == bytes, bytes,
               "bytes that were not allocated so");
  const CurrentContext current(*context_);
  for (int64_t piece = 0; piece < num_pieces(bytes); ++piece)
    check_driver(driver().cuMemHostUnregister(host + piece * kPieceBytes), "cuMemHostUnregister",
                 piece_bytes(piece, bytes));
  ::munmap(host, static_cast<size_t>(bytes));
  allocations_.erase(allocation);
}

void CudaHostMemory::for_each_piece(const std::byte* host, int64_t bytes,
                                    const std::function<void(int64_t offset, int64_t bytes)>& copy) const {
  auto allocation = allocations_.upper_bound(host);
  TANDEM_CHECK(allocation != allocations_.begin(), "host memory that was not allocated here");
  --allocation;
  const int64_t begin = host - allocation->first;
  TANDEM_CHECK(begin + bytes <= allocation->second, bytes, "bytes reach beyond their allocation");
  for (int64_t offset = 0; offset < bytes;) {
    const int64_t count = std::min(bytes - offset, kPieceBytes - (begin + offset) % kPieceBytes);
    copy(offset, count);
    offset += count;
  }
}

void CudaHostMemory::copy_to_host(std::byte* host, const std::byte* device, int64_t bytes) {
  const CurrentContext current(*context_);
  for_each_piece(host, bytes, [&](int64_t offset, int64_t count) {
    check_driver(driver().cuMemcpyDtoHAsync(host + offset, pointer(device + offset), static_cast<size_t>(count),
                                            stream(to_host_stream_)),
                 "cuMemcpyDtoHAsync", count);
  });
}

void CudaHostMemory::copy_to_device(std::byte* device, const std::byte* host, int64_t bytes) {
  const CurrentContext current(*context_);
  for_each_piece(host, bytes, [&](int64_t offset, int64_t count) {
    check_driver(driver().cuMemcpyHtoDAsync(pointer(device + offset), host + offset, static_cast<size_t>(count),
                                            stream(to_device_stream_)),
                 "cuMemcpyHtoDAsync", count);
  });
}

void CudaHostMemory::synchronize() {
  const CurrentContext current(*context_);
  check_driver(driver().cuStreamSynchronize(stream(to_host_stream_)), "cuStreamSynchronize");
  check_driver(driver().cuStreamSynchronize(stream(to_device_stream_)), "cuStreamSynchronize");
}

}  // namespace tandem::device
