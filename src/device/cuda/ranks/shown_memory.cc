#include "device/cuda/ranks/shown_memory.h"

#include <ATen/cuda/CUDAEvent.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <cstring>
#include <map>
#include <memory>

#include "base/check.h"
#include "device/cuda/checksum.h"
#include "device/cuda/memory/cuda_driver.h"

namespace tandem::device {
namespace {

// An IPC handle holds this stretch of an allocation.
struct Shown {
  cudaIpcMemHandle_t handle;
  int64_t allocation_bytes, first_byte, num_bytes;
};

// Returns whether a call succeeded. A failure is forgotten: without exported memory weights go through the host.
bool is_done(cudaError_t error) {
  if (error != cudaSuccess) cudaGetLastError();
  return error == cudaSuccess;
}

// Older GPUs have no kernel for checksums.
bool has_kernels(int index) {
  int major = 0;
  return is_done(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index)) && major >= 8;
}

// Maps another process's allocation at addresses of this one.
class Mapping {
 public:
  static std::shared_ptr<Mapping> open(const cudaIpcMemHandle_t& handle) {
    void* data = nullptr;
    if (!is_done(cudaIpcOpenMemHandle(&data, handle, cudaIpcMemLazyEnablePeerAccess))) return nullptr;
    return std::shared_ptr<Mapping>(new Mapping(data));
  }
  ~Mapping() {
    is_done(cudaDeviceSynchronize());  // a copy may still read it
    is_done(cudaIpcCloseMemHandle(data_));
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  std::byte* data() const { return static_cast<std::byte*>(data_); }

 private:
  explicit Mapping(void* data) : data_(data) {}
  void* data_;
};

// Returns the one mapping of all tensors that lie in one allocation: drivers refuse to map it twice in one process.
std::shared_ptr<Mapping> mapping_of(const cudaIpcMemHandle_t& handle) {
  static std::map<std::string, std::weak_ptr<Mapping>> open;
  std::weak_ptr<Mapping>& known = open[std::string(handle.reserved, sizeof handle.reserved)];
  std::shared_ptr<Mapping> mapping = known.lock();
  if (mapping == nullptr) known = mapping = Mapping::open(handle);
  return mapping;
}

// A stream of the current device that is in no pool: another thread may capture a graph on a pool's stream meanwhile.
class OwnStream {
 public:
  explicit OwnStream(c10::DeviceIndex index) : index_(index) {
    const cudaError_t error = cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking);
    TANDEM_ENV_CHECK(error == cudaSuccess, "the GPU gives no stream for new weights:", cudaGetErrorString(error));
  }
  ~OwnStream() { is_done(cudaStreamDestroy(stream_)); }
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;
  c10::cuda::CUDAStream stream() const { return c10::cuda::getStreamFromExternal(stream_, index_); }

 private:
  const c10::DeviceIndex index_;
  cudaStream_t stream_ = nullptr;
};

// Checksums of tensors, which add up on the device.
class DeviceSums {
 public:
  // The sums begin at 0 in the current stream's order.
  explicit DeviceSums(const std::vector<at::Tensor>& tensors)
      : tensors_(tensors),
        sums_(at::zeros({static_cast<int64_t>(tensors.size()), 2},
                        at::TensorOptions(at::kLong).device(tensors[0].device()))) {}

  void add(size_t i, const c10::cuda::CUDAStream& stream) {
    const at::Tensor& tensor = tensors_[i];
    const void* const data = tensor.const_data_ptr();
    TANDEM_CHECK(tensor.is_contiguous() && reinterpret_cast<uintptr_t>(data) % 16 == 0,
                 "checksums are of contiguous tensors that begin at a multiple of 16 bytes");
    const cudaError_t error = cuda::add_checksum(data, static_cast<int64_t>(tensor.nbytes()),
                                                 static_cast<Checksum*>(sums_.mutable_data_ptr()) + i, stream.stream());
    TANDEM_ENV_CHECK(error == cudaSuccess, "the GPU's checksum failed:", cudaGetErrorString(error));
  }

  // Waits for the stream.
  std::vector<Checksum> fetch(const c10::cuda::CUDAStream& stream) const {
    std::vector<Checksum> result(tensors_.size());
    cudaError_t error = cudaMemcpyAsync(result.data(), sums_.const_data_ptr(), result.size() * sizeof(Checksum),
                                        cudaMemcpyDeviceToHost, stream.stream());
    if (error == cudaSuccess) error = cudaStreamSynchronize(stream.stream());
    TANDEM_ENV_CHECK(error == cudaSuccess, "the GPU's checksums cannot be read:", cudaGetErrorString(error));
    return result;
  }

 private:
  const std::vector<at::Tensor>& tensors_;
  const at::Tensor sums_;  // int64 [tensors, 2]
};

}  // namespace

