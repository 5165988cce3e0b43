#include "model/decoder/block.h"

#include <ATen/ops/zeros.h>

#include "base/check.h"
#include "model/decoder/sparse_mlp.h"

namespace tandem::model::decoder {

using at::Tensor;

namespace {

device::Ops::QkvShape qkv_shape(const ModelConfig& config) {
  return {.num_heads = config.num_heads,
          .num_kv_heads = config.num_kv_heads,
          .head_dim = config.head_dim,
          .rope_theta = config.rope_theta,
          .eps = config.rms_norm_eps,
          .rope_factors = config.rope_factors};
}

// Computes middle + down(silu(gate) * up); gate and up are products with the normalised middle.
class SwigluMlp final : public MlpPiece {
 public:
  explicit SwigluMlp(const Layer& layer)
      : ops_(layer.ops),
        sink_(layer.sink),
        norm_(norm_of(layer, "post_norm")),
        gate_up_(layer.linear("gate_up", Cut::kRows)),
        down_(layer.linear("down", Cut::kColumns)) {}

  void bind(const weights::WeightsView& view) override {
    norm_.bind(view);
    gate_up_.bind(view);
    down_.bind(view);
  }

  Tensor forward(const Tensor& middle_TE, int64_t num_tokens) const override {
    return differentiable({middle_TE}, [&] {
      const Tensor gate_up_T2F = gate_up_.forward(norm_.forward(middle_TE, num_tokens));
      const auto backward = [this, middle_TE, gate_up_T2F, num_tokens](const Tensors& d) -> Tensors {
        const Tensor dactivated_TF = down_.backward(d[0], ops_.silu_mul(gate_up_T2F), sink_);
        const Tensor dgate_up_T2F = ops_.silu_mul_backward(dactivated_TF, gate_up_T2F);
        const Tensor dnormed_TE = gate_up_.backward(dgate_up_T2F, norm_.forward(middle_TE, num_tokens), sink_);
        return {ops_.add(d[0], norm_.backward(dnormed_TE, middle_TE, sink_))};
      };
      return Piece{{down_.forward_add(ops_.silu_mul(gate_up_T2F), middle_TE)}, backward};
    })[0];
  }

