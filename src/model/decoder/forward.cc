#include "model/decoder/forward.h"

#include <ATen/ops/zeros.h>

#include <utility>
#include <vector>

#include "base/check.h"

namespace tandem::model::decoder {
namespace {

using at::Tensor;

class Decoder final : public Model {
 public:
  Decoder(const ModelConfig& config, const weights::WeightsView& view, const device::Ops& ops, const TensorRanks& ranks,
          std::unique_ptr<Block> (*make_block)(const Layer&))
      : config_(config),
        ops_(ops),
        ranks_(ranks),
        stream_(ranks_, config.shard.cuts_rows()),
        head_input_(ranks_, /*is_cut=*/false),
        vocab_rows_(vocab_rows(config)),
        vocab_widths_(vocab_row_counts(config)),
        adapters_(adapter_windows(config)),
        final_norm_(ops, stream_, "final_norm", config.rms_norm_eps),
        head_(ops, head_input_, config.tied_embeddings ? "embed" : "head", Cut::kRows) {
    TANDEM_CHECK_EQ(ranks_.size(), config.shard.size);
    TANDEM_CHECK_EQ(ranks_.rank(), config.shard.rank);
    for (int64_t layer = 0; layer < config.num_layers; ++layer) {
      blocks_.push_back(make_block(
          {.config = config_, .ops = ops_, .stream = stream_, .sink = sink_, .adapters = adapters_, .index = layer}));
    }
    set_weights(view);
  }

  const ModelConfig& config() const override { return config_; }
  const device::Ops& ops() const override { return ops_; }
  at::ScalarType dtype() const override { return embed_VE_.scalar_type(); }

  // Each id's row is one rank's, the others add zeros.
  Tensor embed(const Tensor& ids_T) const override {
    if (ranks_.is_alone()) return ops_.embedding(embed_VE_, ids_T);
    return stream_.sum(ops_.embedding_part(embed_VE_, vocab_rows_.begin, ids_T), /*residual=*/{}, dtype());
  }
  Tensor block(int64_t layer, const Tensor& hidden_TE, const Tensor& positions_T, Attention& attention) const override {
    return blocks_[static_cast<size_t>(layer)]->forward(hidden_TE, positions_T, attention);
  }
  Tensor final_norm(const Tensor& hidden_TE, int64_t num_tokens) const override {
    return differentiable({hidden_TE}, [&] {
      const auto backward = [this, hidden_TE](const Tensors& d) -> Tensors {
        return {final_norm_.backward(stream_.kept(d[0]), hidden_TE, sink_)};
      };
      return Piece{{final_norm_.forward(hidden_TE, num_tokens)}, backward};
    })[0];
  }
  Tensor head(const Tensor& hidden_RE) const override { return head_.forward(hidden_RE, at::kFloat); }
  Tensor own_logits(const Tensor& logits_RV) const override { return ranks_.whole_own_rows(logits_RV, vocab_widths_); }
  const TensorRanks& ranks() const override { return ranks_; }

  void embed_backward(const Tensor& dhidden, const Tensor& ids_T) const override {
    // Before anything else: the other ranks wait for these rows, whatever this one wants.
    const Tensor dhidden_TE = stream_.whole(dhidden, ids_T.size(0));
    const GradientTarget dembed_VE = sink_("embed");
    if (!dembed_VE.is_wanted()) return;
    if (ranks_.is_alone()) return ops_.embedding_backward(dhidden_TE, ids_T, dembed_VE.accumulator());
    ops_.embedding_part_backward(dhidden_TE, vocab_rows_.begin, ids_T, dembed_VE.accumulator());
  }
  Tensor head_backward(const Tensor& dlogits_RV, const Tensor& hidden_RE) const override {
    return head_.backward(dlogits_RV, hidden_RE, sink_);
  }

  void set_weights(const weights::WeightsView& view) override {
    for (const std::unique_ptr<Block>& block : blocks_) block->bind(view);
    embed_VE_ = view["embed"];
    final_norm_.bind(view);
    head_.bind(view);
    weight_version_ = view.version();
  }
  uint64_t weight_version() const override { return weight_version_; }
  void set_gradient_sink(GradientSink* sink) override { sink_.set(sink); }

 private:
  const ModelConfig config_;
  const device::Ops& ops_;
  const TensorRanks ranks_;
  const ResidualStream stream_, head_input_;  // of rows that the head reads each rank has all
  const VocabRows vocab_rows_;                // of the own part
  const std::vector<int64_t> vocab_widths_;   // of each rank's
  const AdapterWindows adapters_;
  GradientSlot sink_;
  Tensor embed_VE_;
  std::vector<std::unique_ptr<Block>> blocks_;
  RmsNorm final_norm_;
  Linear head_;
  uint64_t weight_version_ = 0;
};

class RotaryBlock final : public Block {
 public:
  RotaryBlock(const Layer& layer, Linear qkv)
      : ops_(layer.ops),
        sink_(layer.sink),
        layer_(layer.index),
        shape_(layer.qkv_shape()),
        input_norm_(layer.ops, layer.stream, layer.packed_name("input_norm"), layer.config.rms_norm_eps),
        qkv_(std::move(qkv)),
        output_(layer),
        mlp_(layer) {}

