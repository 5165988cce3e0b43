// The operations of a layer of experts on a GPU at the shape of Qwen3-30B-A3B: how fast decode steps stream the
// experts' weights, how fast training multiplies, and whether all sizes of batches give the same bits. Run:
// experts_bench [cuda]. It takes about 20 GB of the GPU's memory. Where the time of a layer goes: layer_bench.cc.
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "bench/parts/device_seconds.h"
#include "device/ops.h"
#include "device/registry.h"

namespace {

using at::Tensor;
using tandem::device::GradientUse;
using tandem::device::Ops;
using tandem::device::RouteRule;
using tandem::device::Routing;
using tandem::device::RowsAre;

constexpr int64_t kExperts = 128, kChosen = 8, kHidden = 2048, kWidth = 768;
constexpr RouteRule kRule = {.chosen = kChosen, .normalises = true};
// Decode steps go over so many layers' weights, so that they come from memory.
constexpr int64_t kLayers = 6;
// Experts are chosen unevenly: their logits have means of this deviation, beside tokens of deviation 1.
constexpr double kSkew = 0.7;

struct Layer {
  Tensor gate_up_XNE, down_XEF;
};

class Bench {
 public:
  explicit Bench(const Ops& ops) : ops_(ops) {
    for (int64_t i = 0; i < kLayers; ++i) {
      layers_.push_back(
          {normal(kExperts * 2 * kWidth, kHidden).mul_(0.05), normal(kExperts * kHidden, kWidth).mul_(0.05)});
    }
  }

  void run() {
    copy_gb_s_ = copy_speed();
    fmt::print("{}: a copy reads and writes {:.0f} GB/s\n\n", ops_.name(), copy_gb_s_);
    compare();
    fmt::print("\n{:>7} {:>8} | {:>9} {:>9} {:>9} {:>9} {:>9}   us a layer, recorded\n", "tokens", "experts", "route",
               "products", "sum", "all three", "of copy");
    for (const int64_t T : {1, 8, 32, 64, 128, 256, 512, 1024}) decode(T);
    fmt::print(
        "\n{:>7} {:>7} | {:>8} {:>8} {:>8} {:>8} TFLOP/s: forward, input's gradient, weight's set, added | {} ms\n",
        "tokens", "most", "y", "dx", "dw =", "dw +=", "route, sum, silu's gradient");
    for (const int64_t T : {2048, 8448, 33792}) {
      train(logits(T, 0.0));
      train(logits(T));
      train(crowded_logits(T));
    }
  }

 private:
  at::TensorOptions options(at::ScalarType dtype) const { return at::TensorOptions(dtype).device(ops_.device()); }
  Tensor normal(int64_t rows, int64_t width) const { return at::randn({rows, width}, options(at::kBFloat16)); }
  Tensor logits(int64_t T, double skew = kSkew) const {
    return at::randn({T, kExperts}, options(at::kFloat)) + at::randn({1, kExperts}, options(at::kFloat)) * skew;
  }
  // Nearly every token chooses the first kCrowded experts, so that these have most of the places.
  Tensor crowded_logits(int64_t T) const {
    constexpr int64_t kCrowded = 6;
    const Tensor logits_TX = logits(T, 0.0);
    logits_TX.narrow(1, 0, kCrowded).add_(3.0);
    return logits_TX;
  }

  template <typename Work>
  double seconds(int calls, const Work& work) const {
    return device_seconds(ops_, calls, work);
  }
  // The same of `work` for each layer in turn, recorded and replayed.
  template <typename Work>
  double recorded_seconds(const Work& work) const {
    constexpr int kTurns = 4;
    for (const Layer& layer : layers_) work(layer);  // kernels are chosen before anything is recorded
    const std::unique_ptr<Ops::Recording> recording = ops_.record([&] {
      for (int turn = 0; turn < kTurns; ++turn) {
        for (const Layer& layer : layers_) work(layer);
      }
    });
    return seconds(4, [&] { recording->replay(); }) / static_cast<double>(kTurns * kLayers);
  }

  double copy_speed() const {
    const Tensor from = at::zeros({int64_t{1} << 31}, options(at::kByte)), to = at::zeros_like(from);
    return 2.0 * static_cast<double>(from.nbytes()) * 1e-9 / seconds(4, [&] { to.copy_(from); });
  }

  Tensor rows(const Tensor& x_TE, const Routing& routing, const Layer& layer) const {
    const Tensor gate_up_PN = ops_.linear_of_experts(x_TE, RowsAre::kTokens, layer.gate_up_XNE, routing, at::kBFloat16);
    return ops_.linear_of_experts(ops_.silu_mul(gate_up_PN), RowsAre::kPlaces, layer.down_XEF, routing, at::kBFloat16);
  }

  Tensor mlp(const Tensor& x_TE, const Routing& routing, const Layer& layer) const {
    return ops_.mlp_of_experts(x_TE, layer.gate_up_XNE, layer.down_XEF, routing, x_TE, at::kBFloat16, false).sum_TE;
  }

