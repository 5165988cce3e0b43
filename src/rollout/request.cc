#include "rollout/request.h"

#include <algorithm>
#include <array>

namespace tandem::rollout {

namespace {

constexpr std::array kSums = {
    &EngineStats::generated_tokens,  &EngineStats::prefill_tokens, &EngineStats::shared_prompt_tokens,
    &EngineStats::recomputed_tokens, &EngineStats::resumed_tokens, &EngineStats::kept_tokens,
    &EngineStats::kept_dropped,      &EngineStats::wasted_rows,    &EngineStats::draft_tokens,
    &EngineStats::right_drafts,      &EngineStats::draft_steps,    &EngineStats::forwards,
    &EngineStats::preemptions,       &EngineStats::copies_on_write};
constexpr std::array kPeaks = {&EngineStats::peak_running, &EngineStats::peak_blocks, &EngineStats::num_blocks};
static_assert(sizeof(EngineStats) == (kSums.size() + kPeaks.size()) * sizeof(int64_t), "a number is not added");

}  // namespace

void add(const EngineStats& of_engine, EngineStats& sum) {
  for (const auto member : kSums) sum.*member += of_engine.*member;
  for (const auto member : kPeaks) sum.*member = std::max(sum.*member, of_engine.*member);
}

EngineStats since(const EngineStats& before, const EngineStats& now) {
  EngineStats result = now;
  for (const auto member : kSums) result.*member -= before.*member;
  return result;
}

}  // namespace tandem::rollout