 private:
  const device::Ops& ops_;
  const GradientSlot& sink_;
  RmsNorm norm_;
  Linear gate_up_, down_;
};

std::unique_ptr<MlpPiece> make_mlp(const Layer& layer) {
  std::unique_ptr<MlpPiece> mlp;
  switch (layer.family.mlp) {
    case MlpKind::kSwiglu: mlp = std::make_unique<SwigluMlp>(layer); break;
    case MlpKind::kSparse: mlp = std::make_unique<SparseMlp>(layer); break;
  }
  return mlp;
}

}  // namespace

Linear Layer::linear(const std::string& tensor, Cut cut, const std::string& bias) const {
  return {ops, stream, packed_name(tensor), cut, bias.empty() ? "" : packed_name(bias), adapter(tensor)};
}

Adapter Layer::adapter(const std::string& tensor) const {
  const auto windows = adapters.find(packed_name(tensor));
  if (windows == adapters.end()) return {};
  return {.scale = config.lora->scale(), .windows = windows->second};
}

RmsNorm norm_of(const Layer& layer, const std::string& tensor) {
  return {layer.ops, layer.stream, layer.packed_name(tensor), layer.config.rms_norm_eps};
}

Tensor RmsNorm::forward(const Tensor& x_TE, int64_t num_tokens) const {
  return stream_.whole(ops_.rms_norm(x_TE, weight_E_, eps_), num_tokens);
}

Tensor RmsNorm::backward(const Tensor& dy_TE, const Tensor& x_TE, const GradientSlot& sink) const {
  if (!stream_.is_cut()) return ops_.rms_norm_backward(dy_TE, x_TE, weight_E_, eps_, sink(name_).accumulator());
  const Tensor own_E = at::zeros({x_TE.size(1)}, x_TE.options().dtype(at::kFloat));
  Tensor dx_TE = ops_.rms_norm_backward(dy_TE, x_TE, weight_E_, eps_, own_E);
  sink.add(name_, stream_.ranks().sum(own_E, /*residual=*/{}, at::kFloat));
  return dx_TE;
}

AttentionPiece::AttentionPiece(const Layer& layer)
    : ops_(layer.ops),
      ranks_(layer.stream.ranks()),
      sink_(layer.sink),
      shape_(qkv_shape(layer.config)),
      has_norms_(layer.family.qk_norm),
      q_norm_name_(layer.packed_name("q_norm")),
      k_norm_name_(layer.packed_name("k_norm")),
      input_norm_(norm_of(layer, "input_norm")),
      qkv_(layer.linear("qkv", Cut::kRows, layer.family.qkv_bias ? "qkv_bias" : "")),
      o_(layer.linear("o", Cut::kColumns)) {}

void AttentionPiece::bind(const weights::WeightsView& view) {
  input_norm_.bind(view);
  qkv_.bind(view);
  if (has_norms_) {
    q_norm_K_ = view[q_norm_name_];
    k_norm_K_ = view[k_norm_name_];
  }
  o_.bind(view);
}

Tensors AttentionPiece::project(const Tensor& hidden_TE, const Tensor& positions_T) const {
  return differentiable({hidden_TE}, [&] {
    const Tensor qkv_TN = qkv_.forward(input_norm_.forward(hidden_TE, positions_T.size(0)));
    device::Ops::Qkv split = has_norms_ ? ops_.qk_norm_rope(qkv_TN, q_norm_K_, k_norm_K_, positions_T, shape_)
                                        : ops_.rope(qkv_TN, positions_T, shape_);
    // The rotation's backward reads nothing of the forward, that of the norms their input.
    const Tensor kept_TN = has_norms_ ? qkv_TN : Tensor();
    const auto backward = [this, hidden_TE, kept_TN, positions_T](const Tensors& d) -> Tensors {
      TANDEM_CHECK(d[0].defined() && d[1].defined() && d[2].defined(), "attention gave no gradient of q, k or v");
      const Tensor dqkv_TN = qkv_backward(d, kept_TN, positions_T);
      const Tensor dnormed_TE = qkv_.backward(dqkv_TN, input_norm_.forward(hidden_TE, positions_T.size(0)), sink_);
      return {input_norm_.backward(dnormed_TE, hidden_TE, sink_)};
    };
    return Piece{{std::move(split.q_THK), std::move(split.k_TGK), std::move(split.v_TGK)}, backward};
  });
}

Tensor AttentionPiece::qkv_backward(const Tensors& d, const Tensor& qkv_TN, const Tensor& positions_T) const {
  return has_norms_ ? normed_qkv_backward(d, qkv_TN, positions_T)
                    : ops_.rope_backward(d[0], d[1], d[2], positions_T, shape_);
}

// A norm has one weight for all heads, and each rank the gradient of its own heads: they are added up in float32 before
// anything else, so that all ranks add the same to what is there.
Tensor AttentionPiece::normed_qkv_backward(const Tensors& d, const Tensor& qkv_TN, const Tensor& positions_T) const {
  const auto backward = [&](const Tensor& dq_norm_K, const Tensor& dk_norm_K) {
    return ops_.qk_norm_rope_backward(d[0], d[1], d[2], qkv_TN, q_norm_K_, k_norm_K_, positions_T, shape_, dq_norm_K,
                                      dk_norm_K);
  };
  if (ranks_.is_alone()) return backward(sink_(q_norm_name_).accumulator(), sink_(k_norm_name_).accumulator());
  const Tensor own_2K = at::zeros({2, shape_.head_dim}, qkv_TN.options().dtype(at::kFloat));
  Tensor dqkv_TN = backward(own_2K[0], own_2K[1]);
  const Tensor sum_2K = ranks_.sum(own_2K, /*residual=*/{}, at::kFloat);
  sink_.add(q_norm_name_, sum_2K[0]);
  sink_.add(k_norm_name_, sum_2K[1]);
  return dqkv_TN;
}

Tensor AttentionPiece::add_output(const Tensor& hidden_TE, const Tensor& attended_THK) const {
  return differentiable({hidden_TE, attended_THK}, [&] {
    const Tensor attended_TN = attended_THK.view({attended_THK.size(0), -1});
    const auto backward = [this, attended_TN, shape = attended_THK.sizes().vec()](const Tensors& d) -> Tensors {
      return {d[0], o_.backward(d[0], attended_TN, sink_).view(shape)};
    };
    return Piece{{o_.forward_add(attended_TN, hidden_TE)}, backward};
  })[0];
}

Block::Block(const Layer& layer) : layer_(layer.index), attention_(layer), mlp_(make_mlp(layer)) {}

void Block::bind(const weights::WeightsView& view) {
  attention_.bind(view);
  mlp_->bind(view);
}

Tensor Block::forward(const Tensor& hidden_TE, const Tensor& positions_T, Attention& attention) const {
  const Tensors qkv = attention_.project(hidden_TE, positions_T);
  const Tensor attended_THK = attention.forward(layer_, qkv[0], qkv[1], qkv[2]);
  return mlp_->forward(attention_.add_output(hidden_TE, attended_THK), positions_T.size(0));
}

}  // namespace tandem::model::decoder
