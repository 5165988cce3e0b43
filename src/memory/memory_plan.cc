#include "memory/memory_plan.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"

namespace tandem::memory {

Size TagBytes::total() const { return std::accumulate(bytes_.begin(), bytes_.end(), Size(0)); }

void MemoryPlan::add(Phase phase, const std::string& peak_name, const TagBytes& bytes) {
  PhaseBytes& of_phase = phases_[static_cast<size_t>(phase)];
  for (int i = 0; i < kNumTags; ++i) {
    const auto tag = static_cast<Tag>(i);
    TANDEM_CHECK(bytes[tag] >= 0, "bytes of", to_string(tag), "in", peak_name, "are", bytes[tag]);
    of_phase.most[tag] = std::max(of_phase.most[tag], bytes[tag]);
  }
  if (const Size total = bytes.total(); of_phase.peak_name.empty() || total > of_phase.peak_bytes) {
    of_phase.peak = bytes;
    of_phase.peak_bytes = total;
    of_phase.peak_name = peak_name;
  }
}

int64_t MemoryPlan::bytes(Tag tag, Phase phase) const { return of(phase).most[tag]; }

int64_t MemoryPlan::bytes(Phase phase) const { return of(phase).peak_bytes; }

Phase MemoryPlan::peak_phase() const {
  const auto peak = std::max_element(phases_.begin(), phases_.end(), [](const PhaseBytes& a, const PhaseBytes& b) {
    return a.peak_bytes < b.peak_bytes;
  });
  return static_cast<Phase>(peak - phases_.begin());
}

const std::string& MemoryPlan::peak_name(Phase phase) const { return of(phase).peak_name; }

const TagBytes& MemoryPlan::bytes_at_peak(Phase phase) const { return of(phase).peak; }

}  // namespace tandem::memory
