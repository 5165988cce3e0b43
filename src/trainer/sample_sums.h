// The sums of a loss, kept for each sample of a step and added up in sample order: so metrics have the same bits
// whatever the samples are packed into and whichever rank computed them.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "rl/losses.h"
#include "rl/packing.h"
#include "trainer/ranks.h"

namespace tandem::trainer {

class SampleSums {
 public:
  explicit SampleSums(size_t num_samples) : of_samples_(num_samples) {}

  // Stores the sums of the samples of a micro-batch, in its order.
  void set(const rl::MicroBatch& members, std::vector<rl::LossSums> sums);
  // Returns the total over every sample, whichever rank has it: micro-batch i belongs to rank (i mod D). All ranks call
  // it together.
  rl::LossSums total(std::span<const rl::MicroBatch> micro_batches, const Ranks& ranks) const;

 private:
  std::vector<rl::LossSums> of_samples_;
};

}  // namespace tandem::trainer
