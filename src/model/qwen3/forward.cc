// Qwen3's block: what model/decoder shares, and a projection with norms on each head of q and k.
#include "model/decoder/forward.h"
#include "base/check.h"
#include "model/qwen3/qwen3.h"

namespace tandem::model::qwen3 {
namespace {

using at::Tensor;

class Qwen3Block final : public decoder::Block {
 public:
  explicit Qwen3Block(const decoder::Layer& layer)
      : ops_(layer.ops),
        sink_(layer.sink),
        layer_(layer.index),
        shape_(layer.qkv_shape()),
        q_norm_name_(layer.packed_name("q_norm")),
        k_norm_name_(layer.packed_name("k_norm")),
        input_norm_(layer.ops, layer.packed_name("input_norm"), layer.config.rms_norm_eps),
        qkv_(layer.linear("qkv")),
        output_(layer),
        mlp_(layer) {}

  void bind(const weights::WeightsView& view) override {
    input_norm_.bind(view);
    qkv_.bind(view);
    q_norm_K_ = view[q_norm_name_];
    k_norm_K_ = view[k_norm_name_];
    output_.bind(view);
    mlp_.bind(view);
  }

  Tensor forward(const Tensor& hidden_TE, const Tensor& positions_T, Attention& attention) const override {
    const Tensors qkv = project_qkv(hidden_TE, positions_T);
    const Tensor attended_THK = attention.forward(layer_, qkv[0], qkv[1], qkv[2]);
    return mlp_.forward(output_.forward(hidden_TE, attended_THK));
  }

 private:
  // q_THK, k_TGK, v_TGK; q and k normalised and rotated. Keeps hidden and qkv.
  Tensors project_qkv(const Tensor& hidden_TE, const Tensor& positions_T) const {
    return differentiable({hidden_TE}, [&] {
      const Tensor qkv_TN = qkv_.forward(input_norm_.forward(hidden_TE));
      device::Ops::Qkv split = ops_.qk_norm_rope(qkv_TN, q_norm_K_, k_norm_K_, positions_T, shape_);
      const auto backward = [this, hidden_TE, qkv_TN, positions_T](const Tensors& d) -> Tensors {
        TANDEM_CHECK(d[0].defined() && d[1].defined() && d[2].defined(), "attention gave no gradient of q, k or v");
        const Tensor dqkv_TN =
            ops_.qk_norm_rope_backward(d[0], d[1], d[2], qkv_TN, q_norm_K_, k_norm_K_, positions_T, shape_,
                                       sink_(q_norm_name_).accumulator(), sink_(k_norm_name_).accumulator());
        const Tensor dnormed_TE = qkv_.backward(dqkv_TN, input_norm_.forward(hidden_TE), sink_);
        return {input_norm_.backward(dnormed_TE, hidden_TE, sink_)};
      };
      return Piece{{std::move(split.q_THK), std::move(split.k_TGK), std::move(split.v_TGK)}, backward};
    });
  }

  const device::Ops& ops_;
  const GradientSlot& sink_;
  const int64_t layer_;
  const device::Ops::QkvShape shape_;
  const std::string q_norm_name_, k_norm_name_;
  decoder::RmsNorm input_norm_;
  Linear qkv_;
  Tensor q_norm_K_, k_norm_K_;
  decoder::AttentionOutput output_;
  decoder::SwigluMlp mlp_;
};

}  // namespace

std::unique_ptr<Model> make(const ModelConfig& config, const weights::WeightsView& view, const device::Ops& ops) {
  return decoder::make_decoder(config, view, ops, [](const decoder::Layer& layer) -> std::unique_ptr<decoder::Block> {
    return std::make_unique<Qwen3Block>(layer);
  });
}

}  // namespace tandem::model::qwen3
