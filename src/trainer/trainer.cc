#include "trainer/trainer.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "base/size.h"
#include "device/communicator.h"
#include "memory/arena_allocator.h"
#include "rl/losses.h"
#include "rl/packing.h"
#include "trainer/adamw.h"
#include "trainer/adapter_dropout.h"
#include "trainer/balance_loss.h"
#include "trainer/distillation.h"
#include "trainer/gradient_sum.h"
#include "trainer/layer_loop.h"
#include "trainer/packed_batch.h"
#include "trainer/policy_loss.h"
#include "trainer/routing_load.h"
#include "trainer/sample_sums.h"
#include "trainer/score.h"
#include "trainer/token_scores.h"
#include "trainer/trainer_plan.h"

namespace tandem::trainer {
namespace {

using Samples = std::vector<const rl::Sample*>;

// The options have refused every value that this refuses.
void check_config(const TrainerConfig& config, const model::ModelConfig& model) {
  const AdamWConfig& adamw = config.adamw;
  const Schedule& schedule = config.schedule;
  TANDEM_CHECK(config.batch.max_tokens_per_gpu > 0 && config.batch.logprob_chunk_rows > 0,
               config.batch.max_tokens_per_gpu, config.batch.logprob_chunk_rows);
  TANDEM_CHECK(config.batch.micro_batches_multiple > 0, config.batch.micro_batches_multiple);
  TANDEM_CHECK(config.batch.gradient_sum_group > 0, config.batch.gradient_sum_group);
  TANDEM_CHECK(config.recompute_layers >= -1 && config.recompute_layers <= model.num_layers, config.recompute_layers);
  TANDEM_CHECK(config.gradient.clip_grad >= 0 && config.gradient.max_grad_norm_skip >= 0, config.gradient.clip_grad,
               config.gradient.max_grad_norm_skip);
  TANDEM_CHECK(adamw.beta1 >= 0 && adamw.beta1 < 1 && adamw.beta2 >= 0 && adamw.beta2 < 1, adamw.beta1, adamw.beta2);
  TANDEM_CHECK(adamw.eps > 0 && adamw.weight_decay >= 0, adamw.eps, adamw.weight_decay);
  TANDEM_CHECK(config.temperature > 0, config.temperature);
  const RouterConfig& router = config.router;
  TANDEM_CHECK(std::isfinite(router.aux_loss_coeff) && router.aux_loss_coeff >= 0, router.aux_loss_coeff);
  TANDEM_CHECK(!router.balances() || (model.experts && router.balancing_type == "seq_aux_loss"), router.balancing_type);
  TANDEM_CHECK(std::ranges::find(kDecayStyles, schedule.decay_style) != std::end(kDecayStyles), schedule.decay_style);
  TANDEM_CHECK(std::isfinite(schedule.max_lr) && schedule.min_lr >= 0 && schedule.min_lr <= schedule.max_lr,
               schedule.max_lr, schedule.min_lr);
  TANDEM_CHECK(schedule.decay_style == "constant" || schedule.decay_steps > schedule.warmup_steps, schedule.decay_steps,
               schedule.warmup_steps);
  rl::check_loss_config(config.loss);
}

Ranks in_groups(Ranks ranks, int64_t group_size) {
  ranks.group_size = group_size;
  return ranks;
}

class TrainerImpl final : public Trainer {
 public:
  TrainerImpl(const TrainerConfig& config, weights::WeightStore& store, model::Model& model,
              const std::optional<OptimizerOffload>& offload, const Ranks& ranks, TeacherOf teacher_of)
      : config_(config),
        head_{.temperature = config.temperature, .chunk_rows = config.batch.logprob_chunk_rows},
        ranks_(in_groups(ranks, config.batch.gradient_sum_group)),
        store_(store),
        model_(model),
        teacher_of_(std::move(teacher_of)),
        optimizer_(config.adamw, store, model.ops(), offload, ranks_),
        gradients_(store, optimizer_.gradients(), ranks.device, config.batch.gradient_sum_group) {
    model_.set_gradient_sink(&gradients_);
    if (model_.config().experts) load_.emplace(model_.config(), model_.ops(), config.router.logs_layers);
    if (config.router.balances()) model_.set_routing_loss(&balance_.emplace(model_.config(), model_.ops()));
  }
  ~TrainerImpl() override {
    model_.set_gradient_sink(nullptr);
    model_.set_routing_loss(nullptr);
  }

