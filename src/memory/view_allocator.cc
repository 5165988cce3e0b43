#include "memory/view_allocator.h"

#include <iterator>
#include <limits>

#include "base/check.h"

namespace tandem::memory {

namespace {

int64_t rounded_up(int64_t bytes) {
  constexpr int64_t kAlignmentBytes = ViewAllocator::kAlignmentBytes;
  return (bytes + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes;
}

}  // namespace

void ViewAllocator::add(int64_t offset, int64_t bytes) {
  TANDEM_CHECK(bytes > 0 && bytes % kAlignmentBytes == 0 && offset % kAlignmentBytes == 0, offset, bytes);
  auto next = holes_.lower_bound(offset);
  TANDEM_CHECK(next == holes_.end() || next->first >= offset + bytes, "free twice:", offset, bytes);
  int64_t begin = offset, end = offset + bytes;
  if (next != holes_.begin()) {
    const auto before = std::prev(next);
    TANDEM_CHECK(before->first + before->second <= offset, "free twice:", offset, bytes);
    if (before->first + before->second == offset) {
      begin = before->first;
      erase_hole(before);
    }
  }
  if (next != holes_.end() && next->first == end) {
    end += next->second;
    erase_hole(next);
  }
  insert_hole(begin, end - begin);
}

void ViewAllocator::remove(int64_t offset, int64_t bytes) {
  auto hole = holes_.upper_bound(offset);
  TANDEM_CHECK(hole != holes_.begin(), "not free:", offset, bytes);
  --hole;
  const int64_t begin = hole->first, end = hole->first + hole->second;
  TANDEM_CHECK(offset + bytes <= end && bytes > 0, "not free:", offset, bytes);
  erase_hole(hole);
  if (begin < offset) insert_hole(begin, offset - begin);
  if (offset + bytes < end) insert_hole(offset + bytes, end - offset - bytes);
}

std::optional<int64_t> ViewAllocator::allocate(int64_t bytes, Tag tag, std::string_view name) {
  TANDEM_CHECK(bytes > 0, bytes, "bytes of", to_string(tag));
  if (bytes > largest_hole_bytes()) return std::nullopt;
  bytes = rounded_up(bytes);  // holes are multiples of the alignment, so it still fits
  auto fit = by_size_.lower_bound({bytes, 0});
  if (end_ == GrowsFrom::kHighEnd)
    fit = std::prev(by_size_.upper_bound({fit->first, std::numeric_limits<int64_t>::max()}));
  const auto [hole_bytes, hole_offset] = *fit;
  const int64_t offset = end_ == GrowsFrom::kLowEnd ? hole_offset : hole_offset + hole_bytes - bytes;
  remove(offset, bytes);
  allocations_[offset] = {
      .offset = offset, .bytes = bytes, .tag = tag, .name = std::string(name), .serial = next_serial_++};
  allocated_bytes_ += bytes;
  return offset;
}

Allocation ViewAllocator::free(int64_t offset) {
  const auto found = allocations_.find(offset);
  TANDEM_CHECK(found != allocations_.end(), "nothing is allocated at offset", offset, "- freed twice?");
  Allocation allocation = std::move(found->second);
  allocations_.erase(found);
  allocated_bytes_ -= allocation.bytes;
  add(allocation.offset, allocation.bytes);
  return allocation;
}

std::pair<Tag, int64_t> ViewAllocator::retag(int64_t offset, Tag tag) {
  const auto found = allocations_.find(offset);
  TANDEM_CHECK(found != allocations_.end(), "nothing is allocated at offset", offset);
  return {std::exchange(found->second.tag, tag), found->second.bytes};
}

std::vector<Allocation> ViewAllocator::allocations_in(int64_t offset, int64_t bytes) const {
  std::vector<Allocation> found;
  auto at = allocations_.upper_bound(offset);
  if (at != allocations_.begin() && std::prev(at)->second.offset + std::prev(at)->second.bytes > offset) --at;
  for (; at != allocations_.end() && at->first < offset + bytes; ++at) found.push_back(at->second);
  return found;
}

void ViewAllocator::check() const {
  TANDEM_CHECK_EQ(holes_.size(), by_size_.size());
  int64_t free_bytes = 0, allocated_bytes = 0, end = -1;
  for (const auto& [offset, bytes] : holes_) {
    TANDEM_CHECK(by_size_.contains({bytes, offset}), offset, bytes);
    TANDEM_CHECK(offset > end, "holes at", offset, "touch or overlap");
    TANDEM_CHECK(allocations_in(offset, bytes).empty(), "the hole at", offset, "is allocated");
    end = offset + bytes;
    free_bytes += bytes;
  }
  end = 0;
  for (const auto& [offset, allocation] : allocations_) {
    TANDEM_CHECK(offset >= end, allocation.name, "overlaps the allocation before it");
    end = offset + allocation.bytes;
    allocated_bytes += allocation.bytes;
  }
  TANDEM_CHECK_EQ(free_bytes, free_bytes_);
  TANDEM_CHECK_EQ(allocated_bytes, allocated_bytes_);
}

void ViewAllocator::erase_hole(Holes::iterator hole) {
  by_size_.erase({hole->second, hole->first});
  free_bytes_ -= hole->second;
  holes_.erase(hole);
}

void ViewAllocator::insert_hole(int64_t offset, int64_t bytes) {
  holes_[offset] = bytes;
  by_size_.insert({bytes, offset});
  free_bytes_ += bytes;
}

}  // namespace tandem::memory
