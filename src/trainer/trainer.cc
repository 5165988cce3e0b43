#include "trainer/trainer.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "base/size.h"
#include "device/transfer.h"
#include "memory/arena_allocator.h"
#include "rl/losses.h"
#include "rl/packing.h"
#include "trainer/adamw.h"
#include "trainer/layer_loop.h"
#include "trainer/packed_batch.h"
#include "trainer/policy_loss.h"
#include "trainer/schedule.h"
#include "trainer/token_scores.h"
#include "trainer/trainer_plan.h"
#include "trainer/varlen_attention.h"

namespace tandem::trainer {
namespace {

using Samples = std::vector<const rl::Sample*>;

Schedule schedule_of(const TrainerConfig& config) {
  return {.decay_style = config.lr_decay_style,
          .max_lr = config.lr,
          .min_lr = config.min_lr,
          .warmup_steps = config.lr_warmup_steps,
          .decay_steps = config.lr_decay_steps};
}

void check_config(const TrainerConfig& config, const model::ModelConfig& model) {
  TANDEM_USER_CHECK(config.max_tokens_per_gpu > 0, "--max-tokens-per-gpu", config.max_tokens_per_gpu,
                    "must be positive");
  TANDEM_USER_CHECK(config.logprob_chunk_rows > 0, "--logprob-chunk-rows", config.logprob_chunk_rows,
                    "must be positive");
  TANDEM_USER_CHECK(config.recompute_layers >= -1 && config.recompute_layers <= model.num_layers,
                    "--recompute-num-layers", config.recompute_layers, "must lie between 0 and the model's",
                    model.num_layers, "layers, or be -1");
  TANDEM_USER_CHECK(config.clip_grad >= 0, "--clip-grad", config.clip_grad, "must be at least 0 (0: off)");
  TANDEM_USER_CHECK(config.max_grad_norm_skip >= 0, "--max-grad-norm-skip", config.max_grad_norm_skip,
                    "must be at least 0 (0: off)");
  TANDEM_USER_CHECK(config.weight_decay >= 0, "--weight-decay", config.weight_decay, "must be at least 0");
  const auto is_beta = [](double beta) { return beta >= 0 && beta < 1; };
  TANDEM_USER_CHECK(is_beta(config.adam_beta1), "--adam-beta1", config.adam_beta1, "must lie in [0, 1)");
  TANDEM_USER_CHECK(is_beta(config.adam_beta2), "--adam-beta2", config.adam_beta2, "must lie in [0, 1)");
  TANDEM_USER_CHECK(config.adam_eps > 0, "--adam-eps", config.adam_eps, "must be positive");
  TANDEM_CHECK(config.temperature > 0, "temperature", config.temperature);
  check_schedule(schedule_of(config));
  rl::check_loss_config(config.loss);
}

class TrainerImpl final : public Trainer {
 public:
  TrainerImpl(const TrainerConfig& config, weights::WeightStore& store, model::Model& model,
              const std::optional<OptimizerOffload>& offload)
      : config_(config),
        schedule_(schedule_of(config)),
        head_{.temperature = config.temperature, .chunk_rows = config.logprob_chunk_rows},
        store_(store),
        model_(model),
        optimizer_({.beta1 = config.adam_beta1,
                    .beta2 = config.adam_beta2,
                    .eps = config.adam_eps,
                    .weight_decay = config.weight_decay,
                    .weight_decay_all = config.weight_decay_all},
                   store, model.ops(), offload) {
    model_.set_gradient_sink([this](const std::string& packed_name) { return optimizer_.gradient(packed_name); });
  }
  ~TrainerImpl() override { model_.set_gradient_sink({}); }

  Metrics step(const Samples& samples) override {
    TANDEM_CHECK(!samples.empty(), "an optimizer step without samples");
    rl::LossNormaliser normaliser(config_.loss);
    for (const rl::Sample* sample : samples) normaliser.add(trained_tokens(*sample));
    rl::LossSums sums;
    optimizer_.begin_step();
    for_each_micro_batch(samples, [&](const PackedBatch& batch, const rl::MicroBatch&) {
      if (config_.abandon && config_.abandon()) throw StepAbandoned();
      train_on(batch, sums);
    });
    Metrics metrics = normaliser.metrics(sums);
    if (config_.loss.get_mismatch_metrics) {
      metrics["recomputed_logprob_abs_diff"] = recomputed_difference(samples, normaliser);
    }
    update_weights(normaliser.loss_scale(), metrics);
    return metrics;
  }

  void end_phase() override { optimizer_.release_gradients(); }

  Scores score(const model::Model& model, const Samples& samples) override {
    Scores scores{.logprobs = std::vector<std::vector<float>>(samples.size()),
                  .entropy = std::vector<std::vector<float>>(samples.size())};
    for_each_micro_batch(samples, [&](const PackedBatch& batch, const rl::MicroBatch& members) {
      const TokenScores tokens = score_batch(model, batch);
      const at::Tensor logprobs_R = device::to_host(tokens.logprobs_R), entropy_R = device::to_host(tokens.entropy_R);
      for (size_t s = 0; s < members.samples.size(); ++s) {
        scores.logprobs[members.samples[s]] = slice(logprobs_R, batch, s);
        scores.entropy[members.samples[s]] = slice(entropy_R, batch, s);
      }
    });
    return scores;
  }

  OptimizerProgress progress() const override { return {.updates = optimizer_.num_steps(), .steps = num_steps_}; }
  std::map<std::string, at::Tensor> state() const override { return optimizer_.state(); }
  void restore(const OptimizerProgress& progress) override {
    optimizer_.restore(progress.updates);
    num_steps_ = progress.steps;
  }

