// Bytes by tag and phase, before anything is taken. The modules' plans are added up in it, and the ledger's high-water
// marks are compared with it. It is plain data; plan/plan.h makes the decisions. No torch.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/size.h"
#include "memory/tag.h"

namespace tandem::memory {

using base::Size;

// A tensor's bytes are rounded up to a multiple of this by the arena and by LibTorch's allocator on a GPU.
constexpr int64_t kRoundingBytes = 512;
constexpr Size allocated_bytes(Size bytes) { return (bytes + kRoundingBytes - 1) / kRoundingBytes * kRoundingBytes; }
// Returns the most that rounding adds to this many tensors.
constexpr Size rounding_of(Size num_tensors) { return num_tensors * kRoundingBytes; }

// Holds the bytes of each tag at one moment.
class TagBytes {
 public:
  Size& operator[](Tag tag) { return bytes_[static_cast<size_t>(tag)]; }
  Size operator[](Tag tag) const { return bytes_[static_cast<size_t>(tag)]; }
  Size total() const;

 private:
  std::array<Size, kNumTags> bytes_{};
};

// Each phase has a list of peaks, and tags that are alive at the same peak add up. A tag's number is its maximum over
// the phase's peaks, a phase's the maximum of all tags together, which is at most the sum of the tags' numbers; the
// ledger's two high-water marks are the same two numbers.
class MemoryPlan {
 public:
  // `peak_name` is for people: "backward of a kept block".
  void add(Phase phase, const std::string& peak_name, const TagBytes& bytes);

  int64_t bytes(Tag tag, Phase phase) const;
  int64_t bytes(Phase phase) const;
  int64_t peak_bytes() const { return bytes(peak_phase()); }
  Phase peak_phase() const;                          // first phase of those that need most
  const std::string& peak_name(Phase phase) const;   // peak that sets bytes(phase); "" for a phase without peaks
  const TagBytes& bytes_at_peak(Phase phase) const;  // bytes at that peak

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
