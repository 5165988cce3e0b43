// Allocates ranges of offsets and records which are free and which are allocated under which name. It is pure
// bookkeeping: it never touches the memory that the offsets mean. It takes the best fit, and the same calls always give
// the same offsets. No torch.
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
  int64_t serial = 0;  // number of earlier allocations of this allocator
};

// Selects the end that an allocation takes, among holes of one size and within a hole.
enum class GrowsFrom : uint8_t { kLowEnd, kHighEnd };

// It is not thread-safe.
class ViewAllocator {
 public:
  static constexpr int64_t kAlignmentBytes = kRoundingBytes;

  explicit ViewAllocator(GrowsFrom end) : end_(end) {}

  // Makes [offset, offset + bytes) allocatable and merges it with adjacent holes.
  void add(int64_t offset, int64_t bytes);
  // Does the opposite. Throws BugError unless all of it is free.
  void remove(int64_t offset, int64_t bytes);

  // Returns std::nullopt if no hole is large enough. `bytes` > 0.
  std::optional<int64_t> allocate(int64_t bytes, Tag tag, std::string_view name);
  // Frees and returns the allocation at `offset`. Throws BugError if there is none.
  Allocation free(int64_t offset);
  // Gives the allocation that tag from now on. Returns its former tag, and its bytes.
  std::pair<Tag, int64_t> retag(int64_t offset, Tag tag);

  const std::map<int64_t, Allocation>& allocations() const { return allocations_; }
  // Returns the allocations that have a byte in [offset, offset + bytes).
  std::vector<Allocation> allocations_in(int64_t offset, int64_t bytes) const;
  int64_t free_bytes() const { return free_bytes_; }
  int64_t allocated_bytes() const { return allocated_bytes_; }
  int64_t next_serial() const { return next_serial_; }
  int64_t largest_hole_bytes() const { return by_size_.empty() ? 0 : by_size_.rbegin()->first; }

  // Throws BugError when the books contradict themselves.
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
