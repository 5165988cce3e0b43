#include "device/expert_exchange.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <utility>
#include <vector>

#include "base/check.h"
#include "device/ops.h"

namespace tandem::device {

namespace {

using at::Tensor;

// Moves rows by the communicator's exchanges, of a device whose tensors the host reads.
class ExchangedRows final : public ExpertExchange {
 public:
  ExchangedRows(const Ops& ops, Communicator& ranks) : ops_(ops), ranks_(ranks) {}
  int rank() const override { return ranks_.rank(); }
  int size() const override { return ranks_.size(); }

  Tensor gather(const Tensor& own_RE) override {
    const int64_t rows = own_RE.size(0);
    Tensor all = at::empty({size() * rows, own_RE.size(1)}, own_RE.options());
    TensorLists parts;
    for (int r = 0; r < size(); ++r) parts.push_back({all.narrow(0, r * rows, rows)});
    parts[static_cast<size_t>(rank())][0].copy_(own_RE);
    all_gather(ranks_, parts);
    return all;
  }

  Tensor results(const Tensor& rows, const Routing& routing) override {
    return at::empty({routing.num_places(), rows.size(1)}, rows.options());
  }

  // Each rank sends the rows of its experts to the owners of their tokens, in the order of places, and puts those that
  // it gets in their places.
  Tensor sum(const Tensor& y_PE, const Routing& routing, const Tensor& residual_RE) override {
    TensorLists to(static_cast<size_t>(size())), from(static_cast<size_t>(size()));
    std::vector<Tensor> places_from(static_cast<size_t>(size()));
    const auto* const offsets = routing.offsets_X1.const_data_ptr<int32_t>();
    const auto* const sources = routing.sources_P.const_data_ptr<int32_t>();
    const int64_t rows = residual_RE.size(0), own_places = rows * routing.num_chosen();
    // Returns the places of a rank's tokens at another rank's experts.
    const auto places_of = [&](int owner, int computed_by) {
      const ExpertRange range = experts_of_rank(routing.num_experts(), computed_by, size());
      std::vector<int64_t> places;
      for (int64_t p = offsets[range.first]; p < offsets[range.first + range.count]; ++p) {
        if (sources[p] / own_places == owner) places.push_back(p);
      }
      return at::tensor(places, at::kLong);
    };
    for (int other = 0; other < size(); ++other) {
      if (other == rank()) continue;
      const auto r = static_cast<size_t>(other);
      if (const Tensor sent = places_of(other, rank()); sent.numel() > 0) to[r] = {y_PE.index_select(0, sent)};
      places_from[r] = places_of(rank(), other);
      if (places_from[r].numel() > 0) from[r] = {at::empty({places_from[r].numel(), y_PE.size(1)}, y_PE.options())};
    }
    ranks_.start_exchange(std::move(to), from)->wait();
    for (size_t r = 0; r < from.size(); ++r) {
      if (!from[r].empty()) Tensor(y_PE).index_copy_(0, places_from[r], from[r][0]);
    }
    const Routing own = routing.of_tokens(rank() * rows, rows);
    return ops_.sum_of_experts(y_PE, own.weights_TC, own, residual_RE, residual_RE.scalar_type());
  }

 private:
  const Ops& ops_;
  Communicator& ranks_;
};

}  // namespace

std::unique_ptr<ExpertExchange> make_expert_exchange(const Ops& ops, Communicator& ranks, Communicator& hosts,
                                                     const SharedExperts& shared) {
  TANDEM_CHECK(shared.most_rows > 0 && shared.chosen <= shared.experts, shared.most_rows, shared.chosen);
  if (std::unique_ptr<ExpertExchange> own = ranks.share_experts(shared, hosts)) return own;
  TANDEM_ENV_CHECK(
      !ops.runs_ahead(),
      "--rollout-expert-parallel: these devices do not read each other's memory, by which they would share "
      "experts; leave it out");
  return std::make_unique<ExchangedRows>(ops, ranks);
}

}  // namespace tandem::device
