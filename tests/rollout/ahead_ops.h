// Operations that behave like a device which the host runs ahead of, but compute on the CPU at once:
//  - the results of sample() are not visible in its tensors, only to take_drawn() and to wait() of a fetch();
//  - the results of prepare() lie on "the device", in AttentionRows::memory where there is one;
//  - a recording's replay must repeat its first one call by call, with the same sizes and the same addresses.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "tests/sim/forwarding_ops.h"

namespace tandem::rollout {

class AheadOps final : public sim::ForwardingOps {
 public:
  using Tensor = at::Tensor;
  // `inner` computes on the CPU and is borrowed.
  explicit AheadOps(const device::Ops& inner, bool runs_ahead = true) : ForwardingOps(inner), runs_ahead_(runs_ahead) {}

  std::string name() const override { return inner_.name() + " (ahead)"; }
  bool runs_ahead() const override { return runs_ahead_; }

  void sample(const Tensor& logits, const Tensor& draws, const Tensor& token, const Tensor& logprob,
              const Tensor& behavior) const override;
  void take_drawn(const Tensor& ids, const Tensor& drawn) const override;
  std::unique_ptr<Fetch> fetch(const Tensor& x) const override;

  device::AttentionRows prepare(const device::AttentionRows& rows) const override;
  void refill(device::AttentionRows& prepared, const device::AttentionRows& rows) const override;
  int64_t prepared_bytes(int64_t num_rows, int64_t num_sequences, int64_t max_blocks) const override;

  std::unique_ptr<Recording> record(std::function<void()> work) const override;
  Tensor linear(const Tensor& x, const Tensor& w, at::ScalarType out) const override;
  Tensor embedding(const Tensor& table, const Tensor& ids) const override;
  Qkv qk_norm_rope(const Tensor& qkv, const Tensor& q_norm, const Tensor& k_norm, const Tensor& positions,
                   const QkvShape& shape) const override;
  void kv_append(const Tensor& kv_layer, const Tensor& k, const Tensor& v, const Tensor& tokens,
                 const Tensor& slot_mapping) const override;
  Tensor paged_attention(const Tensor& q, const Tensor& kv_layer, const device::AttentionRows& rows,
                         const Tensor& lse) const override;

  int64_t num_recordings() const { return num_recordings_; }
  int64_t num_replays() const { return num_replays_; }

  // The calls of a replay, as text.
  using Calls = std::vector<std::string>;

 private:
  class ComparedRecording;
  // Returns x with the contents that the device has there.
  Tensor revealed(const Tensor& x) const;
  void hide(const Tensor& visible, const Tensor& values) const;
  // Notes an argument of an operation: its sizes, and its address where that must not change.
  void note(const std::string& operation, const Tensor& argument, bool has_fixed_address = true) const;

  const bool runs_ahead_;
  mutable std::unordered_map<const int32_t*, int32_t> hidden_;  // bits that only the device knows, by address
  mutable Calls* calls_ = nullptr;                              // calls of the replay in progress
  mutable int64_t num_recordings_ = 0, num_replays_ = 0;
};

}  // namespace tandem::rollout