  Metrics step(const Samples& samples, RolloutLogprobs logprobs, std::optional<uint64_t> version) override {
    TANDEM_CHECK(!samples.empty(), "an optimizer step without samples");
    rl::LossNormaliser normaliser(config_.loss);
    const TokenAges ages(samples, logprobs, version);
    for (const rl::Sample* sample : samples) {
      const TrainedTokens trained = trained_tokens(config_.loss, *sample);
      normaliser.add(trained.mask, trained.num_rejected, sample->is_given);
    }
    const TokenChoices choices = choose(samples, ages);
    const StepLoss loss{.config = config_.loss,
                        .ages = ages,
                        .choices = choices,
                        .entropy_share = normaliser.entropy_share(num_low_entropy(choices)),
                        .has_dropout = model_.config().lora && model_.config().lora->dropout > 0.0};
    const std::vector<rl::MicroBatch> micro_batches = rl::split_into_micro_batches(samples, config_.batch.split());
    SampleSums sums(samples.size());
    std::vector<std::pair<const rl::MicroBatch*, PendingLoss>> pending;
    gradients_.begin_step(std::ssize(micro_batches));
    if (load_) load_->begin_step();
    if (balance_) balance_->begin_step(config_.router.aux_loss_coeff * normaliser.sample_share());
    for_each_round(samples, micro_batches, [&](const rl::MicroBatch& members, const PackedBatch& batch) {
      if (batch.num_targets() == 0) {
        begin_round(/*contributes=*/false);
        gradients_.receive_round();
      } else if (!ages.are_known(batch.samples)) {
        sums.set(members, train_on(batch, loss));
      } else if (const TokenScores scores = train_on_known(batch, loss); model_.ops().runs_ahead()) {
        pending.emplace_back(&members, PendingLoss(batch, scores, model_.ops()));
      } else {
        sums.set(members, policy_loss(loss, batch, scores).sums);
      }
    });
    gradients_.end_step();
    for (const auto& [members, scores] : pending) sums.set(*members, scores.sums(loss));
    pending.clear();
    Metrics metrics = normaliser.metrics(sums.total(micro_batches, ranks_));
    if (config_.loss.get_mismatch_metrics) {
      metrics["recomputed_logprob_abs_diff"] = recomputed_difference(samples, micro_batches, normaliser, loss);
    }
    if (load_) metrics.merge(load_->end_step(ranks_));
    if (balance_) add_balance(normaliser.num_trained_samples(), metrics);
    update_weights(normaliser.loss_scale(), metrics);
    return metrics;
  }

  void end_phase() override {
    gradients_.release();
    if (load_) load_->release();
    if (balance_) balance_->release();
  }

  OptimizerProgress progress() const override { return {.updates = optimizer_.num_steps(), .steps = num_steps_}; }
  std::vector<OptimizerTensor> state() const override { return optimizer_.state(); }
  void restore(const OptimizerProgress& progress) override {
    optimizer_.restore(progress.updates);
    num_steps_ = progress.steps;
  }

  at::Tensor gradient(const std::string& packed_name) const override {
    const at::NoGradGuard without_graph;
    return optimizer_.last_gradient(packed_name).mul(gradient_scale_);
  }

 private:
  // Micro-batch i belongs to rank (i mod D), and D neighbours are a round. Calls f(members, packed) once a round; in
  // the last one there may be none for this rank, which then has an empty one.
  template <typename F>
  void for_each_round(const Samples& samples, const std::vector<rl::MicroBatch>& micro_batches, F f) const {
    static const rl::MicroBatch kNone;
    const auto size = static_cast<size_t>(ranks_.size()), rank = static_cast<size_t>(ranks_.rank());
    for (size_t begin = 0; begin < micro_batches.size(); begin += size) {
      const rl::MicroBatch& members = begin + rank < micro_batches.size() ? micro_batches[begin + rank] : kNone;
      if (ranks_.is_alone() && abandons()) throw StepAbandoned();
      f(members, pack_micro_batch(samples, members, model_.config().vocab, model_.ops()));
    }
  }

  // Returns the tokens that the loss treats apart. They are chosen among all of the step, so what they are chosen by is
  // needed before the first backward: where the samples do not bring it, from a pass of its own.
  TokenChoices choose(const Samples& samples, const TokenAges& ages) const {
    const bool by_entropy = rl::chooses_by_entropy(config_.loss);
    if (!by_entropy && !rl::chooses_by_covariance(config_.loss)) return {};
    const auto is_known = [&](const rl::Sample* sample) { return !by_entropy && ages.is_known(*sample); };
    Samples unknown;
    std::ranges::copy_if(samples, std::back_inserter(unknown), std::not_fn(is_known));
    Scores scored, scores;
    if (!unknown.empty()) scored = score(model_, unknown, config_.batch, config_.temperature, ranks_);
    size_t next = 0;
    for (const rl::Sample* sample : samples) {
      const bool known = is_known(sample);
      scores.logprobs.push_back(known ? sample->rollout_logprobs : std::move(scored.logprobs[next]));
      scores.entropy.push_back(known ? std::vector<float>() : std::move(scored.entropy[next]));
      if (!known) ++next;
    }
    return choose_tokens(config_.loss, samples, scores,
                         {.seed = config_.seed, .step = static_cast<uint64_t>(num_steps_)});
  }