  void bind(const weights::WeightsView& view) override {
    input_norm_.bind(view);
    qkv_.bind(view);
    output_.bind(view);
    mlp_.bind(view);
  }

  Tensor forward(const Tensor& hidden_TE, const Tensor& positions_T, Attention& attention) const override {
    const Tensors qkv = project_qkv(hidden_TE, positions_T);
    const Tensor attended_THK = attention.forward(layer_, qkv[0], qkv[1], qkv[2]);
    return mlp_.forward(output_.forward(hidden_TE, attended_THK), positions_T.size(0));
  }

 private:
  // q_THK, k_TGK, v_TGK; q and k rotated. Keeps hidden: the rotation's backward reads nothing of the forward.
  Tensors project_qkv(const Tensor& hidden_TE, const Tensor& positions_T) const {
    return differentiable({hidden_TE}, [&] {
      device::Ops::Qkv split =
          ops_.rope(qkv_.forward(input_norm_.forward(hidden_TE, positions_T.size(0))), positions_T, shape_);
      const auto backward = [this, hidden_TE, positions_T](const Tensors& d) -> Tensors {
        TANDEM_CHECK(d[0].defined() && d[1].defined() && d[2].defined(), "attention gave no gradient of q, k or v");
        const Tensor dqkv_TN = ops_.rope_backward(d[0], d[1], d[2], positions_T, shape_);
        const Tensor dnormed_TE = qkv_.backward(dqkv_TN, input_norm_.forward(hidden_TE, positions_T.size(0)), sink_);
        return {input_norm_.backward(dnormed_TE, hidden_TE, sink_)};
      };
      return Piece{{std::move(split.q_THK), std::move(split.k_TGK), std::move(split.v_TGK)}, backward};
    });
  }

  const device::Ops& ops_;
  const GradientSlot& sink_;
  const int64_t layer_;
  const device::Ops::QkvShape shape_;
  RmsNorm input_norm_;
  Linear qkv_;
  AttentionOutput output_;
  SwigluMlp mlp_;
};

}  // namespace

device::Ops::QkvShape Layer::qkv_shape() const {
  return {.num_heads = config.num_heads,
          .num_kv_heads = config.num_kv_heads,
          .head_dim = config.head_dim,
          .rope_theta = config.rope_theta,
          .eps = config.rms_norm_eps,
          .rope_factors = config.rope_factors};
}

Linear Layer::linear(const std::string& tensor, Cut cut, const std::string& bias) const {
  const std::string name = packed_name(tensor);
  Adapter adapter;
  if (const auto windows = adapters.find(name); windows != adapters.end()) {
    adapter = {.scale = config.lora->scale(), .windows = windows->second};
  }
  return {ops, stream, name, cut, bias.empty() ? "" : packed_name(bias), std::move(adapter)};
}

std::unique_ptr<Model> make_decoder(const ModelConfig& config, const weights::WeightsView& view, const device::Ops& ops,
                                    const TensorRanks& ranks, std::unique_ptr<Block> (*make_block)(const Layer&)) {
  return std::make_unique<Decoder>(config, view, ops, ranks, make_block);
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

AttentionOutput::AttentionOutput(const Layer& layer)
    : ops_(layer.ops), sink_(layer.sink), o_(layer.linear("o", Cut::kColumns)) {}

Tensor AttentionOutput::forward(const Tensor& hidden_TE, const Tensor& attended_THK) const {
  return differentiable({hidden_TE, attended_THK}, [&] {
    const Tensor attended_TN = attended_THK.view({attended_THK.size(0), -1});
    const auto backward = [this, attended_TN, shape = attended_THK.sizes().vec()](const Tensors& d) -> Tensors {
      return {d[0], o_.backward(d[0], attended_TN, sink_).view(shape)};
    };
    return Piece{{o_.forward_add(attended_TN, hidden_TE)}, backward};
  })[0];
}

SwigluMlp::SwigluMlp(const Layer& layer)
    : ops_(layer.ops),
      sink_(layer.sink),
      norm_(layer.ops, layer.stream, layer.packed_name("post_norm"), layer.config.rms_norm_eps),
      gate_up_(layer.linear("gate_up", Cut::kRows)),
      down_(layer.linear("down", Cut::kColumns)) {}

void SwigluMlp::bind(const weights::WeightsView& view) {
  norm_.bind(view);
  gate_up_.bind(view);
  down_.bind(view);
}

Tensor SwigluMlp::forward(const Tensor& middle_TE, int64_t num_tokens) const {
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

std::unique_ptr<Block> make_rotary_block(const Layer& layer, Linear qkv) {
  return std::make_unique<RotaryBlock>(layer, std::move(qkv));
}

}  // namespace tandem::model::decoder
