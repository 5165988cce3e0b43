#include "device/communicator.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "device/expert_exchange.h"

namespace tandem::device {

namespace {

class SoloCommunicator final : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::unique_ptr<Exchange> start_exchange(TensorLists /*to*/, TensorLists /*from*/) override {
    class Nothing final : public Exchange {
      void wait() override {}
    };
    return std::make_unique<Nothing>();
  }
  void abort() noexcept override {}
};

at::Tensor bytes_of(int64_t count) { return at::empty({count}, at::kByte); }

// Sends x from one rank to all others: in each round who has it sends it to one more, so nobody sends it more than
// log2(ranks) times.
void broadcast(Communicator& ranks, int from, const at::Tensor& x) {
  const int size = ranks.size(), place = (ranks.rank() - from + size) % size;
  const auto rank_at = [&](int of_place) { return static_cast<size_t>((of_place + from) % size); };
  for (int reach = 1; reach < size; reach *= 2) {
    TensorLists to(static_cast<size_t>(size)), received(to.size());
    if (place < reach && place + reach < size) to[rank_at(place + reach)].push_back(x);
    if (place >= reach && place < 2 * reach) received[rank_at(place - reach)].push_back(x);
    ranks.start_exchange(std::move(to), std::move(received))->wait();
  }
}

}  // namespace

std::unique_ptr<ExpertExchange> Communicator::share_experts(const SharedExperts& /*shared*/, Communicator& /*hosts*/) {
  return nullptr;
}

std::unique_ptr<Communicator> solo_communicator() { return std::make_unique<SoloCommunicator>(); }

void all_gather(Communicator& ranks, const TensorLists& parts) {
  if (ranks.size() == 1) return;
  TANDEM_CHECK_EQ(std::ssize(parts), ranks.size());
  const auto me = static_cast<size_t>(ranks.rank());
  TensorLists to(parts.size()), from(parts.size());
  for (size_t r = 0; r < parts.size(); ++r) {
    if (r == me) continue;
    to[r] = parts[me];
    from[r] = parts[r];
  }
  ranks.start_exchange(std::move(to), std::move(from))->wait();
}

std::vector<std::vector<double>> all_gather_numbers(Communicator& ranks, std::span<const double> mine) {
  const auto count = static_cast<int64_t>(mine.size());
  TensorLists parts;
  for (int r = 0; r < ranks.size(); ++r) parts.push_back({at::empty({count}, at::kDouble)});
  std::ranges::copy(mine, parts[static_cast<size_t>(ranks.rank())][0].mutable_data_ptr<double>());
  all_gather(ranks, parts);
  std::vector<std::vector<double>> result;
  for (const auto& part : parts) {
    const double* const numbers = part[0].const_data_ptr<double>();
    result.emplace_back(numbers, numbers + count);
  }
  return result;
}

std::vector<std::string> all_gather_text(Communicator& ranks, std::string_view mine) {
  const double length = static_cast<double>(mine.size());
  const std::vector<std::vector<double>> lengths = all_gather_numbers(ranks, {&length, 1});
  TensorLists parts;
  for (const auto& of_rank : lengths) parts.push_back({bytes_of(static_cast<int64_t>(of_rank[0]))});
  if (!mine.empty()) {
    std::memcpy(parts[static_cast<size_t>(ranks.rank())][0].mutable_data_ptr(), mine.data(), mine.size());
  }
  all_gather(ranks, parts);
  std::vector<std::string> result;
  for (const auto& part : parts) {
    result.emplace_back(static_cast<const char*>(part[0].const_data_ptr()), static_cast<size_t>(part[0].numel()));
  }
  return result;
}

std::string broadcast_text(Communicator& ranks, int from, std::string_view mine) {
  if (ranks.size() == 1) return std::string(mine);
  const bool sends = ranks.rank() == from;
  const at::Tensor length = at::empty({1}, at::kLong);
  if (sends) *length.mutable_data_ptr<int64_t>() = std::ssize(mine);
  broadcast(ranks, from, length);
  const at::Tensor bytes = bytes_of(*length.const_data_ptr<int64_t>());
  if (sends && !mine.empty()) std::memcpy(bytes.mutable_data_ptr(), mine.data(), mine.size());
  if (bytes.numel() > 0) broadcast(ranks, from, bytes);
  return {static_cast<const char*>(bytes.const_data_ptr()), static_cast<size_t>(bytes.numel())};
}

bool any_of(Communicator& ranks, bool mine) {
  if (ranks.size() == 1) return mine;
  const double number = mine ? 1.0 : 0.0;
  return std::ranges::any_of(all_gather_numbers(ranks, {&number, 1}), [](const auto& of) { return of[0] != 0.0; });
}

}  // namespace tandem::device
