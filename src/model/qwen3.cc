#include "model/qwen3.h"

#include <deque>
#include <string>
#include <utility>

#include "base/check.h"
#include "model/autograd.h"
#include "model/linear.h"

namespace tandem::model {
namespace {

using at::Tensor;

// A norm's weight, by packed name.
class RmsNorm {
 public:
  RmsNorm(const device::Ops& ops, std::string packed_name, double eps)
      : ops_(ops), name_(std::move(packed_name)), eps_(eps) {}

  void bind(const weights::WeightsView& view) { weight_E_ = view[name_]; }
  Tensor forward(const Tensor& x_TE) const { return ops_.rms_norm(x_TE, weight_E_, eps_); }
  // Adds the weight's gradient to the sink and returns dx_TE.
  Tensor backward(const Tensor& dy_TE, const Tensor& x_TE, const GradientSink& sink) const {
    return ops_.rms_norm_backward(dy_TE, x_TE, weight_E_, eps_, sink(name_));
  }

 private:
  const device::Ops& ops_;
  std::string name_;
  double eps_;
  Tensor weight_E_;
};

// One decoder block: three differentiable pieces around the attention, which is the caller's.
//
//   hidden -> q, k, v              keeps hidden and qkv
//   hidden, attended -> middle     keeps attended
//   middle -> next hidden          keeps middle and gate_up
//
// The norms' and silu_mul's results are not kept: their cost is linear in the width where the products beside them are
// quadratic, and keeping them would take 2 E + F values per token and layer.
class Qwen3Block {
 public:
  Qwen3Block(const ModelConfig& config, const device::Ops& ops, int64_t layer, const GradientSink& sink)
      : ops_(ops),
        sink_(sink),
        layer_(layer),
        prefix_("layers." + std::to_string(layer) + "."),
        shape_{config.num_heads, config.num_kv_heads, config.head_dim, config.rope_theta, config.rms_norm_eps},
        input_norm_(ops, prefix_ + "input_norm", config.rms_norm_eps),
        post_norm_(ops, prefix_ + "post_norm", config.rms_norm_eps),
        qkv_(ops, prefix_ + "qkv"),
        o_(ops, prefix_ + "o"),
        gate_up_(ops, prefix_ + "gate_up"),
        down_(ops, prefix_ + "down") {}

  void bind(const weights::WeightsView& view) {
    for (RmsNorm* norm : {&input_norm_, &post_norm_}) norm->bind(view);
    for (Linear* linear : {&qkv_, &o_, &gate_up_, &down_}) linear->bind(view);
    q_norm_K_ = view[prefix_ + "q_norm"];
    k_norm_K_ = view[prefix_ + "k_norm"];
  }

  Tensor forward(const Tensor& hidden_TE, const Tensor& positions_T, Attention& attention) const {
    const Tensors qkv = project_qkv(hidden_TE, positions_T);
    const Tensor attended_THK = attention.forward(layer_, qkv[0], qkv[1], qkv[2]);
    return mlp(project_attended(hidden_TE, attended_THK));
  }

 private:
  // q_THK, k_TGK, v_TGK; q and k normalised and rotated.
  Tensors project_qkv(const Tensor& hidden_TE, const Tensor& positions_T) const {
    return differentiable({hidden_TE}, [&] {
      const Tensor qkv_TN = qkv_.forward(input_norm_.forward(hidden_TE));
      device::Ops::Qkv split = ops_.qk_norm_rope(qkv_TN, q_norm_K_, k_norm_K_, positions_T, shape_);
      const auto backward = [this, hidden_TE, qkv_TN, positions_T](const Tensors& d) -> Tensors {
        TANDEM_CHECK(d[0].defined() && d[1].defined() && d[2].defined(), "attention gave no gradient of q, k or v");
        const Tensor dqkv_TN = ops_.qk_norm_rope_backward(d[0], d[1], d[2], qkv_TN, q_norm_K_, k_norm_K_, positions_T,
                                                          shape_, sink_(prefix_ + "q_norm"), sink_(prefix_ + "k_norm"));
        const Tensor dnormed_TE = qkv_.backward(dqkv_TN, input_norm_.forward(hidden_TE), sink_);
        return {input_norm_.backward(dnormed_TE, hidden_TE, sink_)};
      };
      return Piece{{std::move(split.q_THK), std::move(split.k_TGK), std::move(split.v_TGK)}, backward};
    });
  }

