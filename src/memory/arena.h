// The overlay arena maps the same extents under two ranges of addresses, one for the rollout and one for training,
// which never need them at the same time. No torch.
//
// One view at a time holds the lease of all extents. Moving it changes only bookkeeping: both views stay mapped for
// life, so no call of the driver is made, and addresses within captured graphs or registered buffers stay valid. Extent
// i lies at the same offset in both views; the rollout view allocates from the low end and the train view from the high
// end.
//
// On a device that maps an extent only once, and with `hide_idle_view`, the idle view is unmapped instead, and a stray
// access faults.
#pragma once

#include <array>
#include <chrono>
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

// Returns the view that holds the lease in a phase: loading and training use the train view.
constexpr View view_of(Phase phase) { return phase == Phase::kRollout ? View::kRollout : View::kTrain; }

struct ArenaOptions {
  int64_t num_extents = 0;
  // For debugging: a view is unmapped where it does not hold the lease. This costs two driver calls per extent and
  // phase change.
  bool hide_idle_view = false;
  // Waits for the work queued on the device. It is called once before the lease moves, while other threads may still
  // allocate, and not at all if the lease stays. It must not move the lease itself.
  std::function<void()> synchronize = {};
  // A move waits so long for other threads to free what they have in the view that loses the lease.
  std::chrono::milliseconds patience{1000};
  // Messages tell the user to lower `size_flag`, or to raise `slack_flag` if there is room, but in pieces.
  std::string size_flag = "the size of the arena", slack_flag = "the size of the arena";
};

// It is thread-safe, so that the threads of a backward pass may allocate. Borrows the pool and its ledger. At the start
// the phase is the ledger's, and its view_of() holds the lease.
class Arena {
 public:
  // Throws EnvironmentError when the device has too little memory.
  Arena(ExtentPool& pool, ArenaOptions options);
  ~Arena();  // waits for the device first
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  int64_t extent_bytes() const { return extent_bytes_; }
  int64_t num_extents() const { return num_extents_; }
  int64_t bytes() const { return extent_bytes_ * num_extents_; }
  std::byte* data(View view) const { return range(view).data(); }  // constant for life
  bool owns(const void* address) const { return find(address).has_value(); }
  Phase phase() const { return ledger_.phase(); }

  // Moves the lease to view_of(phase), and the ledger into the phase. Throws BugError if an allocation of the other
  // view is still alive when ArenaOptions::patience is over, and EnvironmentError if a call of the driver failed
  // (possible only where the idle view is unmapped). After both errors phase and lease are as before, except for
  // extents that the driver would map in neither view: no view holds those until a later move succeeds, which may be
  // one into the same phase.
  void enter(Phase phase);

  // Allocates within the extents of the view that holds the lease; a large allocation spans neighbouring ones. Returns
  // nullptr if no hole is large enough; shortage() then explains it. `bytes` > 0. The contents are undefined.
  std::byte* allocate(View view, int64_t bytes, Tag tag, std::string_view name);
  // Frees an allocation, which the device may still be reading: the bytes get a new owner only within the view, whose
  // streams keep their order, until the lease moves, which waits for the device.
  void free(std::byte* address);

  // Gives the allocation another tag from now on.
  void retag(std::byte* address, Tag tag);
  // Does the same for every allocation of tag `from` that is alive and was made since mark() returned `since`.
  void retag(View view, int64_t since, Tag from, Tag to);
  int64_t mark(View view) const;

  struct ViewBytes {
    int64_t held = 0;  // bytes of the extents that the view holds = allocated + free
    int64_t allocated = 0;
    int64_t free = 0;
    int64_t largest_hole = 0;
  };
  ViewBytes view_bytes(View view) const;
  // Returns why an allocation was refused: its tag, the bytes asked for, the bytes free, the largest hole, and the
  // remedy.
  std::string shortage(View view, int64_t bytes, Tag tag) const;

  // Throws BugError when leases, allocations and mappings contradict one another.
  void check() const;

 private:
  AddressRange& range(View view) const { return *ranges_[static_cast<size_t>(view)]; }
  ViewAllocator& allocator(View view) { return allocators_[static_cast<size_t>(view)]; }
  const ViewAllocator& allocator(View view) const { return allocators_[static_cast<size_t>(view)]; }

  // Returns the extents that the holder of the lease holds (`held`), or those that no view holds.
  std::vector<int64_t> extents(bool held) const;
  void retag_locked(View view, int64_t offset, Tag tag);
  std::optional<std::pair<View, int64_t>> find(const void* address) const;  // the view, and the offset in it
  std::pair<View, int64_t> locate(const std::byte* address) const;          // throws BugError if it is in none
  void check_idle(View view) const;
  void wait_for_last_frees(View view) const;
  void move(View to);
  bool map(View view, std::span<const int64_t> extents);
  void remap(std::span<const int64_t> extents, View to);
  void restore(std::span<const int64_t> extents, View to);

  ExtentPool& pool_;
  Ledger& ledger_;
  const ArenaOptions options_;
  const int64_t extent_bytes_, num_extents_;
  const bool is_idle_view_mapped_;
  std::optional<ExtentLoan> loan_;  // destroyed after the ranges
  std::array<std::unique_ptr<AddressRange>, kNumViews> ranges_;

  std::mutex move_mutex_;  // one move at a time; taken before mutex_
  mutable std::mutex mutex_;
  View holder_;                // has the lease
  std::vector<bool> is_held_;  // by extent; false where the driver would map it in neither view
  std::array<ViewAllocator, kNumViews> allocators_;
};

}  // namespace tandem::memory
