// Qwen3's block: what model/decoder shares, and a projection with norms on each head of q and k.
#include "model/decoder/forward.h"

#include <ATen/ops/zeros.h>

#include "base/check.h"
#include "model/qwen3/qwen3.h"

namespace tandem::model::qwen3 {
namespace {

using at::Tensor;

class Qwen3Block final : public decoder::Block {
 public:
  explicit Qwen3Block(const decoder::Layer& layer)
      : ops_(layer.ops),
        ranks_(layer.stream.ranks()),
        sink_(layer.sink),
        layer_(layer.index),
        shape_(layer.qkv_shape()),
        q_norm_name_(layer.packed_name("q_norm")),
        k_norm_name_(layer.packed_name("k_norm")),
        input_norm_(layer.ops, layer.stream, layer.packed_name("input_norm"), layer.config.rms_norm_eps),
        qkv_(layer.linear("qkv", Cut::kRows)),
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
    return mlp_.forward(output_.forward(hidden_TE, attended_THK), positions_T.size(0));
  }

 private:
  // q_THK, k_TGK, v_TGK; q and k normalised and rotated. Keeps hidden and qkv.
  Tensors project_qkv(const Tensor& hidden_TE, const Tensor& positions_T) const {
    return differentiable({hidden_TE}, [&] {
      const Tensor qkv_TN = qkv_.forward(input_norm_.forward(hidden_TE, positions_T.size(0)));
      device::Ops::Qkv split = ops_.qk_norm_rope(qkv_TN, q_norm_K_, k_norm_K_, positions_T, shape_);
      const auto backward = [this, hidden_TE, qkv_TN, positions_T](const Tensors& d) -> Tensors {
        TANDEM_CHECK(d[0].defined() && d[1].defined() && d[2].defined(), "attention gave no gradient of q, k or v");
        const Tensor dqkv_TN = split_backward(d, qkv_TN, positions_T);
        const Tensor dnormed_TE = qkv_.backward(dqkv_TN, input_norm_.forward(hidden_TE, positions_T.size(0)), sink_);
        return {input_norm_.backward(dnormed_TE, hidden_TE, sink_)};
      };
      return Piece{{std::move(split.q_THK), std::move(split.k_TGK), std::move(split.v_TGK)}, backward};
    });
  }

  // From the gradients of q, k and v to that of qkv. A norm has one weight for all heads, and each rank the gradient of
  // its own heads: they are added up in float32 before anything else, so that all ranks add the same to what is there.
  Tensor split_backward(const Tensors& d, const Tensor& qkv_TN, const Tensor& positions_T) const {
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

  const device::Ops& ops_;
  const TensorRanks& ranks_;
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

std::unique_ptr<Model> make(const ModelConfig& config, const weights::WeightsView& view, const device::Ops& ops,
                            const TensorRanks& ranks) {
  return decoder::make_decoder(config, view, ops, ranks,
                               [](const decoder::Layer& layer) -> std::unique_ptr<decoder::Block> {
                                 return std::make_unique<Qwen3Block>(layer);
                               });
}

}  // namespace tandem::model::qwen3
