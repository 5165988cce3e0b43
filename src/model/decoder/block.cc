#include "model/decoder/block.h"

#include "base/check.h"
#include "model/decoder/sparse_mlp.h"

namespace tandem::model::decoder {

using at::Tensor;

namespace {

// Returns the packed name of a norm that the family has, or "".
std::string name_if(const char* hf_name, const char* packed) { return hf_name == nullptr ? "" : packed; }

bool has_qkv_bias(const Layer& layer) { return layer.family.qkv_bias || layer.config.attention_bias; }

// The gated activation of a family.
class GatedActivation {
 public:
  GatedActivation(Activation kind, const device::Ops& ops) : is_silu_(kind == Activation::kSilu), ops_(ops) {}
  Tensor forward(const Tensor& gate_up_T2F) const {
    return is_silu_ ? ops_.silu_mul(gate_up_T2F) : ops_.gelu_mul(gate_up_T2F);
  }
  // Leaves forward(gate_up) in the place of dy.
  Tensor backward(const Tensor& dy_TF, const Tensor& gate_up_T2F) const {
    return is_silu_ ? ops_.silu_mul_backward(dy_TF, gate_up_T2F) : ops_.gelu_mul_backward(dy_TF, gate_up_T2F);
  }

 private:
  const bool is_silu_;
  const device::Ops& ops_;
};

// Computes middle + down(activation(gate) * up); gate and up are products with the normalised middle.
class GatedMlp final : public MlpPiece {
 public:
  explicit GatedMlp(const Layer& layer)
      : activation_(layer.family.activation, layer.ops),
        ops_(layer.ops),
        stream_(layer.stream),
        sink_(layer.sink),
        norms_(layer, name_if(layer.family.norms.mlp_input, "post_norm"),
               name_if(layer.family.norms.mlp_output, "mlp_output_norm")),
        gate_up_(layer.linear("gate_up", Cut::kRows)),
        down_(layer.linear("down", Cut::kColumns)) {}

  void bind(const weights::WeightsView& view) override {
    norms_.bind(view);
    gate_up_.bind(view);
    down_.bind(view);
  }

  Tensor forward(const Tensor& middle_TE, int64_t num_tokens) const override {
    return differentiable({middle_TE}, [&] {
      const Tensor gate_up_T2F = gate_up_.forward(norms_.input(middle_TE, num_tokens));
      PieceNorms::Sum out = norms_.add(down_, activation_.forward(gate_up_T2F), middle_TE);
      const auto backward = [this, middle_TE, gate_up_T2F, given_TE = out.given_TE,
                             num_tokens](const Tensors& d) -> Tensors {
        const Tensor ddown_TE = norms_.output_backward(d[0], given_TE, sink_);
        const Tensor dgate_up_T2F = gate_up_gradient(stream_.whole(ddown_TE, num_tokens), gate_up_T2F);
        const Tensor dinput_TE = gate_up_.backward(dgate_up_T2F, norms_.input(middle_TE, num_tokens), sink_);
        return {ops_.add(d[0], norms_.input_backward(dinput_TE, middle_TE, sink_))};
      };
      return Piece{{std::move(out.sum_TE)}, backward};
    })[0];
  }

 private:
  Tensor gate_up_gradient(const Tensor& ddown_TE, const Tensor& gate_up_T2F) const {
    const Linear::InputGradient down = down_.input_gradient(ddown_TE);
    Tensor dgate_up_T2F = activation_.backward(down.dx_TK, gate_up_T2F);
    const Tensor& activated_TF = down.dx_TK;  // by now
    down_.add_weight_gradient(ddown_TE, down.du_TR, activated_TF, sink_);
    return dgate_up_T2F;
  }

