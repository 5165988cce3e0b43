// The order between a router and its experts: which experts compute a token, with which weights, and where their rows
// lie. There are X experts, C of which are chosen for each of T tokens. A place is one token at one of its experts:
// there are P = T C of them, whatever is chosen, and none is dropped. Places are ordered by expert, those of one expert
// by token, so that the rows of an expert lie together.
//
// A weight of experts is one matrix w_XNK [X N, K]: the N rows of expert 0, then those of expert 1, and so on.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

namespace tandem::device {

// States how a router chooses. It takes the experts with the largest logits, and of equal ones that with the lower id;
// 0 and -0 are equal. Their weights are softmax over the logits of the chosen experts, or of all.
struct RouteRule {
  int64_t chosen;   // C, at most the number of experts
  bool normalises;  // the weights of a token add up to 1
};

struct Routing {
  at::Tensor ids_TC;      // int32, rising in a row
  at::Tensor weights_TC;  // float32
  // The order of places:
  at::Tensor offsets_X1;  // int32 [X + 1]: expert e has places [offsets[e], offsets[e + 1])
  at::Tensor places_TC;   // int32: the place of a token at its chosen expert
  at::Tensor sources_P;   // int32: t C + c for the place of token t at its chosen expert c
  // The backend's own part of Ops::route(), which copies share. It may be null.
  std::shared_ptr<const void> prepared = nullptr;

  int64_t num_tokens() const { return ids_TC.size(0); }
  int64_t num_chosen() const { return ids_TC.size(1); }
  int64_t num_experts() const { return offsets_X1.size(0) - 1; }
  int64_t num_places() const { return sources_P.size(0); }

  // Returns what Ops::sum_of_experts() reads, for tokens [begin, begin + count): their places are those of all tokens.
  Routing of_tokens(int64_t begin, int64_t count) const {
    return {.ids_TC = ids_TC.narrow(0, begin, count),
            .weights_TC = weights_TC.narrow(0, begin, count),
            .offsets_X1 = offsets_X1,
            .places_TC = places_TC.narrow(0, begin, count),
            .sources_P = sources_P};
  }
};

// Experts [first, first + count).
struct ExpertRange {
  int64_t first = 0, count = 0;
};
// Returns the experts that a rank computes where `size` ranks share them (device/expert_exchange.h).
constexpr ExpertRange experts_of_rank(int64_t num_experts, int64_t rank, int64_t size) {
  const int64_t first = num_experts * rank / size;
  return {.first = first, .count = num_experts * (rank + 1) / size - first};
}

// States how the rows of an operand belong to places. It has a row for each token, which all places of the token share,
// or one for each place.
enum class RowsAre : uint8_t { kTokens, kPlaces };

}  // namespace tandem::device