std::string show_cuda_memory(const at::Tensor& tensor) {
  if (!tensor.is_cuda() || !tensor.is_contiguous() || tensor.nbytes() == 0) return "";
  if (!has_kernels(tensor.device().index())) return "";
  const auto address = reinterpret_cast<CUdeviceptr>(tensor.const_data_ptr());
  CUdeviceptr base = 0;
  size_t bytes = 0;
  if (driver().cuMemGetAddressRange(&base, &bytes, address) != CUDA_SUCCESS) return "";
  Shown shown = {.handle = {},
                 .allocation_bytes = static_cast<int64_t>(bytes),
                 .first_byte = static_cast<int64_t>(address - base),
                 .num_bytes = static_cast<int64_t>(tensor.nbytes())};
  if (shown.first_byte + shown.num_bytes > shown.allocation_bytes) return "";
  if (!is_done(cudaIpcGetMemHandle(&shown.handle, reinterpret_cast<void*>(base)))) return "";
  return {reinterpret_cast<const char*>(&shown), sizeof shown};
}

at::Tensor map_cuda_memory(int index, const std::string& word) {
  Shown shown;
  if (word.size() != sizeof shown || !has_kernels(index)) return {};
  std::memcpy(&shown, word.data(), sizeof shown);
  const bool is_within = shown.first_byte >= 0 && shown.num_bytes > 0 && shown.first_byte <= shown.allocation_bytes &&
                         shown.num_bytes <= shown.allocation_bytes - shown.first_byte;
  if (!is_within) return {};
  const at::Device device(at::kCUDA, static_cast<c10::DeviceIndex>(index));
  c10::cuda::set_device(device.index());
  std::shared_ptr<Mapping> mapping = mapping_of(shown.handle);
  if (mapping == nullptr) return {};
  std::byte* const data = mapping->data() + shown.first_byte;
  return at::for_blob(data, {shown.num_bytes})
      .options(at::TensorOptions(at::kByte).device(device))
      .target_device(device)
      .deleter([mapping = std::move(mapping)](void*) mutable { mapping = nullptr; })
      .make_tensor();
}

std::vector<Checksum> cuda_checksums(const std::vector<at::Tensor>& tensors) {
  if (tensors.empty()) return {};
  DeviceSums sums(tensors);
  for (size_t i = 0; i < tensors.size(); ++i) sums.add(i, c10::cuda::getCurrentCUDAStream());
  return sums.fetch(c10::cuda::getCurrentCUDAStream());
}

std::vector<Checksum> copy_mapped_cuda_memory(const at::Tensor& mapped, const at::Tensor& to,
                                              const std::vector<at::Tensor>& parts) {
  // Each stretch costs the copy 2 us, and the sums of the last one are not hidden: 64 to 320 MiB are alike.
  constexpr int64_t kStretchBytes = int64_t{128} << 20;
  TANDEM_CHECK(mapped.nbytes() == to.nbytes() && to.is_contiguous() && !parts.empty(), mapped.nbytes(), to.nbytes());
  auto* const begin = static_cast<std::byte*>(to.mutable_data_ptr());
  const auto* const from = static_cast<const std::byte*>(mapped.const_data_ptr());
  // The caller may be a thread of its own, beside one that computes: so streams of their own copy and sum, which wait
  // for what is queued by now, and for nothing that is queued later. The current stream is the same one in all threads.
  const c10::cuda::CUDAGuard device(to.device());
  const OwnStream copying(to.device().index()), adding(to.device().index());
  const c10::cuda::CUDAStream copies = copying.stream(), adds = adding.stream();
  DeviceSums sums(parts);
  at::cuda::CUDAEvent is_ready, is_copied;
  is_ready.record(c10::cuda::getCurrentCUDAStream());
  is_ready.block(copies);
  is_ready.block(adds);
  int64_t copied = 0;
  size_t first = 0;  // of the parts that are not summed yet
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto end =
        static_cast<const std::byte*>(parts[i].const_data_ptr()) - begin + static_cast<int64_t>(parts[i].nbytes());
    const bool is_last = i + 1 == parts.size();
    if (!is_last && end - copied < kStretchBytes) continue;
    const int64_t until = is_last ? static_cast<int64_t>(to.nbytes()) : end;
    TANDEM_CHECK(until >= end && end > copied, "parts lie one after the other");
    const cudaError_t error = cudaMemcpyAsync(begin + copied, from + copied, static_cast<size_t>(until - copied),
                                              cudaMemcpyDefault, copies.stream());
    TANDEM_ENV_CHECK(error == cudaSuccess, "new weights cannot be copied:", cudaGetErrorString(error));
    copied = until;
    is_copied.record(copies);
    is_copied.block(adds);
    for (; first <= i; ++first) sums.add(first, adds);
  }
  return sums.fetch(adds);  // the last sum comes after the last copy
}

}  // namespace tandem::device
