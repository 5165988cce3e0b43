#include "model/decoder/forward.h"

#include <ATen/core/Tensor.h>
#include <c10/util/BFloat16.h>

#include <cmath>
#include <deque>
#include <vector>

#include "base/check.h"
#include "model/autograd.h"
#include "model/decoder/block.h"

namespace tandem::model::decoder {
namespace {

using at::Tensor;

// Returns the number in that dtype.
double rounded(double number, at::ScalarType dtype) {
  return dtype == at::kBFloat16 ? static_cast<float>(c10::BFloat16(static_cast<float>(number)))
                                : static_cast<float>(number);
}

class Decoder final : public Model {
 public:
  Decoder(const ModelConfig& config, const Family& family, const weights::WeightsView& view, const device::Ops& ops,
          const TensorRanks& ranks)
      : config_(config),
        ops_(ops),
        ranks_(ranks),
        stream_(ranks_, config.shard.cuts_rows()),
        head_input_(ranks_, /*is_cut=*/false),
        vocab_rows_(vocab_rows(config)),
        vocab_widths_(vocab_row_counts(config)),
        adapters_(adapter_windows(config)),
        scales_embeddings_(family.scales_embeddings),
        final_norm_(ops, stream_, "final_norm", {config.rms_norm_eps, family.norm_offset}),
        head_(ops, head_input_, config.tied_embeddings ? "embed" : "head", Cut::kRows) {
    TANDEM_CHECK_EQ(ranks_.size(), config.shard.size);
    TANDEM_CHECK_EQ(ranks_.rank(), config.shard.rank);
    for (int64_t layer = 0; layer < config.num_layers; ++layer) {
      blocks_.emplace_back(Layer{.config = config_,
                                 .family = family,
                                 .ops = ops_,
                                 .stream = stream_,
                                 .sink = sink_,
                                 .routing_sink = routing_sink_,
                                 .routing_loss = routing_loss_,
                                 .expert_exchange = expert_exchange_,
                                 .adapters = adapters_,
                                 .adapter_dropout = adapter_dropout_,
                                 .index = layer});
    }
    set_weights(view);
  }

  const ModelConfig& config() const override { return config_; }
  const device::Ops& ops() const override { return ops_; }
  at::ScalarType dtype() const override { return embed_VE_.scalar_type(); }

  // One rank has the row of an id, the others add zeros.
  Tensor embed(const Tensor& ids_T) const override {
    if (ranks_.is_alone()) {
      Tensor embedded_TE = ops_.embedding(embed_VE_, ids_T);
      return embedding_scale_ == 1.0 ? embedded_TE : embedded_TE.mul_(embedding_scale_);
    }
    return stream_.sum(ops_.embedding_part(embed_VE_, vocab_rows_.begin, ids_T), /*residual=*/{}, dtype());
  }
  Tensor block(int64_t layer, const Tensor& hidden_TE, const Tensor& positions_T, Attention& attention) const override {
    return blocks_[static_cast<size_t>(layer)].forward(hidden_TE, positions_T, attention);
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
    // The other ranks wait for these rows, so they come first, whatever this rank wants.
    const Tensor dhidden_TE = stream_.whole(dhidden, ids_T.size(0));
    const GradientTarget dembed_VE = sink_("embed");
    if (!dembed_VE.is_wanted()) return;
    if (embedding_scale_ != 1.0) dhidden_TE.mul_(embedding_scale_);
    if (ranks_.is_alone()) return ops_.embedding_backward(dhidden_TE, ids_T, dembed_VE.accumulator());
    ops_.embedding_part_backward(dhidden_TE, vocab_rows_.begin, ids_T, dembed_VE.accumulator());
  }
  Tensor head_backward(const Tensor& dlogits_RV, const Tensor& hidden_RE) const override {
    return head_.backward(dlogits_RV, hidden_RE, sink_);
  }

  void set_weights(const weights::WeightsView& view) override {
    for (Block& block : blocks_) block.bind(view);
    embed_VE_ = view["embed"];
    if (scales_embeddings_) embedding_scale_ = rounded(std::sqrt(static_cast<double>(config_.hidden)), dtype());
    final_norm_.bind(view);
    head_.bind(view);
    weight_version_ = view.version();
  }
  uint64_t weight_version() const override { return weight_version_; }
  void set_gradient_sink(GradientSink* sink) override { sink_.set(sink); }
  void set_routing_sink(RoutingSink* sink) override { routing_sink_ = sink; }
  void set_routing_loss(RoutingLoss* loss) override { routing_loss_ = loss; }
  void set_adapter_dropout(const AdapterDropout* dropout) override {
    TANDEM_CHECK(dropout == nullptr || !adapts_experts(config_), "the adapters of experts have no dropout");
    adapter_dropout_ = dropout;
  }
  void share_experts(device::ExpertExchange* exchange) override { expert_exchange_ = exchange; }

 private:
  const ModelConfig config_;
  const device::Ops& ops_;
  const TensorRanks ranks_;
  const ResidualStream stream_, head_input_;  // each rank has all rows that the head reads
  const VocabRows vocab_rows_;                // those of the own part
  const std::vector<int64_t> vocab_widths_;   // how many each rank has
  const AdapterWindows adapters_;
  GradientSlot sink_;
  RoutingSink* routing_sink_ = nullptr;
  RoutingLoss* routing_loss_ = nullptr;
  device::ExpertExchange* expert_exchange_ = nullptr;
  const AdapterDropout* adapter_dropout_ = nullptr;
  const bool scales_embeddings_;
  double embedding_scale_ = 1.0;
  Tensor embed_VE_;
  std::deque<Block> blocks_;  // a deque, because blocks do not move
  RmsNorm final_norm_;
  Linear head_;
  uint64_t weight_version_ = 0;
};

}  // namespace

std::unique_ptr<Model> make_decoder(const ModelConfig& config, const Family& family, const weights::WeightsView& view,
                                    const device::Ops& ops, const TensorRanks& ranks) {
  return std::make_unique<Decoder>(config, family, view, ops, ranks);
}

}  // namespace tandem::model::decoder