  // Returns whether a rank that holds a part of this model wants to abandon the step.
  bool abandons() const {
    if (!config_.abandon) return false;
    const memory::BypassArena messages;
    return device::any_of(ranks_.parts, config_.abandon());
  }

  // The ranks tell each other who contributes a gradient, and whether one of them wants to abandon the step.
  void begin_round(bool contributes) {
    if (ranks_.is_alone()) return gradients_.begin_round({contributes});
    const std::vector<double> mine = {contributes ? 1.0 : 0.0, abandons() ? 1.0 : 0.0};
    std::vector<bool> contribute;
    bool is_abandoned = false;
    {
      const memory::BypassArena messages;
      for (const std::vector<double>& said : device::all_gather_numbers(ranks_.host, mine)) {
        contribute.push_back(said[0] != 0.0);
        is_abandoned = is_abandoned || said[1] != 0.0;
      }
    }
    if (is_abandoned) throw StepAbandoned();
    gradients_.begin_round(std::move(contribute));
  }

  // Runs forward, loss and backward of one micro-batch and adds to the gradients, unnormalised. Returns the terms that
  // its samples add to the loss.
  std::vector<rl::LossSums> train_on(const PackedBatch& batch, const StepLoss& step) {
    std::optional<Distillation> distillation = run_teachers(batch);
    const AdapterDropoutScope dropout(model_, batch, dropout_seed());
    LayerLoop layers(model_, batch, num_recomputed_layers(batch.num_tokens()));
    const at::Tensor normed_TE = forward(layers);
    const memory::TagScope head(memory::Tag::kHead);
    TokenScores scores = score_targets(model_, batch, normed_TE, head_, /*keep_logits=*/true);
    LossTerms loss = policy_loss(step, batch, scores);
    if (!begin_backward(step, batch, loss)) {
      gradients_.receive_round();
      return std::move(loss.sums);
    }
    if (distillation) distillation->set_weights(loss.ddivergence_R);
    TokenScores known = scores;
    known.logits_RV.reset();
    at::Tensor dnormed_TE = score_targets_backward(model_, batch, normed_TE, head_, std::move(scores), loss.dlogprobs_R,
                                                   loss.dentropy_R, distillation ? &*distillation : nullptr);
    layers.backward(std::move(dnormed_TE), gradients_);
    if (!distillation) return std::move(loss.sums);
    known.divergence_R = distillation->divergence_R();  // known now, so the sums can have them
    return policy_loss(step, batch, known).sums;
  }

  // Does the same where the samples bring the log-probs that the forward will give. The scores serve the sums alone.
  // With dropout the forward gives others, and the loss's gradient is taken at those of the weights without it: the
  // ratio of a step on policy is 1.
  TokenScores train_on_known(const PackedBatch& batch, const StepLoss& step) {
    const memory::TagScope head(memory::Tag::kHead);
    const LossTerms loss = policy_loss_of_rollout(step, batch);
    const bool has_gradient = begin_backward(step, batch, loss);
    std::optional<Distillation> distillation = run_teachers(batch);
    if (distillation) distillation->set_weights(loss.ddivergence_R);
    const AdapterDropoutScope dropout(model_, batch, dropout_seed());
    LayerLoop layers(model_, batch, num_recomputed_layers(batch.num_tokens()));
    const at::Tensor normed_TE = forward(layers);
    if (!has_gradient) {
      gradients_.receive_round();
      return score_targets(model_, batch, normed_TE, head_, /*keep_logits=*/false);
    }
    ScoredGradient scored = score_targets_with_backward(model_, batch, normed_TE, head_, loss.dlogprobs_R,
                                                        loss.dentropy_R, distillation ? &*distillation : nullptr);
    layers.backward(std::move(scored.dnormed_TE), gradients_);
    return std::move(scored.scores);
  }

  DropoutSeed dropout_seed() const { return {.seed = config_.seed, .step = static_cast<uint64_t>(num_steps_)}; }

  // Runs the teachers of the batch, if the loss compares whole distributions with theirs.
  std::optional<Distillation> run_teachers(const PackedBatch& batch) const {
    std::optional<Distillation> distillation;
    if (config_.loss.opd.has_loss()) distillation.emplace(config_.loss.opd, teacher_of_, batch);
    return distillation;
  }

