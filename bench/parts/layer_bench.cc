// Measures where a GPU spends the time of a layer of a decode step: the operations of a layer are recorded, at the
// shapes of Qwen3 models. Run: layer_bench SHAPE ROWS ..., with one of the shapes of kShapes and numbers of sequences,
// of which each has kKeys keys. SHAPE:nf4 and SHAPE:int8 are the dense shapes with weights in codes. It prints for each
// number:
//   - the microseconds of a layer;
//   - what each operation adds to the layer: the difference to the same layer without it;
//   - how many numbers of a recorded layer's results differ from those of the same rows among kMany, not recorded.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "device/ops.h"
#include "device/registry.h"

namespace {

using at::Tensor;
using tandem::device::kBlockTokens;
using tandem::device::Ops;
using tandem::device::Quantisation;
using tandem::device::QuantisedMatrix;
using tandem::device::Routing;

struct Shape {
  std::string_view name;
  int64_t hidden, heads, kv_heads, width;
  int64_t experts = 0, chosen = 0;  // 0: a dense MLP

  int64_t qkv_width() const { return (heads + 2 * kv_heads) * kHeadDim; }
  static constexpr int64_t kHeadDim = 128;
};
constexpr std::array kShapes = {
    Shape{.name = "qwen3-0.6b", .hidden = 1024, .heads = 16, .kv_heads = 8, .width = 3072},
    Shape{.name = "qwen3-1.7b", .hidden = 2048, .heads = 16, .kv_heads = 8, .width = 6144},
    Shape{.name = "qwen3-4b", .hidden = 2560, .heads = 32, .kv_heads = 8, .width = 9728},
    Shape{
        .name = "qwen3-30b-a3b", .hidden = 2048, .heads = 32, .kv_heads = 4, .width = 768, .experts = 128, .chosen = 8},
};

// A recording goes over so many layers' weights, which no L2 cache holds together.
constexpr int64_t kLayers = 6, kTurns = 4;
constexpr int64_t kKeys = 512, kMany = 100;
constexpr double kEps = 1e-6;
// Experts' logits have means of this deviation, beside tokens of deviation 1.
constexpr double kSkew = 0.7;

// A weight: bfloat16 numbers, or codes.
struct Weight {
  Tensor numbers_NK;  // undefined where there are codes
  QuantisedMatrix codes;
};

struct Layer {
  Weight qkv_NE, o_EN;
  Tensor kv;
  Tensor router_XE;            // undefined where the MLP is dense
  Weight gate_up_NE, down_EF;  // of all experts
};

struct Results {
  Tensor normed_TE, qkv_TN, attended_TN, middle_TE, middle_normed_TE, logits_TX, gate_up_T2F, activated_TF, next_TE;
  Ops::Qkv split;
  Routing routing;
};

// The rows of a step.
struct Rows {
  Tensor hidden_TE, tokens_T, positions_T, slots_T;
  tandem::device::AttentionRows attended;
};

class Bench {
 public:
  Bench(const Ops& ops, const Shape& shape, Quantisation quantisation)
      : ops_(ops), shape_(shape), quantisation_(quantisation) {
    const int64_t copies = shape.experts == 0 ? 1 : shape.experts;
    for (int64_t i = 0; i < kLayers; ++i) {
      Layer layer = {.qkv_NE = weight(shape.qkv_width(), shape.hidden),
                     .o_EN = weight(shape.hidden, shape.heads * Shape::kHeadDim),
                     .kv = normal(kMany * kBlocks * 2 * shape.kv_heads, Shape::kHeadDim * kBlockTokens)
                               .view({kMany * kBlocks, 2, shape.kv_heads, Shape::kHeadDim * kBlockTokens}),
                     .router_XE = {},
                     .gate_up_NE = weight(copies * 2 * shape.width, shape.hidden),
                     .down_EF = weight(copies * shape.hidden, shape.width)};
      if (shape.experts > 0) layer.router_XE = normal(shape.experts, shape.hidden).mul_(0.02);
      layers_.push_back(std::move(layer));
    }
    norm_E_ = at::ones({shape.hidden}, norm_K_.options());
  }

  void run(int64_t T) const {
    const Rows rows = rows_of(T);
    const double all = us_of_layer(rows, "");
    fmt::print("{}{}, {} sequences: {:.1f} us a layer;", shape_.name, kind_of(quantisation_), T, all);
    for (const std::string_view name : kNames) {
      if (has(name)) fmt::print(" {} {:.1f}", name, all - us_of_layer(rows, name));
    }
    fmt::print("; {} of {} numbers differ\n", differences(T), T * shape_.hidden);
  }

