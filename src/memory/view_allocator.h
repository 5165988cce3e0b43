// Names stretches of a range of offsets: which are free, and which are allocated, by whom. Pure bookkeeping: it never
// touches the memory that the offsets mean. Best fit, and the same calls always give the same offsets. No torch.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "memory/memory_plan.h"
#include "memory/tag.h"

namespace tandem::memory {

struct Allocation {
  int64_t offset = 0;
  int64_t bytes = 0;  // rounded up to ViewAllocator::kAlignmentBytes
  Tag tag = Tag::kOverhead;
  std::string name;
  int64_t serial = 0;  // counts the allocations of its allocator, in the order in which they were made
};

// Of holes of one size, and within a hole: which end an allocation takes.
enum class GrowsFrom : uint8_t { kLowEnd, kHighEnd };

// Not thread-safe.
class ViewAllocator {
 public:
  static constexpr int64_t kAlignmentBytes = kRoundingBytes;

  explicit ViewAllocator(GrowsFrom end) : end_(end) {}

  // [offset, offset + bytes) becomes allocatable; of the holes beside it, it becomes one.
  void add(int64_t offset, int64_t bytes);
  // The other way round. BugError unless all of it is free.
  void remove(int64_t offset, int64_t bytes);

  // std::nullopt: no hole is large enough. `bytes` > 0.
  std::optional<int64_t> allocate(int64_t bytes, Tag tag, std::string_view name);
  // What was allocated at `offset`; BugError when nothing was.
  Allocation free(int64_t offset);
  // From now on the allocation is of that tag. Returns the one it had, and its bytes.
  std::pair<Tag, int64_t> retag(int64_t offset, Tag tag);
  // Cuts an allocation's upper end off. Returns how many bytes became free.
  int64_t shrink(int64_t offset, int64_t bytes);

  const std::map<int64_t, Allocation>& allocations() const { return allocations_; }
  // Allocations that have a byte in [offset, offset + bytes).
  std::vector<Allocation> allocations_in(int64_t offset, int64_t bytes) const;
  int64_t free_bytes() const { return free_bytes_; }
  int64_t allocated_bytes() const { return allocated_bytes_; }
  int64_t next_serial() const { return next_serial_; }
  int64_t largest_hole_bytes() const { return by_size_.empty() ? 0 : by_size_.rbegin()->first; }

  // BugError when the books contradict themselves.
  void check() const;

 private:
  using Holes = std::map<int64_t, int64_t>;  // offset to bytes
  void erase_hole(Holes::iterator hole);
  void insert_hole(int64_t offset, int64_t bytes);

  GrowsFrom end_;
  Holes holes_;
  std::set<std::pair<int64_t, int64_t>> by_size_;  // bytes and offset of each hole
  std::map<int64_t, Allocation> allocations_;
  int64_t free_bytes_ = 0, allocated_bytes_ = 0, next_serial_ = 0;
};

}  // namespace tandem::memory