  // Tokens in one large batch, and in batches of other sizes.
  void compare() const {
    constexpr int64_t kMost = 8448;
    const Tensor x_TE = normal(kMost, kHidden), logits_TX = logits(kMost);
    const auto sums = [&](int64_t first, int64_t T) {
      const Routing routing = ops_.route(logits_TX.narrow(0, first, T), kRule);
      const Tensor tokens_TE = x_TE.narrow(0, first, T);
      return mlp(tokens_TE, routing, layers_[0]);
    };
    const Tensor all_TE = sums(0, kMost);
    for (const int64_t T : {1, 3, 8, 32, 64, 100, 128, 256, 512, 1000, 4000}) {
      int64_t compared = 0, different = 0;
      for (int64_t first = 0; first + T <= kMost && compared < 40 * kHidden * T; first += T) {
        different += sums(first, T).ne(all_TE.narrow(0, first, T)).sum().item<int64_t>();
        compared += T * kHidden;
      }
      fmt::print("batches of {:4} tokens: {} of {} sums differ from those of {} tokens\n", T, different, compared,
                 kMost);
    }
  }

  void decode(int64_t T) const {
    const Tensor x_TE = normal(T, kHidden), logits_TX = logits(T);
    const Routing routing = ops_.route(logits_TX, kRule);
    const Tensor y_PE = rows(x_TE, routing, layers_[0]);
    const Tensor offsets = routing.offsets_X1.cpu();
    int64_t experts = 0;
    for (int64_t e = 0; e < kExperts; ++e)
      experts += offsets[e + 1].item<int32_t>() > offsets[e].item<int32_t>() ? 1 : 0;
    const double route = recorded_seconds([&](const Layer&) { ops_.route(logits_TX, kRule); });
    const double products = recorded_seconds([&](const Layer& layer) { rows(x_TE, routing, layer); });
    const double sum = recorded_seconds(
        [&](const Layer&) { ops_.sum_of_experts(y_PE, routing.weights_TC, routing, x_TE, at::kBFloat16); });
    const double all = recorded_seconds([&](const Layer& layer) { mlp(x_TE, routing, layer); });
    const double gb = static_cast<double>(experts * 3 * kHidden * kWidth * 2) * 1e-9;
    fmt::print("{:7} {:8} | {:9.1f} {:9.1f} {:9.1f} {:9.1f} {:8.0f}%\n", T, experts, route * 1e6, products * 1e6,
               sum * 1e6, all * 1e6, 100.0 * gb / all / copy_gb_s_);
  }

  // Prints a line. Its column `most` is the number of places of the expert that has most.
  void train(const Tensor& logits_TX) const {
    const int64_t T = logits_TX.size(0), P = T * kChosen;
    const Layer& layer = layers_[0];
    const Tensor x_TE = normal(T, kHidden), gate_up_PN = normal(P, 2 * kWidth);
    const Tensor a_PF = normal(P, kWidth), y_PE = normal(P, kHidden);
    const Tensor dgate_up_XNE = at::zeros({kExperts * 2 * kWidth, kHidden}, options(at::kFloat));
    const Tensor ddown_XEF = at::zeros({kExperts * kHidden, kWidth}, options(at::kFloat));
    const Routing routing = ops_.route(logits_TX, kRule);
    const Tensor ends = routing.offsets_X1.narrow(0, 1, kExperts), begins = routing.offsets_X1.narrow(0, 0, kExperts);
    const auto most = (ends - begins).max().item<int32_t>();
    const auto tflops = [&](double seconds) { return 6e-12 * static_cast<double>(P * kHidden * kWidth) / seconds; };
    const double forward = seconds(3, [&] {
      ops_.linear_of_experts(x_TE, RowsAre::kTokens, layer.gate_up_XNE, routing, at::kBFloat16);
      ops_.linear_of_experts(a_PF, RowsAre::kPlaces, layer.down_XEF, routing, at::kBFloat16);
    });
    const double grad_input = seconds(3, [&] {
      ops_.linear_of_experts_grad_input(x_TE, RowsAre::kTokens, layer.down_XEF, routing, at::kBFloat16);
      ops_.linear_of_experts_grad_input(gate_up_PN, RowsAre::kPlaces, layer.gate_up_XNE, routing, at::kBFloat16);
    });
    const auto grad_weight = [&](GradientUse use) {
      return seconds(3, [&] {
        ops_.linear_of_experts_grad_weight(x_TE, RowsAre::kTokens, a_PF, RowsAre::kPlaces, ddown_XEF, routing, use);
        ops_.linear_of_experts_grad_weight(gate_up_PN, RowsAre::kPlaces, x_TE, RowsAre::kTokens, dgate_up_XNE, routing,
                                           use);
      });
    };
    const double set = grad_weight(GradientUse::kSet), added = grad_weight(GradientUse::kAdd);
    const double route = seconds(3, [&] { ops_.route(logits_TX, kRule); });
    const double sum = seconds(3, [&] { ops_.sum_of_experts(y_PE, routing.weights_TC, routing, x_TE, at::kBFloat16); });
    const double silu = seconds(3, [&] { ops_.weighted_silu_backward(a_PF, gate_up_PN, routing); });
    fmt::print("{:7} {:7} | {:8.0f} {:8.0f} {:8.0f} {:8.0f} | {:.2f} {:.2f} {:.2f}\n", T, most, tflops(forward),
               tflops(grad_input), tflops(set), tflops(added), route * 1e3, sum * 1e3, silu * 1e3);
  }

  const Ops& ops_;
  std::vector<Layer> layers_;
  double copy_gb_s_ = 0.0;
};

}  // namespace

int main(int argc, char** argv) {
  const std::unique_ptr<Ops> ops =
      tandem::device::make_ops(tandem::device::parse_device(argc > 1 ? argv[1] : "cuda"), {});
  Bench(*ops).run();
  return 0;
}
