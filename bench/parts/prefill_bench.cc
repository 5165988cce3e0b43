// Where the time of a prompt goes: the operations of one prefill of the Qwen3-0.6B shape, each timed over its 28 layers
// (every layer with weights of its own, so that they come from memory). Run: prefill_bench [TOKENS [float32]]; all
// cores, or those that taskset leaves.
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string>
#include <vector>

#include "device/ops.h"

namespace {

using at::Tensor;
using tandem::device::AttentionRows;
using tandem::device::kBlockTokens;
using tandem::device::Ops;

constexpr int64_t kLayers = 28, kHidden = 1024, kHeads = 16, kKvHeads = 8, kHeadDim = 128, kFeedForward = 3072;
constexpr int kRounds = 7;

struct Layer {
  Tensor qkv_NE, out_EN, gate_up_2FE, down_EF, kv;
};

struct Row {
  std::string name;
  double flop;
  std::vector<double> seconds;  // a round each
};

class Profile {
 public:
  template <typename Function>
  auto operator()(const std::string& name, double flop, Function f) {
    const auto start = std::chrono::steady_clock::now();
    auto result = f();
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    auto row = std::find_if(rows_.begin(), rows_.end(), [&](const Row& r) { return r.name == name; });
    if (row == rows_.end()) row = rows_.insert(row, Row{name, 0.0, {}});
    if (row->seconds.size() <= round_) {
      row->seconds.resize(round_ + 1, 0.0);
      row->flop = 0.0;
    }
    row->seconds[round_] += seconds;
    row->flop += flop;
    return result;
  }
  void next_round() { ++round_; }
  void print(int64_t tokens) {
    double total = 0.0;
    for (Row& row : rows_) {
      std::sort(row.seconds.begin(), row.seconds.end());
      total += row.seconds[row.seconds.size() / 2];
    }
    for (const Row& row : rows_) {
      const double seconds = row.seconds[row.seconds.size() / 2];
      fmt::print("{:<18} {:8.2f} ms {:5.1f} %", row.name, seconds * 1e3, 100.0 * seconds / total);
      fmt::print("{}\n", row.flop > 0.0 ? fmt::format(" {:7.0f} GFLOP/s", row.flop / seconds * 1e-9) : "");
    }
    fmt::print("{:<18} {:8.2f} ms, {:.0f} tokens/s\n", "all", total * 1e3, static_cast<double>(tokens) / total);
  }

 private:
  std::vector<Row> rows_;
  size_t round_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  const int64_t tokens = argc > 1 ? std::atoll(argv[1]) : 512;
  const at::ScalarType dtype = argc > 2 && std::string(argv[2]) == "float32" ? at::kFloat : at::kBFloat16;
  const std::unique_ptr<Ops> ops = tandem::device::make_cpu_ops("auto", 0);
  const auto weight = [&](int64_t n, int64_t k) { return at::randn({n, k}).mul(0.02).to(dtype); };
  const int64_t q_width = kHeads * kHeadDim, qkv_width = q_width + 2 * kKvHeads * kHeadDim;
  const int64_t blocks = (tokens + kBlockTokens - 1) / kBlockTokens;
  std::vector<Layer> layers;
  for (int64_t i = 0; i < kLayers; ++i)
    layers.push_back({weight(qkv_width, kHidden), weight(kHidden, q_width), weight(2 * kFeedForward, kHidden),
                      weight(kHidden, kFeedForward), at::zeros({blocks, 2, kKvHeads, kHeadDim * kBlockTokens}, dtype)});
  const Tensor norm_E = at::ones({kHidden}, dtype), norm_K = at::ones({kHeadDim}, dtype);
  const Tensor positions = at::arange(tokens, at::kInt), nothing = at::zeros({tokens}, at::kInt);
  const AttentionRows rows{nothing, positions, at::arange(blocks, at::kInt).unsqueeze(0).contiguous(), {}};
  const Ops::QkvShape shape{kHeads, kKvHeads, kHeadDim, 1e6, 1e-6};

  const auto linear_flop = [&](const Tensor& w) { return 2.0 * static_cast<double>(tokens * w.numel()); };
  const double attention_flop = 2.0 * static_cast<double>(tokens * (tokens + 1) * q_width);  // q k^T and p v, causal
  Profile timed;
  for (int round = 0; round < kRounds; ++round, timed.next_round()) {
    Tensor x = at::randn({tokens, kHidden}).to(dtype);
    for (const Layer& layer : layers) {
      Tensor h = timed("rms_norm", 0, [&] { return ops->rms_norm(x, norm_E, 1e-6); });
      h = timed("linear qkv", linear_flop(layer.qkv_NE), [&] { return ops->linear(h, layer.qkv_NE, dtype); });
      const Ops::Qkv qkv =
          timed("qk_norm_rope", 0, [&] { return ops->qk_norm_rope(h, norm_K, norm_K, positions, shape); });
      timed("kv_append", 0, [&] { return ops->kv_append(layer.kv, qkv.k_TGK, qkv.v_TGK, positions, positions), 0; });
      h = timed("paged_attention", attention_flop,
                [&] { return ops->paged_attention(qkv.q_THK, layer.kv, rows, Tensor()); });
      h = h.view({tokens, q_width});
      h = timed("linear out", linear_flop(layer.out_EN), [&] { return ops->linear(h, layer.out_EN, dtype); });
      x = timed("add", 0, [&] { return ops->add(x, h); });
      h = timed("rms_norm", 0, [&] { return ops->rms_norm(x, norm_E, 1e-6); });
      h = timed("linear gate_up", linear_flop(layer.gate_up_2FE),
                [&] { return ops->linear(h, layer.gate_up_2FE, dtype); });
      h = timed("silu_mul", 0, [&] { return ops->silu_mul(h); });
      h = timed("linear down", linear_flop(layer.down_EF), [&] { return ops->linear(h, layer.down_EF, dtype); });
      x = timed("add", 0, [&] { return ops->add(x, h); });
    }
  }
  fmt::print("{}, {} threads, {} tokens, {}\n", ops->name(), ops->num_threads(), tokens, toString(dtype));
  timed.print(tokens);
}
