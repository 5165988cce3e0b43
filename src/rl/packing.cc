#include "rl/packing.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace tandem::rl {
namespace {

int64_t completion_tokens(const Sample& sample) { return static_cast<int64_t>(sample.completion.size()); }

// A run is adjacent samples [begin, end) that share one prompt.
struct Run {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t num_tokens = 0;
};

// Returns the longest run from `begin` on that stays in one group and, beyond its first sample, within `max_tokens`.
Run take_run(std::span<const Sample* const> samples, int64_t begin, int64_t max_tokens) {
  const Sample& first = *samples[static_cast<size_t>(begin)];
  Run run{begin, begin + 1, first.num_tokens()};
  for (; run.end < static_cast<int64_t>(samples.size()); ++run.end) {
    const Sample& next = *samples[static_cast<size_t>(run.end)];
    if (!share_prompt(first, next) || run.num_tokens + completion_tokens(next) > max_tokens) break;
    run.num_tokens += completion_tokens(next);
  }
  return run;
}

std::vector<MicroBatch> first_fit(std::span<const Sample* const> samples, int64_t max_tokens) {
  std::vector<MicroBatch> batches;
  const auto num_samples = static_cast<int64_t>(samples.size());
  std::vector<int64_t> newest_group;  // newest group of each batch
  int64_t group = -1;
  for (int64_t begin = 0; begin < num_samples;) {
    const Run run = take_run(samples, begin, max_tokens);
    const bool continues =
        begin > 0 && share_prompt(*samples[static_cast<size_t>(begin - 1)], *samples[static_cast<size_t>(begin)]);
    if (!continues) ++group;
    // Two runs of a split group lie in two batches: in one batch the second's prompt would be counted twice.
    const auto takes = [&](size_t b) {
      return batches[b].num_tokens + run.num_tokens <= max_tokens && newest_group[b] != group;
    };
    size_t batch = 0;
    while (batch < batches.size() && !takes(batch)) ++batch;
    if (batch == batches.size()) {
      batches.emplace_back();
      newest_group.emplace_back();
    }
    newest_group[batch] = group;
    for (int64_t i = run.begin; i < run.end; ++i) batches[batch].samples.push_back(i);
    batches[batch].num_tokens += run.num_tokens;
    begin = run.end;
  }
  return batches;
}

}  // namespace

std::vector<MicroBatch> split_into_micro_batches(std::span<const Sample* const> samples, const Split& split) {
  TANDEM_CHECK(split.max_tokens > 0 && split.multiple > 0, split.max_tokens, split.multiple);
  std::vector<MicroBatch> batches = first_fit(samples, split.max_tokens);
  if (split.multiple == 1 || batches.empty()) return batches;
  const int64_t most = (std::ssize(batches) + split.multiple - 1) / split.multiple * split.multiple;
  int64_t too_small = 0, enough = 0;  // budgets; no micro-batch has more tokens than the largest has now
  for (const MicroBatch& batch : batches) enough = std::max(enough, batch.num_tokens);
  enough = std::min(enough, split.max_tokens);
  while (enough - too_small > 1) {
    const int64_t budget = too_small + (enough - too_small) / 2;
    std::vector<MicroBatch> smaller = first_fit(samples, budget);
    if (std::ssize(smaller) > most) {
      too_small = budget;
    } else {
      enough = budget;
      batches = std::move(smaller);
    }
  }
  return batches;
}

}  // namespace tandem::rl