  // hidden + attended o^T
  Tensor project_attended(const Tensor& hidden_TE, const Tensor& attended_THK) const {
    return differentiable({hidden_TE, attended_THK}, [&] {
      const Tensor attended_TN = attended_THK.view({attended_THK.size(0), -1});
      const auto backward = [this, attended_TN, shape = attended_THK.sizes().vec()](const Tensors& d) -> Tensors {
        return {d[0], o_.backward(d[0], attended_TN, sink_).view(shape)};
      };
      return Piece{{ops_.add(hidden_TE, o_.forward(attended_TN))}, backward};
    })[0];
  }

  // middle + down(silu(gate) * up), gate and up of the normalised middle.
  Tensor mlp(const Tensor& middle_TE) const {
    return differentiable({middle_TE}, [&] {
      const Tensor gate_up_T2F = gate_up_.forward(post_norm_.forward(middle_TE));
      const auto backward = [this, middle_TE, gate_up_T2F](const Tensors& d) -> Tensors {
        const Tensor dactivated_TF = down_.backward(d[0], ops_.silu_mul(gate_up_T2F), sink_);
        const Tensor dgate_up_T2F = ops_.silu_mul_backward(dactivated_TF, gate_up_T2F);
        const Tensor dnormed_TE = gate_up_.backward(dgate_up_T2F, post_norm_.forward(middle_TE), sink_);
        return {ops_.add(d[0], post_norm_.backward(dnormed_TE, middle_TE, sink_))};
      };
      return Piece{{ops_.add(middle_TE, down_.forward(ops_.silu_mul(gate_up_T2F)))}, backward};
    })[0];
  }

  const device::Ops& ops_;
  const GradientSink& sink_;
  const int64_t layer_;
  const std::string prefix_;
  const device::Ops::QkvShape shape_;
  RmsNorm input_norm_, post_norm_;
  Linear qkv_, o_, gate_up_, down_;
  Tensor q_norm_K_, k_norm_K_;
};

class Qwen3 final : public Model {
 public:
  Qwen3(const ModelConfig& config, const weights::WeightsView& view, const device::Ops& ops)
      : config_(config),
        ops_(ops),
        final_norm_(ops, "final_norm", config.rms_norm_eps),
        head_(ops, config.tied_embeddings ? "embed" : "head") {
    for (int64_t layer = 0; layer < config.num_layers; ++layer) blocks_.emplace_back(config_, ops_, layer, sink_);
    set_gradient_sink({});
    set_weights(view);
  }

  const ModelConfig& config() const override { return config_; }
  const device::Ops& ops() const override { return ops_; }

  Tensor embed(const Tensor& ids_T) const override { return ops_.embedding(embed_VE_, ids_T); }
  Tensor block(int64_t layer, const Tensor& hidden_TE, const Tensor& positions_T, Attention& attention) const override {
    return blocks_[static_cast<size_t>(layer)].forward(hidden_TE, positions_T, attention);
  }
  Tensor final_norm(const Tensor& hidden_TE) const override {
    return differentiable({hidden_TE}, [&] {
      const auto backward = [this, hidden_TE](const Tensors& d) -> Tensors {
        return {final_norm_.backward(d[0], hidden_TE, sink_)};
      };
      return Piece{{final_norm_.forward(hidden_TE)}, backward};
    })[0];
  }
  Tensor head(const Tensor& hidden_RE) const override { return head_.forward(hidden_RE, at::kFloat); }

  void embed_backward(const Tensor& dhidden_TE, const Tensor& ids_T) const override {
    ops_.embedding_backward(dhidden_TE, ids_T, sink_("embed"));
  }
  Tensor head_backward(const Tensor& dlogits_RV, const Tensor& hidden_RE) const override {
    return head_.backward(dlogits_RV, hidden_RE, sink_);
  }

  void set_weights(const weights::WeightsView& view) override {
    for (Qwen3Block& block : blocks_) block.bind(view);
    embed_VE_ = view["embed"];
    final_norm_.bind(view);
    head_.bind(view);
    weight_version_ = view.version();
  }
  uint64_t weight_version() const override { return weight_version_; }
  void set_gradient_sink(GradientSink sink) override {
    sink_ = std::move(sink);
    if (sink_) return;
    sink_ = [](const std::string& packed_name) -> Tensor {
      TANDEM_CHECK(false, "a gradient of", packed_name, "and no gradient sink");
      return {};
    };
  }

 private:
  const ModelConfig config_;
  const device::Ops& ops_;
  GradientSink sink_;
  Tensor embed_VE_;
  std::deque<Qwen3Block> blocks_;  // a deque: graphs point to blocks, which must not move
  RmsNorm final_norm_;
  Linear head_;
  uint64_t weight_version_ = 0;
};

}  // namespace

std::unique_ptr<Model> make_qwen3(const ModelConfig& config, const weights::WeightsView& view, const device::Ops& ops) {
  return std::make_unique<Qwen3>(config, view, ops);
}

}  // namespace tandem::model
