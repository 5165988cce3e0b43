// The ranks that write one checkpoint together, as one of them sees them. No torch.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace tandem::checkpoint {

struct SavingRanks {
  int rank = 0, size = 1;
  // Every rank's text, by rank. Not called where there is one.
  std::function<std::vector<std::string>(const std::string& mine)> all_gather = {};

  bool is_conductor() const { return rank == 0; }
  // Runs `work` on every rank and returns what it returned on each, by rank. Where it throws on one of them, all throw:
  // that rank its own error, the others an EnvironmentError with the same words.
  std::vector<std::string> together(const std::function<std::string()>& work) const;
  void wait_for_all() const;
  // The same for what the conductor alone does, while the others wait.
  void conductor_alone(const std::function<void()>& work) const;
};

}  // namespace tandem::checkpoint
