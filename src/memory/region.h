// A tagged range of device addresses whose memory can be paused and resumed. No torch.
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

// Says what becomes of the contents over a pause. In other systems most errors come from one rule for all memory.
enum class Content : uint8_t {
  kDiscard,  // undefined after resume()
  kZero,     // zeros
  kRebuild,  // written by RegionOptions::rebuild
  kKeep,     // same bytes, which wait in the host arena
};

struct RegionOptions {
  std::string name;
  Tag tag = Tag::kOverhead;
  int64_t bytes = 0;
  Content content = Content::kDiscard;
  // Writes the contents at every resume(); for kRebuild.
  std::function<void(std::byte* data, int64_t bytes)> rebuild = {};
  // Waits for the work queued on the device; it is called before memory is unmapped.
  std::function<void()> synchronize = {};
};

// Owns its addresses for life and its memory while it is not paused. Addresses never change, so tensors and captured
// graphs over data() survive a pause; nothing may touch them meanwhile. It begins paused, without contents. Borrows
// pool and host arena. It is used from one thread at a time.
class Region {
 public:
  // Throws EnvironmentError if there are no addresses, or (kKeep) no room in the host arena, which is taken here so
  // that pause() never lacks it.
  Region(ExtentPool& pool, HostArena& host_arena, RegionOptions options);
  ~Region();  // waits for the device
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  const std::string& name() const { return options_.name; }
  int64_t bytes() const { return options_.bytes; }
  int64_t mapped_bytes() const { return is_paused() ? 0 : range_.bytes(); }  // whole extents
  bool is_paused() const { return !loan_.has_value(); }
  std::byte* data() const;  // throws BugError while paused

  // Waits for the device, saves contents to keep, and returns the extents to the pool (whose trim() releases them to
  // the device). Throws BugError if it is paused already, EnvironmentError if a copy or the driver failed. After an
  // error nothing has changed.
  void pause();
  // Borrows all extents before it maps any. Returns false if the device has too little memory. Throws BugError if it is
  // not paused, EnvironmentError if a copy, the driver or `rebuild` failed. After false or an error it is still paused,
  // and kept contents are still kept.
  bool resume();

 private:
  void fill();

  ExtentPool& pool_;
  HostArena& host_arena_;
  const RegionOptions options_;
  const std::vector<int64_t> slots_;
  std::optional<ExtentLoan> loan_;        // destroyed after the range
  std::optional<ExtentLoan> stale_loan_;  // extents of a failed resume() that are still mapped
  AddressRange range_;
  std::byte* kept_ = nullptr;  // bytes in the host arena; for kKeep
  bool has_kept_ = false;      // a pause has filled kept_
};

}  // namespace tandem::memory
