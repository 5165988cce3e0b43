#include "memory/tag.h"

#include <array>
#include <cstddef>

namespace tandem::memory {

const char* to_string(Phase phase) {
  constexpr std::array<const char*, kNumPhases> kNames = {"load", "rollout", "train"};
  return kNames[static_cast<size_t>(phase)];
}

const char* to_string(Tag tag) {
  constexpr std::array<const char*, kNumTags> kNames = {
      "weights", "reference",    "master",       "moments",       "gradients", "kv",      "engine_scratch", "graphs",
      "batch",   "block_inputs", "block_graphs", "block_scratch", "head",      "staging", "overhead"};
  return kNames[static_cast<size_t>(tag)];
}

}  // namespace tandem::memory
