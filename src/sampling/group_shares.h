// Which rank samples which of a rollout's groups. They are dealt so that all ranks begin with equal shares, the groups
// that are expected to take longest first; a rank that is done early takes what others have not begun. Who samples a
// group changes no bit of it, so nothing here has to be right about lengths. No torch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

namespace tandem::sampling {

// What is known of a group before it is sampled, in tokens.
struct GroupLength {
  std::optional<int64_t> completion;  // the longest of its prompt when that was sampled last
  int64_t prompt = 0;
};

// Indices of groups, the one that is expected to take longest first: by completion, where it is not known that of an
// average group; then by prompt; then by index.
std::vector<size_t> longest_first(std::span<const GroupLength> lengths);

// One rank's view. All ranks make theirs of the same lengths.
class GroupShares {
 public:
  // The next number, from 0, of the series that all ranks take the groups of one rank's share from.
  using TakeTicket = std::function<int64_t(int owner)>;
  GroupShares(std::span<const GroupLength> lengths, int rank, int num_ranks, TakeTicket take_ticket);

  // Groups that this rank may have under way: as many as its share has. 0 where there are more ranks than groups.
  int64_t most_at_once() const { return std::ssize(shares_[static_cast<size_t>(rank_)]); }
  // A group that no other rank gets: of the own share, or, behind its end, of another rank's. nullopt: none is left.
  std::optional<size_t> next();

 private:
  const int rank_;
  const TakeTicket take_ticket_;
  std::vector<std::vector<size_t>> shares_;  // by rank, longest first
  size_t num_used_up_ = 0;                   // shares, from the own one on, that nothing is left of
};

}  // namespace tandem::sampling
