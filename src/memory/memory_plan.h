// Bytes by tag and phase, before anything is taken: what the modules' plans add up to, and what the ledger's marks are
// compared with. Plain data; who decides on it is run/plan. No torch.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/size.h"
#include "memory/tag.h"

namespace tandem::memory {

using base::Size;

// What a tensor of so many bytes takes, from the arena or from LibTorch's allocator of a GPU.
constexpr int64_t kRoundingBytes = 512;
constexpr Size allocated_bytes(Size bytes) { return (bytes + kRoundingBytes - 1) / kRoundingBytes * kRoundingBytes; }
// The most that rounding adds to so many tensors.
constexpr Size rounding_of(Size num_tensors) { return num_tensors * kRoundingBytes; }

// What each tag has at one moment.
class TagBytes {
 public:
  Size& operator[](Tag tag) { return bytes_[static_cast<size_t>(tag)]; }
  Size operator[](Tag tag) const { return bytes_[static_cast<size_t>(tag)]; }
  Size total() const;

 private:
  std::array<Size, kNumTags> bytes_{};
};

// A phase is a row of moments: what is alive together counts together. A tag's number is its most over the phase's
// moments, a phase's the most of all tags at once, which is at most the sum of the tags' numbers; the ledger's two
// high-water marks are the same two numbers.
class MemoryPlan {
 public:
  // `moment` is for people: "backward of a kept block".
  void add(Phase phase, const std::string& peak_name, const TagBytes& bytes);

  int64_t bytes(Tag tag, Phase phase) const;
  int64_t bytes(Phase phase) const;
  int64_t peak_bytes() const { return bytes(peak_phase()); }
  Phase peak_phase() const;                          // the first of those that need most
  const std::string& peak_name(Phase phase) const;   // that sets bytes(phase); "" for a phase without moments
  const TagBytes& bytes_at_peak(Phase phase) const;  // and what it consists of

 private:
  struct PhaseBytes {
    TagBytes most;
    TagBytes peak;
    Size peak_bytes = 0;
    std::string peak_name;
  };
  const PhaseBytes& of(Phase phase) const { return phases_[static_cast<size_t>(phase)]; }

  std::array<PhaseBytes, kNumPhases> phases_;
};

}  // namespace tandem::memory
