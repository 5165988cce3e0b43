// Counts every byte that is taken, by tag and phase, with high-water marks. A plan is compared with these, and a
// timeline of memory is drawn from its events (ledger_events.h). No torch.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "memory/tag.h"

namespace tandem::memory {

// An event is one point of the timeline.
struct LedgerEvent {
  enum class Kind : uint8_t {
    kEnter,  // `phase` begins
    kBytes,  // `tag` has `bytes` from now on
    kNote,   // an event that `text` describes
  };
  Kind kind = Kind::kNote;
  int64_t time_us = 0;
  Phase phase = Phase::kLoad;
  Tag tag = Tag::kOverhead;
  int64_t bytes = 0;
  std::string text = {};
};

struct LedgerOptions {
  // A tag gets a point in the timeline when it has moved by this much since its last one, and when a phase begins: a
  // trainer allocates a thousand times a second, and nobody looks at that many points.
  int64_t event_bytes = int64_t{64} << 20;
  // At most so many events wait to be taken. Beyond it the oldest half is dropped, and a note records that.
  int64_t max_events = 100'000;
  std::function<int64_t()> clock_us = {};  // empty: microseconds since the ledger was created
};

// It is thread-safe. Begins in Phase::kLoad.
class Ledger {
 public:
  explicit Ledger(LedgerOptions options = {});
  Ledger(const Ledger&) = delete;
  Ledger& operator=(const Ledger&) = delete;

  void enter(Phase phase);
  Phase phase() const;

  void take(Tag tag, int64_t bytes);
  void give_back(Tag tag, int64_t bytes);  // throws BugError for more than was taken

  // Changes the bytes that our pools hold of the device, whether or not a tag has them at the moment.
  void change_pool_bytes(int64_t change_bytes);
  int64_t pool_bytes() const;
  // Takes the device's bytes in use (total - free). The part beyond pool_bytes() becomes Tag::kOverhead: context,
  // libraries, other processes. It is never below 0.
  void measure_device(int64_t used_bytes);

  int64_t current_bytes(Tag tag) const;
  int64_t current_bytes() const;  // sum over all tags
  int64_t high_water_bytes(Tag tag, Phase phase) const;
  int64_t high_water_bytes(Phase phase) const;

  // Returns the events since the last call, oldest first.
  std::vector<LedgerEvent> take_events();

 private:
  void set(Tag tag, int64_t bytes);
  void add_event(LedgerEvent event);
  int64_t now_us() const;

  const LedgerOptions options_;
  const int64_t start_us_;
  mutable std::mutex mutex_;
  Phase phase_ = Phase::kLoad;
  std::array<int64_t, kNumTags> current_bytes_{}, last_event_bytes_{};
  int64_t sum_bytes_ = 0, pool_bytes_ = 0;
  std::array<std::array<int64_t, kNumTags>, kNumPhases> high_water_bytes_{};
  std::array<int64_t, kNumPhases> sum_high_water_bytes_{};
  std::vector<LedgerEvent> events_;
};

}  // namespace tandem::memory
