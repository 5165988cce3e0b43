#include "device/npu/tensor_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace tandem::device {
namespace {

// Large pieces are multiples of it, since AscendCL maps pages of this size.
constexpr int64_t kPieceBytes = int64_t{2} << 20;
// Blocks up to this size share a piece of kPieceBytes.
constexpr int64_t kSmallBytes = int64_t{1} << 20;

// Small blocks have sizes that are powers of two, so that few sizes serve all.
int64_t size_class(int64_t block_bytes) {
  if (block_bytes <= kSmallBytes) return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(block_bytes)));
  return (block_bytes + kPieceBytes - 1) / kPieceBytes * kPieceBytes;
}

}  // namespace

NpuTensorMemory::NpuTensorMemory(const npu::AclCalls& acl, int index, std::function<void()> synchronize)
    : device_(acl, index), synchronize_(std::move(synchronize)) {}

NpuTensorMemory::~NpuTensorMemory() {
  for (const auto& [address, piece] : pieces_) device_.acl().aclrtFree(address);
}

void NpuTensorMemory::set_source(AllocatorHook* source) {
  const std::lock_guard lock(mutex_);
  TANDEM_CHECK(source == nullptr || source_ == nullptr, "one source at a time");
  source_ = source;
}

std::byte* NpuTensorMemory::allocate(int64_t bytes) {
  const int64_t wanted = block_bytes(bytes);
  {
    const std::lock_guard lock(mutex_);
    if (source_ != nullptr) {
      if (std::byte* const address = source_->allocate(wanted)) return address;
    }
    if (std::byte* const address = take_block(size_class(wanted))) return address;
  }
  release_unused();  // waits without the lock: the queue's thread may be allocating
  const std::lock_guard lock(mutex_);
  std::byte* const address = take_block(size_class(wanted));
  TANDEM_ENV_CHECK(address != nullptr,
                   fmt::format("npu:{}: no memory for a tensor of {} bytes; free memory of this device, or give a "
                               "smaller --max-tokens-per-gpu",
                               device_.index(), bytes));
  return address;
}

std::byte* NpuTensorMemory::take_block(int64_t bytes) {
  std::vector<std::byte*>& blocks = unused_[bytes];
  if (blocks.empty()) {
    const int64_t piece_bytes = std::max(bytes, kPieceBytes);
    std::byte* const piece = allocate_piece(piece_bytes);
    if (piece == nullptr) return nullptr;
    pieces_[piece] = {.bytes = piece_bytes, .block_bytes = bytes};
    for (int64_t first = piece_bytes - bytes; first >= 0; first -= bytes) blocks.push_back(piece + first);
  }
  std::byte* const address = blocks.back();
  blocks.pop_back();
  ++std::prev(pieces_.upper_bound(address))->second.num_used;
  return address;
}

std::byte* NpuTensorMemory::allocate_piece(int64_t bytes) {
  const npu::CurrentContext current(device_);
  const npu::AclCalls& acl = device_.acl();
  void* address = nullptr;
  const npu::AclResult result = acl.aclrtMalloc(&address, static_cast<size_t>(bytes), npu::kAclHugePagesFirst);
  return had_memory(acl, result, "aclrtMalloc", bytes) ? static_cast<std::byte*>(address) : nullptr;
}

void NpuTensorMemory::free(std::byte* address) {
  const std::lock_guard lock(mutex_);
  if (source_ != nullptr && source_->free(address)) return;
  const auto after = pieces_.upper_bound(address);
  TANDEM_CHECK(after != pieces_.begin(), "memory that was not allocated here");
  Piece& piece = std::prev(after)->second;
  unused_[piece.block_bytes].push_back(address);
  --piece.num_used;
}

void NpuTensorMemory::release_unused() {
  synchronize_();
  const std::lock_guard lock(mutex_);
  const npu::CurrentContext current(device_);
  for (auto piece = pieces_.begin(); piece != pieces_.end();) {
    std::byte *const begin = piece->first, *const end = begin + piece->second.bytes;
    if (piece->second.num_used > 0) {
      ++piece;
      continue;
    }
    npu::check_acl(device_.acl(), device_.acl().aclrtFree(begin), "aclrtFree", piece->second.bytes);
    std::erase_if(unused_[piece->second.block_bytes], [=](std::byte* block) { return begin <= block && block < end; });
    piece = pieces_.erase(piece);
  }
}

}  // namespace tandem::device
