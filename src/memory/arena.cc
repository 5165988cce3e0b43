#include "memory/arena.h"

#include <chrono>
#include <exception>
#include <numeric>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/log.h"

namespace tandem::memory {

namespace {

View other(View view) { return view == View::kRollout ? View::kTrain : View::kRollout; }

std::vector<int64_t> all_slots(int64_t num_slots) {
  std::vector<int64_t> slots(static_cast<size_t>(num_slots));
  std::iota(slots.begin(), slots.end(), 0);
  return slots;
}

}  // namespace

const char* to_string(View view) { return view == View::kRollout ? "rollout" : "train"; }

Arena::Arena(ExtentPool& pool, ArenaOptions options)
    : pool_(pool),
      ledger_(pool.ledger()),
      options_(std::move(options)),
      extent_bytes_(pool.extent_bytes()),
      num_extents_(options_.num_extents),
      is_idle_view_mapped_(pool.vmm().can_alias() && !options_.hide_idle_view),
      loan_(pool.borrow(options_.num_extents)),
      holder_(view_of(ledger_.phase())),
      allocators_{ViewAllocator(GrowsFrom::kLowEnd), ViewAllocator(GrowsFrom::kHighEnd)} {
  TANDEM_CHECK(num_extents_ > 0, num_extents_);
  TANDEM_ENV_CHECK(loan_.has_value(), "the device has", pool.vmm().device_bytes().free, "bytes free, and the arena is",
                   bytes(), "bytes; lower", options_.size_flag);
  for (auto& range : ranges_) range = std::make_unique<AddressRange>(pool.vmm(), extent_bytes_, num_extents_);
  is_held_.assign(static_cast<size_t>(num_extents_), true);
  for (const View view : {holder_, other(holder_)}) {
    if (view != holder_ && !is_idle_view_mapped_) continue;
    TANDEM_ENV_CHECK(map(view, extents(/*held=*/true)), "the device has no memory left to map", bytes(), "bytes; lower",
                     options_.size_flag);
  }
  allocator(holder_).add(0, bytes());
}

Arena::~Arena() {
  for (const View view : {View::kRollout, View::kTrain})
    for (const auto& [offset, allocation] : allocator(view).allocations()) {
      base::log_error("bug: {} of tag {} is still allocated as the arena ends", allocation.name,
                      to_string(allocation.tag));
      ledger_.give_back(allocation.tag, allocation.bytes);
    }
  try {
    if (options_.synchronize) options_.synchronize();
  } catch (const std::exception& error) {
    base::log_error("waiting for the device: {}", error.what());
  }
}

void Arena::enter(Phase phase) {
  std::lock_guard moving(move_mutex_);
  move(view_of(phase));
  ledger_.enter(phase);
}

void Arena::move(View to) {
  {
    std::lock_guard lock(mutex_);
    if (holder_ == to && extents(/*held=*/false).empty()) return;
  }
  wait_for_last_frees(other(to));
  if (options_.synchronize) options_.synchronize();
  std::lock_guard lock(mutex_);
  check_idle(other(to));
  const std::vector<int64_t> moving = holder_ == to ? extents(/*held=*/false) : all_slots(num_extents_);
  if (!is_idle_view_mapped_) remap(moving, to);
  if (holder_ != to) {
    for (const SlotRun run : runs_of(extents(/*held=*/true)))
      allocator(holder_).remove(run.begin * extent_bytes_, (run.end - run.begin) * extent_bytes_);
  }
  for (const SlotRun run : runs_of(moving))
    allocator(to).add(run.begin * extent_bytes_, (run.end - run.begin) * extent_bytes_);
  holder_ = to;
  is_held_.assign(is_held_.size(), true);
}

std::vector<int64_t> Arena::extents(bool held) const {
  std::vector<int64_t> found;
  for (int64_t extent = 0; extent < num_extents_; ++extent)
    if (is_held_[static_cast<size_t>(extent)] == held) found.push_back(extent);
  return found;
}

// LibTorch's autograd computes on a thread of the device's own. It says that a backward is done a moment before it
// drops the last gradient, and that moment is long where the system lets the thread wait for a core.
void Arena::wait_for_last_frees(View view) const {
  const auto begin = std::chrono::steady_clock::now();
  for (std::unique_lock lock(mutex_); !allocator(view).allocations().empty(); lock.lock()) {
    if (std::chrono::steady_clock::now() - begin > options_.patience) return check_idle(view);
    lock.unlock();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void Arena::check_idle(View view) const {
  const auto& live = allocator(view).allocations();
  if (live.empty()) return;
  const Allocation& first = live.begin()->second;
  const int64_t num_extents = (first.offset + first.bytes - 1) / extent_bytes_ - first.offset / extent_bytes_ + 1;
  const std::string more = live.size() > 1 ? base::join_message(" (and", live.size() - 1, "more)") : "";
  TANDEM_CHECK(live.empty(), base::join_message(first.name, "of tag", to_string(first.tag)) + ",", num_extents,
               num_extents == 1 ? "extent," : "extents,", "still live in the", to_string(view), "view" + more);
}

bool Arena::map(View view, std::span<const int64_t> extents) {
  std::vector<device::ExtentId> ids;
  ids.reserve(extents.size());
  for (const int64_t extent : extents) ids.push_back(loan_->extents()[static_cast<size_t>(extent)]);
  return range(view).map(extents, ids);
}

void Arena::remap(std::span<const int64_t> extents, View to) {
  const auto unmap_source = [&] {
    std::vector<int64_t> mapped;
    for (const int64_t extent : extents)
      if (range(other(to)).state(extent) != AddressRange::State::kUnmapped) mapped.push_back(extent);
    range(other(to)).unmap(mapped);
  };
  const auto map_target = [&] {
    TANDEM_ENV_CHECK(map(to, extents), "the device has no memory left to map",
                     extent_bytes_ * static_cast<int64_t>(extents.size()), "bytes of the", to_string(to), "view; lower",
                     options_.size_flag);
  };
  try {
    // Mapping may fail, so where views alias it comes before anything is given up.
    if (pool_.vmm().can_alias()) {
      map_target();
      unmap_source();
    } else {
      unmap_source();
      map_target();
    }
  } catch (const EnvironmentError&) {
    restore(extents, to);
    throw;
  }
}

// Restores the source after a remap() that failed, as far as the driver allows.
void Arena::restore(std::span<const int64_t> extents, View to) {
  std::vector<int64_t> mapped;
  for (const int64_t extent : extents)
    if (range(to).state(extent) == AddressRange::State::kMapped) mapped.push_back(extent);
  range(to).unmap_or_leave_stale(mapped);
  if (holder_ == to) return;  // only extents that no view held were to move
  const View from = holder_;
  for (const int64_t extent : extents) {
    const bool was_held = is_held_[static_cast<size_t>(extent)];
    if (!was_held || range(from).state(extent) == AddressRange::State::kMapped) continue;
    bool is_back = false;
    try {
      const bool is_free = pool_.vmm().can_alias() || range(to).state(extent) == AddressRange::State::kUnmapped;
      is_back = is_free && map(from, {{extent}});
    } catch (const EnvironmentError& error) {
      base::log_error("extent {} of the {} view is out of use: {}", extent, to_string(from), error.what());
    }
    if (is_back) continue;
    allocator(from).remove(extent * extent_bytes_, extent_bytes_);
    is_held_[static_cast<size_t>(extent)] = false;
  }
}

std::byte* Arena::allocate(View view, int64_t bytes, Tag tag, std::string_view name) {
  std::lock_guard lock(mutex_);
  const int64_t before_bytes = allocator(view).allocated_bytes();
  const std::optional<int64_t> offset = allocator(view).allocate(bytes, tag, name);
  if (!offset) return nullptr;
  ledger_.take(tag, allocator(view).allocated_bytes() - before_bytes);
  return data(view) + *offset;
}

void Arena::free(std::byte* address) {
  std::lock_guard lock(mutex_);
  const auto [view, offset] = locate(address);
  const Allocation freed = allocator(view).free(offset);
  ledger_.give_back(freed.tag, freed.bytes);
}

void Arena::retag(std::byte* address, Tag tag) {
  std::lock_guard lock(mutex_);
  const auto [view, offset] = locate(address);
  retag_locked(view, offset, tag);
}

void Arena::retag(View view, int64_t since, Tag from, Tag to) {
  std::lock_guard lock(mutex_);
  for (const auto& [offset, allocation] : allocator(view).allocations())
    if (allocation.tag == from && allocation.serial >= since) retag_locked(view, offset, to);
}

void Arena::retag_locked(View view, int64_t offset, Tag tag) {
  const auto [from, bytes] = allocator(view).retag(offset, tag);
  ledger_.give_back(from, bytes);
  ledger_.take(tag, bytes);
}

int64_t Arena::mark(View view) const {
  std::lock_guard lock(mutex_);
  return allocator(view).next_serial();
}

std::optional<std::pair<View, int64_t>> Arena::find(const void* address) const {
  const auto at = reinterpret_cast<uintptr_t>(address);
  for (const View view : {View::kRollout, View::kTrain}) {
    const auto begin = reinterpret_cast<uintptr_t>(data(view));
    if (at >= begin && at < begin + static_cast<uintptr_t>(bytes()))
      return std::pair(view, static_cast<int64_t>(at - begin));
  }
  return std::nullopt;
}

std::pair<View, int64_t> Arena::locate(const std::byte* address) const {
  const auto found = find(address);
  TANDEM_CHECK(found.has_value(), "the address is not of this arena");
  return *found;
}

Arena::ViewBytes Arena::view_bytes(View view) const {
  std::lock_guard lock(mutex_);
  const ViewAllocator& of_view = allocator(view);
  return {.held = of_view.free_bytes() + of_view.allocated_bytes(),
          .allocated = of_view.allocated_bytes(),
          .free = of_view.free_bytes(),
          .largest_hole = of_view.largest_hole_bytes()};
}

std::string Arena::shortage(View view, int64_t bytes, Tag tag) const {
  const ViewBytes of_view = view_bytes(view);
  return base::join_message(bytes, "bytes of tag", to_string(tag), "do not fit into the", to_string(view),
                            "view: it holds", of_view.held, "bytes,", of_view.free, "are free, the largest hole has",
                            of_view.largest_hole) +
         "; lower " + options_.size_flag + ", or raise " + options_.slack_flag;
}

void Arena::check() const {
  std::lock_guard lock(mutex_);
  for (const View view : {View::kRollout, View::kTrain}) {
    allocator(view).check();
    int64_t held_bytes = 0;
    for (int64_t extent = 0; extent < num_extents_; ++extent) {
      const bool is_held = view == holder_ && is_held_[static_cast<size_t>(extent)];
      held_bytes += is_held ? extent_bytes_ : 0;
      const bool is_mapped = range(view).state(extent) == AddressRange::State::kMapped;
      TANDEM_CHECK(is_mapped == (is_held || is_idle_view_mapped_), "extent", extent, "of the", to_string(view), "view");
      TANDEM_CHECK(is_held || allocator(view).allocations_in(extent * extent_bytes_, extent_bytes_).empty(), "extent",
                   extent, "has an allocation of the", to_string(view), "view, which does not hold it");
    }
    TANDEM_CHECK_EQ(held_bytes, allocator(view).free_bytes() + allocator(view).allocated_bytes());
  }
}

}  // namespace tandem::memory