 private:
  static constexpr int64_t kBlocks = (kKeys + kBlockTokens - 1) / kBlockTokens;
  static constexpr std::array<std::string_view, 13> kNames = {"norm",    "qkv",    "rotate", "append", "attend",
                                                              "o",       "norm 2", "router", "route",  "experts",
                                                              "gate_up", "silu",   "down"};

  at::TensorOptions options(at::ScalarType dtype) const { return at::TensorOptions(dtype).device(ops_.device()); }
  Tensor normal(int64_t rows, int64_t width) const { return at::randn({rows, width}, options(at::kBFloat16)); }
  // Returns a weight of random numbers, or of random codes: any byte is one.
  Weight weight(int64_t rows, int64_t columns) const {
    if (quantisation_ == Quantisation::kNone) return {.numbers_NK = normal(rows, columns).mul_(0.02), .codes = {}};
    QuantisedMatrix codes;
    const auto& part = codes.parts.emplace_back(tandem::device::quantised_part(quantisation_, 0, rows, columns, 0));
    codes.bytes = at::randint(256, {part.end_byte}, options(at::kByte));
    const auto set = [&](int64_t byte, int64_t count, double number) {
      codes.bytes.narrow(0, byte, count * static_cast<int64_t>(sizeof(float))).view(at::kFloat).fill_(number);
    };
    set(part.scales, part.num_scales(), 0.05);
    if (quantisation_ == Quantisation::kNf4) set(part.table, tandem::device::kNf4TableSize, 1.0);
    if (quantisation_ == Quantisation::kNf4) set(part.table + tandem::device::kNf4TableSize * 4, 1, 0.0);
    return {.numbers_NK = {}, .codes = codes};
  }
  Tensor linear(const Tensor& x_TK, const Weight& w) const {
    return w.numbers_NK.defined() ? ops_.linear(x_TK, w.numbers_NK, at::kBFloat16)
                                  : ops_.linear_quantised(x_TK, w.codes, at::kBFloat16);
  }
  Tensor linear_add(const Tensor& x_TK, const Weight& w, const Tensor& residual_TN) const {
    return w.numbers_NK.defined() ? ops_.linear_add(x_TK, w.numbers_NK, residual_TN)
                                  : ops_.linear_quantised_add(x_TK, w.codes, residual_TN);
  }
  static std::string_view kind_of(Quantisation quantisation) {
    if (quantisation == Quantisation::kNone) return "";
    return quantisation == Quantisation::kNf4 ? ":nf4" : ":int8";
  }
  bool has(std::string_view name) const {
    const bool is_sparse = name == "router" || name == "route" || name == "experts";
    const bool is_dense = name == "gate_up" || name == "silu" || name == "down";
    return shape_.experts > 0 ? !is_dense : !is_sparse;
  }

  // Returns the first T of kMany rows.
  Rows rows_of(int64_t T) const {
    const Tensor on_host = at::arange(T, at::kInt), positions_T = at::full({T}, kKeys - 1, at::kInt);
    return {.hidden_TE = hidden_.narrow(0, 0, T).narrow(1, 0, shape_.hidden).contiguous(),
            .tokens_T = on_host.to(ops_.device()),
            .positions_T = positions_T.to(ops_.device()),
            .slots_T = ((on_host + 1) * (kBlocks * kBlockTokens) - 1).to(at::kInt).to(ops_.device()),
            .attended = ops_.prepare({on_host, positions_T, at::arange(T * kBlocks, at::kInt).view({T, kBlocks}), {}})};
  }

  // Runs a layer but for the operation `left_out`, whose result in `r` stays.
  void run(const Layer& layer, const Rows& rows, std::string_view left_out, Results& r) const {
    const Ops::QkvShape qkv{shape_.heads, shape_.kv_heads, Shape::kHeadDim, 1e6, kEps};
    const auto is_in = [&](std::string_view name) { return has(name) && name != left_out; };
    if (is_in("norm")) r.normed_TE = ops_.rms_norm(rows.hidden_TE, norm_E_, kEps);
    if (is_in("qkv")) r.qkv_TN = linear(r.normed_TE, layer.qkv_NE);
    if (is_in("rotate")) r.split = ops_.qk_norm_rope(r.qkv_TN, norm_K_, norm_K_, rows.positions_T, qkv);
    if (is_in("append")) ops_.kv_append(layer.kv, r.split.k_TGK, r.split.v_TGK, rows.tokens_T, rows.slots_T);
    if (is_in("attend")) {
      r.attended_TN = ops_.paged_attention(r.split.q_THK, layer.kv, rows.attended, {})
                          .view({rows.hidden_TE.size(0), shape_.heads * Shape::kHeadDim});
    }
    if (is_in("o")) r.middle_TE = linear_add(r.attended_TN, layer.o_EN, rows.hidden_TE);
    if (is_in("norm 2")) r.middle_normed_TE = ops_.rms_norm(r.middle_TE, norm_E_, kEps);
    if (is_in("router")) r.logits_TX = ops_.linear(r.middle_normed_TE, layer.router_XE, at::kFloat);
    if (is_in("route")) r.routing = ops_.route(r.logits_TX, {.chosen = shape_.chosen, .normalises = true});
    if (is_in("experts")) {
      r.next_TE = ops_.mlp_of_experts(r.middle_normed_TE, layer.gate_up_NE.numbers_NK, layer.down_EF.numbers_NK,
                                      r.routing, r.middle_TE, at::kBFloat16, false)
                      .sum_TE;
    }
    if (is_in("gate_up")) r.gate_up_T2F = linear(r.middle_normed_TE, layer.gate_up_NE);
    if (is_in("silu")) r.activated_TF = ops_.silu_mul(r.gate_up_T2F);
    if (is_in("down")) r.next_TE = linear_add(r.activated_TF, layer.down_EF, r.middle_TE);
  }

