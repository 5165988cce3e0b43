#include "sampling/group_shares.h"

#include <algorithm>
#include <numeric>
#include <tuple>
#include <utility>

#include "base/check.h"

namespace tandem::sampling {

std::vector<size_t> longest_first(std::span<const GroupLength> lengths) {
  int64_t sum = 0, num_known = 0;
  for (const GroupLength& length : lengths) {
    sum += length.completion.value_or(0);
    num_known += length.completion ? 1 : 0;
  }
  const int64_t average = num_known == 0 ? 0 : sum / num_known;
  std::vector<size_t> order(lengths.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, std::greater(), [&](size_t group) {
    return std::pair(lengths[group].completion.value_or(average), lengths[group].prompt);
  });
  return order;
}

GroupShares::GroupShares(std::span<const GroupLength> lengths, int rank, int num_ranks, TakeTicket take_ticket)
    : rank_(rank), take_ticket_(std::move(take_ticket)), shares_(static_cast<size_t>(num_ranks)) {
  TANDEM_CHECK(rank >= 0 && rank < num_ranks, rank, num_ranks);
  // To and fro: who gets the longest of one round gets the shortest of the next.
  const std::vector<size_t> order = longest_first(lengths);
  for (size_t place = 0; place < order.size(); ++place) {
    const size_t round = place / shares_.size(), seat = place % shares_.size();
    shares_[round % 2 == 0 ? seat : shares_.size() - 1 - seat].push_back(order[place]);
  }
}

std::optional<size_t> GroupShares::next() {
  for (; num_used_up_ < shares_.size(); ++num_used_up_) {
    const size_t owner = (static_cast<size_t>(rank_) + num_used_up_) % shares_.size();
    const std::vector<size_t>& share = shares_[owner];
    if (share.empty()) continue;
    const auto ticket = static_cast<size_t>(take_ticket_(static_cast<int>(owner)));
    if (ticket < share.size()) return share[ticket];
  }
  return std::nullopt;
}

}  // namespace tandem::sampling