  at::Tensor gradient(const std::string& packed_name) const override {
    const at::NoGradGuard without_graph;
    return optimizer_.last_gradient(packed_name).mul(gradient_scale_);
  }

 private:
  template <typename F>
  void for_each_micro_batch(const Samples& samples, F f) const {
    for (const rl::MicroBatch& members : rl::split_into_micro_batches(samples, config_.max_tokens_per_gpu)) {
      Samples chosen;
      for (const int64_t index : members.samples) chosen.push_back(samples[static_cast<size_t>(index)]);
      f(packed(chosen), members);
    }
  }

  PackedBatch packed(const Samples& samples) const {
    const memory::TagScope batch(memory::Tag::kBatch);
    return pack_batch(samples, model_.ops());
  }

  static std::vector<float> slice(const at::Tensor& values_R, const PackedBatch& batch, size_t sample) {
    const int64_t begin = batch.target_offsets[sample], end = batch.target_offsets[sample + 1];
    if (begin == end) return {};
    const float* values = values_R.const_data_ptr<float>();
    return {values + begin, values + end};
  }

  // Forward, loss and backward of one micro-batch: adds to the gradients and to `sums`, both unnormalised.
  void train_on(const PackedBatch& batch, rl::LossSums& sums) {
    if (batch.num_targets() == 0) return;
    LayerLoop layers(model_, batch, num_recomputed_layers(batch.num_tokens()));
    const at::Tensor normed_TE = layers.forward();
    const memory::TagScope head(memory::Tag::kHead);
    TokenScores scores = score_targets(model_, batch, normed_TE, head_, /*keep_logits=*/true);
    const LossTerms loss = policy_loss(config_.loss, batch, scores, sums);
    if (loss.is_zero) return;
    layers.backward(
        score_targets_backward(model_, batch, normed_TE, head_, std::move(scores), loss.dlogprobs_R, loss.dentropy_R));
  }

  int64_t num_recomputed_layers(int64_t num_tokens) const {
    if (config_.recompute_layers >= 0) return config_.recompute_layers;
    const model::Dtype dtype = store_.dtype() == at::kFloat ? model::Dtype::kFloat32 : model::Dtype::kBFloat16;
    return recomputed_layers_for(model_.config(), dtype, num_tokens, config_.activation_bytes);
  }

  // A forward without graph.
  TokenScores score_batch(const model::Model& model, const PackedBatch& batch) const {
    if (batch.num_targets() == 0) return {};
    const memory::TagScope blocks(memory::Tag::kLayerWorkspace);
    VarlenAttention attention(model.ops(), batch);
    const at::Tensor normed_TE = model::forward_hidden(model, batch.ids_T, batch.positions_T, attention);
    const memory::TagScope head(memory::Tag::kHead);
    return score_targets(model, batch, normed_TE, head_, /*keep_logits=*/false);
  }

  // |log-probs of a pass of their own - the engine's|, reduced as the metrics are.
  double recomputed_difference(const Samples& samples, const rl::LossNormaliser& normaliser) const {
    rl::LossSums sums;
    for_each_micro_batch(samples, [&](const PackedBatch& batch, const rl::MicroBatch&) {
      if (batch.num_targets() > 0) policy_loss(config_.loss, batch, score_batch(model_, batch), sums);
    });
    return normaliser.metrics(sums)["train_rollout_logprob_abs_diff"];
  }

  // Normalises, clips and applies the gradients; or leaves everything as it is, and says so.
  void update_weights(double loss_scale, Metrics& metrics) {
    const memory::TagScope update(memory::Tag::kStaging);
    gradient_scale_ = loss_scale;
    const double norm = optimizer_.gradient_norm() * loss_scale;
    const bool finite = std::isfinite(norm) && std::isfinite(metrics["loss"]);
    const bool skipped = !finite || (config_.max_grad_norm_skip > 0 && norm > config_.max_grad_norm_skip);
    // torch's clip_grad_norm_ and Megatron's: the 1e-6 keeps a zero norm harmless.
    const double clip = config_.clip_grad > 0 ? std::min(1.0, config_.clip_grad / (norm + 1e-6)) : 1.0;
    const double lr = learning_rate(schedule_, num_steps_);
    const bool is_zero = !skipped && norm == 0.0;
    if (!skipped && !(is_zero && config_.skip_zero_gradient)) {
      optimizer_.step(lr, loss_scale * clip);
      store_.publish();
    }
    ++num_steps_;
    metrics["grad_norm"] = norm;
    metrics["grad_clipped"] = clip < 1.0 ? 1.0 : 0.0;
    metrics["lr"] = lr;
    metrics["zero_gradient"] = is_zero ? 1.0 : 0.0;
    metrics["step_skipped"] = skipped ? 1.0 : 0.0;
  }

  const TrainerConfig config_;
  const Schedule schedule_;
  const HeadOptions head_;
  weights::WeightStore& store_;
  model::Model& model_;
  AdamW optimizer_;
  base::Size num_steps_ = 0;  // with those that changed nothing
  double gradient_scale_ = 0.0;
};

}  // namespace

std::unique_ptr<Trainer> make_trainer(const TrainerConfig& config, weights::WeightStore& store, model::Model& model,
                                      const std::optional<OptimizerOffload>& offload) {
  check_config(config, model.config());
  return std::make_unique<TrainerImpl>(config, store, model, offload);
}

}  // namespace tandem::trainer
