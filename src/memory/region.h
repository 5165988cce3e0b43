// A tagged stretch of device addresses whose memory can be paused and resumed. No torch.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "memory/address_range.h"
#include "memory/extent_pool.h"
#include "memory/host_arena.h"
#include "memory/tag.h"

namespace tandem::memory {

// What becomes of the contents over a pause. Most errors of other systems come from one class for all.
enum class Content : uint8_t {
  kDiscard,  // not defined after resume()
  kZero,     // zeros
  kRebuild,  // what RegionOptions::rebuild writes
  kKeep,     // the same bytes; they wait in the host arena
};

struct RegionOptions {
  std::string name;
  Tag tag = Tag::kOverhead;
  int64_t bytes = 0;
  Content content = Content::kDiscard;
  // Writes the contents, at every resume(); for kRebuild.
  std::function<void(std::byte* data, int64_t bytes)> rebuild = {};
  // Waits for what is queued on the device; called before memory is unmapped.
  std::function<void()> synchronize = {};
};

// Owns its addresses for life and its memory while it is not paused. Addresses never change, so tensors and captured
// graphs over data() survive a pause; what may touch them meanwhile is nobody. Begins paused, without contents.
// Borrows pool and host arena. Used from one thread at a time.
class Region {
 public:
  // EnvironmentError: no addresses, or (kKeep) no room in the host arena: taken here, so that pause() never lacks it.
  Region(ExtentPool& pool, HostArena& host_arena, RegionOptions options);
  ~Region();  // waits for the device
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  const std::string& name() const { return options_.name; }
  int64_t bytes() const { return options_.bytes; }
  int64_t mapped_bytes() const { return is_paused() ? 0 : range_.bytes(); }  // whole extents
  bool is_paused() const { return !loan_.has_value(); }
  std::byte* data() const;  // BugError while paused

  // Waits for the device, saves what is to be kept, and gives the extents to the pool (whose trim() gives them on to
  // the device). BugError: paused already. EnvironmentError: a copy or the driver failed. On errors nothing changed.
  void pause();
  // Borrows all extents before it maps any. False: the device has too little memory. BugError: not paused.
  // EnvironmentError: a copy, the driver or `rebuild` failed. On false and errors it is still paused, and what was kept
  // is still kept.
  bool resume();

 private:
  void fill();

  ExtentPool& pool_;
  HostArena& host_arena_;
  const RegionOptions options_;
  const std::vector<int64_t> slots_;
  std::optional<ExtentLoan> loan_;        // ends after the range
  std::optional<ExtentLoan> stale_loan_;  // of a resume() that failed and could not be undone: still mapped
  AddressRange range_;
  std::byte* kept_ = nullptr;  // in the host arena; for kKeep
  bool has_kept_ = false;      // it was paused before, so kept_ holds something
};

}  // namespace tandem::memory
