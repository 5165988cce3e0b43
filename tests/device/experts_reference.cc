#include "tests/device/experts_reference.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace tandem::device::reference {
namespace {

// The probabilities of a softmax over the logits of these experts.
Values softmax(const double* logits, const Ids& experts) {
  double largest = -INFINITY, sum = 0.0;
  for (const int32_t e : experts) largest = std::max(largest, logits[e]);
  Values probabilities;
  for (const int32_t e : experts) sum += probabilities.emplace_back(std::exp(logits[e] - largest));
  for (double& p : probabilities) p /= sum;
  return probabilities;
}

Ids all_experts(int64_t X) {
  Ids experts(static_cast<size_t>(X));
  std::iota(experts.begin(), experts.end(), 0);
  return experts;
}

}  // namespace

Choice route(const Values& logits, int64_t X, int64_t C, bool normalises) {
  Choice choice;
  for (const double* row = logits.data(); row < logits.data() + logits.size(); row += X) {
    Ids experts = all_experts(X);
    std::stable_sort(experts.begin(), experts.end(), [&](int32_t a, int32_t b) { return row[a] > row[b]; });
    experts.resize(static_cast<size_t>(C));
    std::sort(experts.begin(), experts.end());
    const Values of_chosen = softmax(row, experts), of_all = softmax(row, all_experts(X));
    for (size_t c = 0; c < experts.size(); ++c) {
      choice.ids.push_back(experts[c]);
      choice.weights.push_back(normalises ? of_chosen[c] : of_all[static_cast<size_t>(experts[c])]);
    }
  }
  return choice;
}

// The derivative of probability i by logit j is p_i ([i = j] - p_j), of the experts that the softmax is over.
Values route_backward(const Values& dweights, const Values& logits, const Choice& choice, int64_t X, int64_t C,
                      bool normalises) {
  Values dlogits(logits.size(), 0.0);
  const auto rows = static_cast<int64_t>(logits.size()) / X;
  for (int64_t t = 0; t < rows; ++t) {
    const Ids chosen(choice.ids.begin() + t * C, choice.ids.begin() + (t + 1) * C);
    const Ids over = normalises ? chosen : all_experts(X);
    const Values p = softmax(logits.data() + t * X, over);
    for (size_t i = 0; i < over.size(); ++i) {
      const auto found = std::find(chosen.begin(), chosen.end(), over[i]);
      if (found == chosen.end()) continue;
      const double dweight = dweights[static_cast<size_t>(t * C + (found - chosen.begin()))];
      for (size_t j = 0; j < over.size(); ++j)
        dlogits[static_cast<size_t>(t * X + over[j])] += dweight * p[i] * ((i == j ? 1.0 : 0.0) - p[j]);
    }
  }
  return dlogits;
}

Places order_places(const Ids& ids, int64_t X) {
  Places order{.offsets = {0}, .places = Ids(ids.size()), .sources = {}};
  for (int32_t e = 0; e < X; ++e) {
    for (size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] != e) continue;
      order.places[i] = static_cast<int32_t>(order.sources.size());
      order.sources.push_back(static_cast<int32_t>(i));
    }
    order.offsets.push_back(static_cast<int32_t>(order.sources.size()));
  }
  return order;
}

Values sum_of_experts(const Values& y, const Values& weights, const Ids& places, int64_t C, int64_t E) {
  const int64_t T = static_cast<int64_t>(places.size()) / C;
  Values sum(static_cast<size_t>(T * E), 0.0);
  for (int64_t i = 0; i < T * C; ++i) {
    for (int64_t k = 0; k < E; ++k) {
      sum[static_cast<size_t>(i / C * E + k)] +=
          weights[static_cast<size_t>(i)] * y[static_cast<size_t>(places[static_cast<size_t>(i)] * E + k)];
    }
  }
  return sum;
}

}  // namespace tandem::device::reference
