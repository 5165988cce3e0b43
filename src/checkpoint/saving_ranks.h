// Describes the ranks that write one checkpoint together, as one of them sees them. No torch.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace tandem::checkpoint {

struct SavingRanks {
  int rank = 0, size = 1;
  // Gathers every rank's text, by rank. It is not called with a single rank.
  std::function<std::vector<std::string>(const std::string& mine)> all_gather = {};

  bool is_conductor() const { return rank == 0; }
  // Runs `work` on every rank and returns its results, by rank. If it throws on one of them, all throw: that rank its
  // own error, the others an EnvironmentError with the same words.
  std::vector<std::string> together(const std::function<std::string()>& work) const;
  void wait_for_all() const;
  // Asks rank 0 alone and returns its answer on every rank: each may see another disk, or its own may fail for a
  // moment, and all have to go the same way. Errors are as those of together().
  bool of_conductor(const std::function<bool()>& question) const;
  // Does the same with work for rank 0 alone, while the others wait.
  void conductor_alone(const std::function<void()>& work) const;
};

}  // namespace tandem::checkpoint