  void wait() const { ops_.fetch(at::zeros({1}, options(at::kFloat)))->wait(); }

  // Returns the time of a recorded layer, the least of a few rounds.
  double us_of_layer(const Rows& rows, std::string_view left_out) const {
    Results r;
    for (const Layer& layer : layers_) run(layer, rows, "", r);  // kernels are chosen before anything is recorded
    const std::unique_ptr<Ops::Recording> recording = ops_.record([&] {
      Results recorded = r;
      for (int64_t turn = 0; turn < kTurns; ++turn) {
        for (const Layer& layer : layers_) run(layer, rows, left_out, recorded);
      }
    });
    constexpr int kRounds = 6, kReplays = 8;
    double least = 1e9;
    for (int round = 0; round < kRounds; ++round) {
      wait();
      const auto start = std::chrono::steady_clock::now();
      for (int replay = 0; replay < kReplays; ++replay) recording->replay();
      wait();
      least = std::min(least, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    return least * 1e6 / static_cast<double>(kReplays * kTurns * kLayers);
  }

  int64_t differences(int64_t T) const {
    const Rows rows = rows_of(T), many = rows_of(kMany);
    int64_t count = 0;
    for (const Layer& layer : layers_) {
      Results r, wanted;
      run(layer, many, "", wanted);
      run(layer, rows, "", r);
      const std::unique_ptr<Ops::Recording> recording = ops_.record([&] { run(layer, rows, "", r); });
      r.next_TE.zero_();
      recording->replay();
      count += r.next_TE.ne(wanted.next_TE.narrow(0, 0, T)).sum().item<int64_t>();
    }
    return count;
  }

  const Ops& ops_;
  const Shape& shape_;
  Quantisation quantisation_;
  const Tensor hidden_ = normal(kMany, 4096), norm_K_ = at::ones({Shape::kHeadDim}, options(at::kBFloat16));
  Tensor norm_E_;
  std::vector<Layer> layers_;
};

}  // namespace

int main(int argc, char** argv) {
  const std::string_view name = argc > 1 ? std::string_view(argv[1]) : std::string_view();
  const std::string_view kind = name.substr(std::min(name.find(':'), name.size()));
  const auto* const shape = std::ranges::find(kShapes, name.substr(0, name.size() - kind.size()), &Shape::name);
  std::vector<int64_t> rows;
  for (int i = 2; i < argc; ++i) rows.push_back(std::strtoll(argv[i], nullptr, 10));
  if (shape == kShapes.end() || rows.empty() || !(kind.empty() || kind == ":nf4" || kind == ":int8") ||
      (!kind.empty() && shape->experts > 0) ||
      !std::ranges::all_of(rows, [](int64_t T) { return T >= 1 && T <= kMany; })) {
    fmt::print(stderr, "usage: layer_bench SHAPE ROWS ..., with rows from 1 to {}, where SHAPE is one of", kMany);
    for (const Shape& known : kShapes) fmt::print(stderr, " {}", known.name);
    fmt::print(stderr, ", and a dense one may end in :nf4 or :int8\n");
    return 2;
  }
  const Quantisation quantisation = kind.empty()     ? Quantisation::kNone
                                    : kind == ":nf4" ? Quantisation::kNf4
                                                     : Quantisation::kInt8;
  try {
    const std::unique_ptr<Ops> ops = tandem::device::make_ops(tandem::device::parse_device("cuda"), {});
    const Bench bench(*ops, *shape, quantisation);
    for (const int64_t T : rows) bench.run(T);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 3;
  }
  return 0;
}
