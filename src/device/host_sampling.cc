#include "device/host_sampling.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <span>

#include "base/check.h"
#include "device/draw.h"
#include "device/transfer.h"

namespace tandem::device {

namespace {

// Waking a thread is not worth it for fewer logits.
constexpr int64_t kLogitsPerChunk = int64_t{1} << 15;

std::span<const Draw> as_draws(const Tensor& bytes) {
  TANDEM_CHECK(bytes.scalar_type() == at::kByte && bytes.is_contiguous(), "draws are bytes");
  const auto count = static_cast<size_t>(bytes.numel()) / sizeof(Draw);
  TANDEM_CHECK_EQ(bytes.numel(), static_cast<int64_t>(count * sizeof(Draw)));
  return {reinterpret_cast<const Draw*>(bytes.const_data_ptr<uint8_t>()), count};
}

double logprob_temperature(const Draw& draw) { return draw.temperature == 0.0 ? 1.0 : draw.temperature; }

// A run of draws [begin, end) that one call of logprob() answers: all of them draw, at one temperature.
struct Run {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
};

std::vector<Run> runs_of(std::span<const Draw> draws) {
  std::vector<Run> runs;
  for (size_t i = 0; i < draws.size(); ++i) {
    if (draws[i].row < 0) continue;
    const auto at = static_cast<int64_t>(i);
    const bool continues =
        !runs.empty() && runs.back().end == at && logprob_temperature(draws[i - 1]) == logprob_temperature(draws[i]);
    if (continues) {
      ++runs.back().end;
    } else {
      runs.push_back({.begin = at, .end = at + 1});
    }
  }
  return runs;
}

// Returns the rows of logits of the draws, one for each. Several samples may draw their first token from one row.
Tensor logits_of(const Tensor& logits_RV, std::span<const Draw> draws) {
  const auto count = static_cast<int64_t>(draws.size());
  const int32_t first = draws.front().row;
  bool consecutive = true;
  for (size_t i = 0; i < draws.size(); ++i) consecutive &= draws[i].row == first + static_cast<int32_t>(i);
  if (consecutive) return logits_RV.narrow(0, first, count);
  const Tensor rows = at::empty({count}, at::kInt);
  for (int64_t i = 0; i < count; ++i) rows.mutable_data_ptr<int32_t>()[i] = draws[static_cast<size_t>(i)].row;
  return logits_RV.index_select(0, to_device(rows, logits_RV.device()));
}

}  // namespace

void HostSampling::sample(const Ops& ops, const Tensor& logits_RV, const Tensor& draws, const Tensor& token_n,
                          const Tensor& logprob_n, const Tensor& behavior_n) {
  const Tensor host_logits = to_host(logits_RV), host_draws = to_host(draws);
  const std::span<const Draw> list = as_draws(host_draws);
  const auto num_draws = static_cast<int64_t>(list.size());
  TANDEM_CHECK_EQ(token_n.numel(), num_draws);
  const Tensor drawn = at::empty({num_draws}, at::kInt), behavior = at::empty({num_draws}, at::kFloat);
  auto* token = drawn.mutable_data_ptr<int32_t>();
  auto* behavior_logprob = behavior.mutable_data_ptr<float>();
  const float* logits = host_logits.const_data_ptr<float>();
  const auto vocab = static_cast<size_t>(host_logits.size(1));
  samplers_.resize(std::max(samplers_.size(), static_cast<size_t>(threads_.num_threads())));
  const int64_t chunk = std::max<int64_t>(1, kLogitsPerChunk / static_cast<int64_t>(vocab));
  threads_.for_each(num_draws, chunk, [&](int64_t i, int thread) {
    const Draw& draw = list[static_cast<size_t>(i)];
    if (draw.row < 0) return;
    TANDEM_CHECK(draw.row < host_logits.size(0), "draw", i, "names row", draw.row, "of", host_logits.size(0));
    const SampledToken result =
        samplers_[static_cast<size_t>(thread)].draw({logits + static_cast<size_t>(draw.row) * vocab, vocab}, draw);
    token[i] = result.token;
    behavior_logprob[i] = result.behavior_logprob;
  });
  for (const Run& run : runs_of(list)) {
    const auto of_run = [&run](const Tensor& x) { return x.narrow(0, run.begin, run.size()); };
    of_run(token_n).copy_(of_run(drawn));
    of_run(behavior_n).copy_(of_run(behavior));
    const std::span<const Draw> members = list.subspan(static_cast<size_t>(run.begin), static_cast<size_t>(run.size()));
    ops.logprob(logits_of(logits_RV, members), of_run(token_n), logprob_temperature(members.front()), of_run(logprob_n),
                /*entropy_R=*/Tensor(), at::empty({run.size()}, logprob_n.options()));
  }
}

void take_drawn_on_host(const Tensor& ids_T, const Tensor& drawn_n) {
  auto* ids = ids_T.mutable_data_ptr<int32_t>();
  const auto* drawn = drawn_n.const_data_ptr<int32_t>();
  for (int64_t t = 0; t < ids_T.numel(); ++t) {
    if (ids[t] >= 0) continue;
    const int64_t index = -1 - static_cast<int64_t>(ids[t]);
    TANDEM_CHECK(index < drawn_n.numel(), "draw", index, "of", drawn_n.numel());
    ids[t] = std::max(drawn[index], 0);
  }
}

}  // namespace tandem::device