  const GatedActivation activation_;
  const device::Ops& ops_;
  const ResidualStream& stream_;
  const GradientSlot& sink_;
  PieceNorms norms_;
  Linear gate_up_, down_;
};

std::unique_ptr<MlpPiece> make_mlp(const Layer& layer) {
  std::unique_ptr<MlpPiece> mlp;
  switch (layer.family.mlp) {
    case MlpKind::kGated: mlp = std::make_unique<GatedMlp>(layer); break;
    case MlpKind::kSparse: mlp = std::make_unique<SparseMlp>(layer); break;
  }
  return mlp;
}

}  // namespace

AttentionPiece::AttentionPiece(const Layer& layer)
    : stream_(layer.stream),
      sink_(layer.sink),
      norms_(layer, name_if(layer.family.norms.attention_input, "input_norm"),
             name_if(layer.family.norms.attention_output, "attention_output_norm")),
      qkv_(layer.linear("qkv", Cut::kRows, has_qkv_bias(layer) ? "qkv_bias" : "")),
      o_(layer.linear("o", Cut::kColumns)),
      rotation_(layer) {}

void AttentionPiece::bind(const weights::WeightsView& view) {
  norms_.bind(view);
  qkv_.bind(view);
  rotation_.bind(view);
  o_.bind(view);
}

Tensors AttentionPiece::project(const Tensor& hidden_TE, const Tensor& positions_T) const {
  return differentiable({hidden_TE}, [&] {
    const int64_t num_tokens = positions_T.size(0);
    const Tensor qkv_TN = qkv_.forward(norms_.input(hidden_TE, num_tokens));
    Rotation::Rotated rotated = rotation_.forward(qkv_TN, positions_T);
    const auto backward = [this, hidden_TE, normed_TN = rotated.normed_TN, positions_T,
                           num_tokens](const Tensors& d) -> Tensors {
      TANDEM_CHECK(d[0].defined() && d[1].defined() && d[2].defined(), "attention gave no gradient of q, k or v");
      const Tensor dqkv_TN = rotation_.backward(d, normed_TN, positions_T);
      const Tensor dinput_TE = qkv_.backward(dqkv_TN, norms_.input(hidden_TE, num_tokens), sink_);
      return {norms_.input_backward(dinput_TE, hidden_TE, sink_)};
    };
    device::Ops::Qkv& qkv = rotated.qkv;
    return Piece{{std::move(qkv.q_THK), std::move(qkv.k_TGK), std::move(qkv.v_TGK)}, backward};
  });
}

Tensor AttentionPiece::add_output(const Tensor& hidden_TE, const Tensor& attended_THK) const {
  return differentiable({hidden_TE, attended_THK}, [&] {
    const Tensor attended_TN = attended_THK.view({attended_THK.size(0), -1});
    PieceNorms::Sum out = norms_.add(o_, attended_TN, hidden_TE);
    const auto backward = [this, attended_TN, given_TE = out.given_TE,
                           shape = attended_THK.sizes().vec()](const Tensors& d) -> Tensors {
      const Tensor dproduct_TE = stream_.whole(norms_.output_backward(d[0], given_TE, sink_), attended_TN.size(0));
      return {d[0], o_.backward(dproduct_TE, attended_TN, sink_).view(shape)};
    };
    return Piece{{std::move(out.sum_TE)}, backward};
  })[0];
}

Block::Block(const Layer& layer)
    : layer_(layer.index),
      window_(layer.config.attention_of(layer.index).window),
      attention_(layer),
      mlp_(make_mlp(layer)) {}

void Block::bind(const weights::WeightsView& view) {
  attention_.bind(view);
  mlp_->bind(view);
}

Tensor Block::forward(const Tensor& hidden_TE, const Tensor& positions_T, Attention& attention) const {
  const Tensors qkv = attention_.project(hidden_TE, positions_T);
  const Tensor attended_THK = attention.forward(layer_, window_, qkv[0], qkv[1], qkv[2]);
  return mlp_->forward(attention_.add_output(hidden_TE, attended_THK), positions_T.size(0));
}

}  // namespace tandem::model::decoder
