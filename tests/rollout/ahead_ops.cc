#include "tests/rollout/ahead_ops.h"

#include <ATen/ops/empty_like.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <sstream>
#include <utility>

namespace tandem::rollout {

namespace {

// Readers of results that are not there yet see these: no token, and a log-prob that nobody would take for one.
constexpr int32_t kNotThereYet = 0x5EADBEEF;

class CopiedFetch final : public device::Ops::Fetch {
 public:
  explicit CopiedFetch(at::Tensor host) : host_(std::move(host)) {}
  const at::Tensor& wait() override { return host_; }

 private:
  at::Tensor host_;
};

}  // namespace

void AheadOps::hide(const Tensor& visible, const Tensor& values) const {
  auto* const seen = static_cast<int32_t*>(visible.mutable_data_ptr());
  const auto* const value = static_cast<const int32_t*>(values.const_data_ptr());
  for (int64_t i = 0; i < visible.numel(); ++i) {
    hidden_[seen + i] = value[i];
    seen[i] = kNotThereYet;
  }
}

at::Tensor AheadOps::revealed(const Tensor& x) const {
  const Tensor copy = x.clone();
  const auto* const seen = static_cast<const int32_t*>(x.const_data_ptr());
  auto* const value = static_cast<int32_t*>(copy.mutable_data_ptr());
  for (int64_t i = 0; i < x.numel(); ++i) {
    const auto found = hidden_.find(seen + i);
    if (found != hidden_.end()) value[i] = found->second;
  }
  return copy;
}

void AheadOps::sample(const Tensor& logits, const Tensor& draws, const Tensor& token, const Tensor& logprob,
                      const Tensor& behavior) const {
  note("logits", logits, false);
  for (const Tensor& x : {draws, token, logprob, behavior}) note("sample", x);
  const Tensor tokens = revealed(token), logprobs = revealed(logprob), behaviors = revealed(behavior);
  inner_.sample(logits, draws, tokens, logprobs, behaviors);
  hide(token, tokens);
  hide(logprob, logprobs);
  hide(behavior, behaviors);
}

void AheadOps::take_drawn(const Tensor& ids, const Tensor& drawn) const { inner_.take_drawn(ids, revealed(drawn)); }

std::unique_ptr<device::Ops::Fetch> AheadOps::fetch(const Tensor& x) const {
  return std::make_unique<CopiedFetch>(revealed(x));
}

int64_t AheadOps::prepared_bytes(int64_t num_rows, int64_t num_sequences, int64_t max_blocks) const {
  return static_cast<int64_t>(sizeof(int32_t)) * (2 * num_rows + num_sequences * max_blocks);
}

device::AttentionRows AheadOps::prepare(const device::AttentionRows& rows) const {
  device::AttentionRows prepared = rows;
  int64_t begin = 0;
  const auto take = [&](const Tensor& x) {
    if (!rows.memory.defined()) return x.clone();
    const Tensor place = rows.memory.view(at::kInt).narrow(0, begin, x.numel()).view(x.sizes());
    begin += x.numel();
    place.copy_(x);
    return place;
  };
  prepared.sequence_of_row = take(rows.sequence_of_row);
  prepared.row_position = take(rows.row_position);
  prepared.block_table = take(rows.block_table);
  return prepared;
}

void AheadOps::refill(device::AttentionRows& prepared, const device::AttentionRows& rows) const {
  const auto put = [](const Tensor& place, const Tensor& x) {
    EXPECT_EQ(place.sizes(), x.sizes());
    place.copy_(x);
  };
  put(prepared.sequence_of_row, rows.sequence_of_row);
  put(prepared.row_position, rows.row_position);
  put(prepared.block_table, rows.block_table);
}

class AheadOps::ComparedRecording final : public Recording {
 public:
  ComparedRecording(const AheadOps& ops, std::function<void()> work) : ops_(ops), work_(std::move(work)) {}

  void replay() override {
    Calls calls;
    ops_.calls_ = &calls;
    work_();
    ops_.calls_ = nullptr;
    ++ops_.num_replays_;
    EXPECT_FALSE(calls.empty());
    if (recorded_.empty()) recorded_ = calls;
    EXPECT_EQ(calls, recorded_) << "a replay calls other things than were recorded";
  }

 private:
  const AheadOps& ops_;
  std::function<void()> work_;
  Calls recorded_;
};

std::unique_ptr<device::Ops::Recording> AheadOps::record(std::function<void()> work) const {
  ++num_recordings_;
  return std::make_unique<ComparedRecording>(*this, std::move(work));
}

void AheadOps::note(const std::string& operation, const Tensor& argument, bool has_fixed_address) const {
  if (calls_ == nullptr) return;
  std::ostringstream call;
  call << operation << ' ' << argument.sizes();
  if (has_fixed_address) call << " at " << argument.const_data_ptr();
  calls_->push_back(call.str());
}

at::Tensor AheadOps::linear(const Tensor& x, const Tensor& w, at::ScalarType out) const {
  note("linear of rows", x, false);
  note("linear", w);
  return inner_.linear(x, w, out);
}

at::Tensor AheadOps::embedding(const Tensor& table, const Tensor& ids) const {
  note("embedding", ids);
  return inner_.embedding(table, ids);
}

device::Ops::Qkv AheadOps::qk_norm_rope(const Tensor& qkv, const Tensor& q_norm, const Tensor& k_norm,
                                        const Tensor& positions, const QkvShape& shape) const {
  note("qk_norm_rope", positions);
  return inner_.qk_norm_rope(qkv, q_norm, k_norm, positions, shape);
}

void AheadOps::kv_append(const Tensor& kv_layer, const Tensor& k, const Tensor& v, const Tensor& tokens,
                         const Tensor& slot_mapping) const {
  note("kv_append", kv_layer);
  note("kv_append", slot_mapping);
  inner_.kv_append(kv_layer, k, v, tokens, slot_mapping);
}

at::Tensor AheadOps::paged_attention(const Tensor& q, const Tensor& kv_layer, const device::AttentionRows& rows,
                                     const Tensor& lse) const {
  note("paged_attention", rows.row_position);
  note("paged_attention", rows.block_table);
  return inner_.paged_attention(q, kv_layer, rows, lse);
}

}  // namespace tandem::rollout