  // Begins the round of a batch whose loss is known. Returns whether the batch has a gradient: of that loss, or of the
  // one that balances experts.
  bool begin_backward(const StepLoss& step, const PackedBatch& batch, const LossTerms& loss) {
    bool balances = false;
    if (balance_) {
      std::vector<bool> counts;
      for (const rl::Sample* sample : batch.samples) {
        counts.push_back(std::ranges::count(trained_tokens(step.config, *sample).mask, 0) <
                         std::ssize(sample->loss_mask));
      }
      balances = balance_->begin_batch(batch, counts);
    }
    begin_round(balances || !loss.is_zero);
    return balances || !loss.is_zero;
  }

  // Counts the routes of a sparse model, which a block that is run again would count twice.
  at::Tensor forward(LayerLoop& layers) {
    const RoutingSinkScope counted(model_, load_ ? &*load_ : nullptr);
    return layers.forward();
  }

  int64_t num_recomputed_layers(int64_t num_tokens) const {
    if (config_.recompute_layers >= 0) return config_.recompute_layers;
    return recomputed_layers_for(model_.config(), num_tokens, config_.batch.activation_bytes);
  }

  // Returns |log-probs of a separate pass - the engine's|, reduced as the metrics are.
  double recomputed_difference(const Samples& samples, const std::vector<rl::MicroBatch>& micro_batches,
                               const rl::LossNormaliser& normaliser, const StepLoss& loss) const {
    SampleSums sums(samples.size());
    for_each_round(samples, micro_batches, [&](const rl::MicroBatch& members, const PackedBatch& batch) {
      if (batch.num_targets() == 0) return;
      sums.set(members, policy_loss(loss, batch, score_batch(model_, batch, head_)).sums);
    });
    return normaliser.metrics(sums.total(micro_batches, ranks_))["train_rollout_logprob_abs_diff"];
  }

  // Adds moe/aux_loss, the mean over samples and layers, and its term of the loss.
  void add_balance(int64_t num_samples, Metrics& metrics) {
    const double sum = balance_->end_step(ranks_);
    if (num_samples == 0) return;
    const double mean = sum / static_cast<double>(num_samples);
    metrics["moe/aux_loss"] = mean;
    metrics["loss"] += config_.router.aux_loss_coeff * static_cast<double>(model_.config().num_layers) * mean;
  }

  // Normalises, clips and applies the gradients; or leaves everything as it is, and reports it in the metrics.
  void update_weights(double loss_scale, Metrics& metrics) {
    const memory::TagScope update(memory::Tag::kStaging);
    gradient_scale_ = loss_scale;
    const double norm = optimizer_.gradient_norm() * loss_scale;
    const bool finite = std::isfinite(norm) && std::isfinite(metrics["loss"]);
    const bool skipped =
        !finite || (config_.gradient.max_grad_norm_skip > 0 && norm > config_.gradient.max_grad_norm_skip);
    // This is torch's clip_grad_norm_ and Megatron's: the 1e-6 keeps a zero norm harmless.
    const double clip =
        config_.gradient.clip_grad > 0 ? std::min(1.0, config_.gradient.clip_grad / (norm + 1e-6)) : 1.0;
    const double lr = learning_rate(config_.schedule, num_steps_);
    const bool is_zero = !skipped && norm == 0.0;
    if (!skipped && !(is_zero && config_.gradient.skip_zero_gradient)) {
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
  const HeadOptions head_;
  const Ranks ranks_;
  weights::WeightStore& store_;
  model::Model& model_;
  const TeacherOf teacher_of_;
  AdamW optimizer_;
  GradientSum gradients_;
  std::optional<RoutingLoad> load_;     // of a sparse model
  std::optional<BalanceLoss> balance_;  // of router.aux_loss_coeff
  base::Size num_steps_ = 0;            // number of steps, with those that changed nothing
  double gradient_scale_ = 0.0;
};

}  // namespace

std::unique_ptr<Trainer> make_trainer(const TrainerConfig& config, weights::WeightStore& store, model::Model& model,
                                      const std::optional<OptimizerOffload>& offload, const Ranks& ranks,
                                      TeacherOf teacher_of) {
  check_config(config, model.config());
  TANDEM_CHECK(!config.loss.opd.has_loss() || (teacher_of && model.config().shard.is_whole()),
               "a loss of whole distributions needs a teacher, and the whole model");
  return std::make_unique<TrainerImpl>(config, store, model, offload, ranks, std::move(teacher_of));
}

}  // namespace tandem::trainer
