#include "trainer/sample_sums.h"

#include <set>
#include <sstream>
#include <string>
#include <utility>

#include "base/check.h"
#include "device/communicator.h"
#include "memory/arena_allocator.h"

namespace tandem::trainer {
namespace {

rl::LossSums added_up(const std::vector<rl::LossSums>& of_samples) {
  rl::LossSums total;
  for (const rl::LossSums& sums : of_samples) {
    for (const auto& [name, sum] : sums) total[name] += sum;
  }
  return total;
}

// Returns the names that any rank has.
std::set<std::string> all_names(const rl::LossSums& mine, const Ranks& ranks) {
  std::string lines;
  for (const auto& [name, sum] : mine) lines += name + "\n";
  std::set<std::string> names;
  for (const std::string& text : device::all_gather_text(ranks.host, lines)) {
    std::istringstream stream(text);
    for (std::string name; std::getline(stream, name);) names.insert(name);
  }
  return names;
}

}  // namespace

void SampleSums::set(const rl::MicroBatch& members, std::vector<rl::LossSums> sums) {
  TANDEM_CHECK_EQ(sums.size(), members.samples.size());
  for (size_t i = 0; i < sums.size(); ++i) of_samples_[static_cast<size_t>(members.samples[i])] = std::move(sums[i]);
}

rl::LossSums SampleSums::total(std::span<const rl::MicroBatch> micro_batches, const Ranks& ranks) const {
  if (ranks.is_alone()) return added_up(of_samples_);
  const memory::BypassArena messages;
  const std::set<std::string> names = all_names(added_up(of_samples_), ranks);
  std::vector<double> mine;  // [sample][name]; a sum that a sample has not is 0, which changes no total
  for (const rl::LossSums& sums : of_samples_) {
    for (const std::string& name : names) {
      const auto found = sums.find(name);
      mine.push_back(found == sums.end() ? 0.0 : found->second);
    }
  }
  const std::vector<std::vector<double>> of_ranks = device::all_gather_numbers(ranks.host, mine);
  std::vector<rl::LossSums> all(of_samples_.size());
  for (size_t m = 0; m < micro_batches.size(); ++m) {
    const std::vector<double>& numbers = of_ranks[m % static_cast<size_t>(ranks.size())];
    for (const int64_t sample : micro_batches[m].samples) {
      size_t i = static_cast<size_t>(sample) * names.size();
      for (const std::string& name : names) all[static_cast<size_t>(sample)][name] = numbers[i++];
    }
  }
  return added_up(all);
}

}  // namespace tandem::trainer
