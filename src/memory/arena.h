// The overlay arena: the same extents under two ranges of addresses, one for the rollout and one for training, which
// never need them at the same time. No torch.
//
// Each extent is leased to one view. Moving the lease is a change of books: both views stay mapped for life, so no call
// of the driver is made, and addresses within captured graphs or registered buffers stay valid. It moves extent by
// extent, so that a rollout that drains can give up what it has emptied: extent i lies at the same offset in both
// views, the rollout view allocates from the low end and the train view from the high end.
//
// Where a device maps an extent once, and where `hide_idle_view` asks for it, the idle view is unmapped instead, and a
// stray access faults.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "memory/address_range.h"
#include "memory/extent_pool.h"
#include "memory/ledger.h"
#include "memory/tag.h"
#include "memory/view_allocator.h"

namespace tandem::memory {

enum class View : uint8_t { kRollout, kTrain };
constexpr int kNumViews = 2;
const char* to_string(View view);  // "rollout"

// Whose extents are in a phase: loading and training use the train view.
constexpr View view_of(Phase phase) { return phase == Phase::kRollout ? View::kRollout : View::kTrain; }

struct ArenaOptions {
  int64_t num_extents = 0;
  // For debugging: unmap what does not hold the lease. Costs two driver calls per extent and phase change.
  bool hide_idle_view = false;
  // Waits for what is queued on the device. Called once before extents change hands, not at all where none does, with
  // no lock held. It must not move the lease itself.
  std::function<void()> synchronize = {};
  // What messages tell the user to lower; and to raise where there is room, but in pieces.
  std::string size_flag = "the size of the arena", slack_flag = "the size of the arena";
};

// Thread-safe, so that the threads of a backward pass may allocate. Borrows the pool and its ledger.
// At the start the phase is the ledger's, and view_of() it holds every extent.
class Arena {
 public:
  // EnvironmentError when the device has too little memory.
  Arena(ExtentPool& pool, ArenaOptions options);
  ~Arena();  // waits for the device first
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  int64_t extent_bytes() const { return extent_bytes_; }
  int64_t num_extents() const { return num_extents_; }
  int64_t bytes() const { return extent_bytes_ * num_extents_; }
  std::byte* data(View view) const { return range(view).data(); }  // for life
  bool owns(const void* address) const { return find(address).has_value(); }
  Phase phase() const { return ledger_.phase(); }

  // Moves every extent to view_of(phase), and the ledger into the phase.
  // BugError: something of the other view is still allocated. EnvironmentError: a call of the driver failed (possible
  // only where the idle view is unmapped). In both cases the phase is as before, and so are the leases, but for extents
  // that the driver would map in neither view: nobody holds those until a later move succeeds.
  void enter(Phase phase);
  // The same for some extents, whatever the phase. Those that `to` holds stay there.
  void hand_over(std::span<const int64_t> extents, View to);

  std::optional<View> holder(int64_t extent) const;
  // Extents that a view holds without an allocation in them, first those that are farthest from the end it grows from.
  std::vector<int64_t> idle_extents(View view) const;

  // Within extents that the view holds; a large allocation lies across neighbouring ones. nullptr: no hole is large
  // enough, and shortage() says so in words. `bytes` > 0. Contents are not defined.
  std::byte* allocate(View view, int64_t bytes, Tag tag, std::string_view name);
  // The device may still be reading: the bytes change their owner only within the view, whose streams keep their order,
  // until the lease moves, which waits.
  void free(std::byte* address);
  // Gives up the upper end of an allocation: how a drained cache empties whole extents.
  void shrink(std::byte* address, int64_t bytes);

  // From now on the allocation counts for another tag.
  void retag(std::byte* address, Tag tag);
  // The same for what is still allocated of tag `from` and was allocated since mark() said `since`.
  void retag(View view, int64_t since, Tag from, Tag to);
  int64_t mark(View view) const;

  struct ViewBytes {
    int64_t held = 0;  // of leased extents = allocated + free
    int64_t allocated = 0;
    int64_t free = 0;
    int64_t largest_hole = 0;
  };
  ViewBytes view_bytes(View view) const;
  std::vector<Allocation> allocations(View view) const;
  // Why an allocation was refused: tag, bytes asked for, bytes free, the largest hole, and what to change.
  std::string shortage(View view, int64_t bytes, Tag tag) const;

  // BugError when leases, allocations and mappings contradict one another.
  void check() const;

 private:
  struct Holding {  // a run of extents with one holder
    SlotRun run;
    std::optional<View> holder;
  };

  AddressRange& range(View view) const { return *ranges_[static_cast<size_t>(view)]; }
  ViewAllocator& allocator(View view) { return allocators_[static_cast<size_t>(view)]; }
  const ViewAllocator& allocator(View view) const { return allocators_[static_cast<size_t>(view)]; }
  std::optional<View>& holder_of(int64_t extent) { return holders_[static_cast<size_t>(extent)]; }

  std::vector<Holding> holdings(std::span<const int64_t> extents) const;
  void retag_locked(View view, int64_t offset, Tag tag);
  std::optional<std::pair<View, int64_t>> find(const void* address) const;  // the view, and the offset in it
  std::pair<View, int64_t> locate(const std::byte* address) const;          // BugError where it is in none
  void check_idle(std::span<const Holding> moving) const;
  void move(std::vector<int64_t> extents, View to);
  bool map(View view, std::span<const int64_t> extents);
  void remap(std::span<const int64_t> extents, View to);
  void restore(std::span<const int64_t> extents, View to);

  ExtentPool& pool_;
  Ledger& ledger_;
  const ArenaOptions options_;
  const int64_t extent_bytes_, num_extents_;
  const bool is_idle_view_mapped_;
  std::optional<ExtentLoan> loan_;  // ends after the ranges
  std::array<std::unique_ptr<AddressRange>, kNumViews> ranges_;

  std::mutex move_mutex_;  // one move at a time; taken before mutex_
  mutable std::mutex mutex_;
  std::vector<std::optional<View>> holders_;
  std::array<ViewAllocator, kNumViews> allocators_;
};

}  // namespace tandem::memory
