#include "plan/memory_estimate.h"

#include <algorithm>

#include "device/backends.h"
#include "device/thread_pool.h"
#include "model/model_plan.h"
#include "model/registry.h"
#include "plan/kv_size.h"
#include "rollout/rollout_plan.h"
#include "weights/safetensors.h"
#include "weights/weights_plan.h"

namespace tandem::plan {

namespace {

using base::Size;
using memory::Phase;
using memory::Tag;
using memory::TagBytes;
using weights::kStagingBytes;  // between files and memory

// `tandem plan` need not be told how large a rollout is. It then has as many samples as decode together.
Size samples_of_rollout(const config::TrainConfig& config) {
  return config.rollout_batch_size > 0 ? config.samples_per_rollout() : config.rollout.limits.max_running;
}

Size samples_of_step(const config::TrainConfig& config) {
  return std::max<Size>(config.rollout_batch_size > 0 ? config.samples_per_step()
                                                      : config.global_batch_size.value_or(samples_of_rollout(config)),
                        1);
}

// The bytes of the weights in the parts of the model that other ranks hold.
Size bytes_of_other_parts(const model::ModelConfig& part) {
  Size bytes = 0;
  for (int rank = 0; rank < part.shard.size; ++rank) {
    if (rank == part.shard.rank) continue;
    const model::ModelConfig other = model::shard_of(model::whole_of(part), {.rank = rank, .size = part.shard.size});
    bytes += weights::store_bytes(model::build_layout(other), model::dtype_bytes(part.dtype));
  }
  return bytes;
}

// The bytes of a second copy of the trained weights, in a process that samples while others train; 0 if it has none.
// On the CPU new weights always wait in memory, so they always take these bytes. A GPU has the copy if it takes little
// of the memory that keys and values could have: it makes the pause for new weights a few hundredths of a second
// shorter. An engine of several ranks has none, because all ranks but the first take no messages while they sample.
Size bytes_of_second_copy(const model::ModelConfig& model, Size trained_bytes, const device::Footprint& footprint,
                          const DeviceMemory& device) {
  constexpr int64_t kMostShare = 8;  // it takes at most an eighth of the device
  const bool is_small = device.bytes == 0 || kMostShare * trained_bytes <= device.bytes;
  const bool has_it = footprint.shares_host_memory || (footprint.maps_memory && is_small);
  return model.shard.is_whole() && has_it ? trained_bytes : Size(0);
}

}  // namespace

Lengths lengths(const config::TrainConfig& config, const model::ModelConfig& model, const PlanInputs& facts) {
  Lengths result;
  const Size limit = config.rollout.max_context_len > 0 ? config.rollout.max_context_len : model.max_positions;
  result.is_assumed = !facts.longest_prompt && config.data.max_prompt_len == 0;
  if (facts.longest_prompt) {
    result.longest_prompt = *facts.longest_prompt;
  } else if (config.data.max_prompt_len > 0) {
    result.longest_prompt = std::min<Size>(config.data.max_prompt_len, std::max<Size>(limit - 1, 1));
  } else {
    result.longest_prompt = std::max<Size>(limit - config.rollout.response_len(), 1);
  }
  result.context = choose_context_tokens(config.rollout, model, result.longest_prompt, facts.longest_place);
  result.longest_response =
      std::min<Size>(config.rollout.response_len(), result.context - facts.shortest_prompt.value_or(1));
  return result;
}

Size samples_at_once(const config::TrainConfig& config) {
  return config.rollout_batch_size > 0 ? config.samples_at_once() : config.rollout.limits.max_running;
}

MemoryEstimate::MemoryEstimate(const config::TrainConfig& config, const model::ModelConfig& model,
                               const ModelLayouts& layouts, const Lengths& length, Size engine_context, Size sequences,
                               int64_t data_ranks, const PlanInputs& facts, const DeviceMemory& device)
    : config_(config),
      model_(model),
      layouts_(layouts),
      trained_model_(model_in_training(config, model)),
      role_(facts.role),
      reference_(facts.reference),
      resumes_reference_(facts.resumes_reference),
      teachers_(facts.teachers),
      reward_model_(facts.reward_model),
      data_ranks_(data_ranks),
      footprint_(device::footprint_of(config.model.device)),
      engine_context_(engine_context),
      sequences_(sequences) {
  trainer::StepShape step = {.num_samples = samples_of_step(config),
                             .group_size = config.rollout.n_samples_per_prompt,
                             .prompt_tokens = length.longest_prompt,
                             .response_tokens = length.longest_response,
                             .context_tokens = length.context,
                             .further_sequences = config.custom_generate.further_sequences()};
  batch_ = trainer::largest_micro_batch(step, config.optimizer.batch.max_tokens_per_gpu);
  const bool takes_several = trainer::may_take_several_micro_batches(step, config.optimizer.batch.split());
  step.num_samples = samples_of_rollout(config);
  scored_batch_ = trainer::largest_micro_batch(step, config.optimizer.batch.max_tokens_per_gpu);
  if (reward_model_) {
    // Each conversation has one target and shares no prompt (trainer/sequence_scores.h).
    const trainer::StepShape conversations = {.num_samples = std::max(samples_of_rollout(config), sequences),
                                              .group_size = 1,
                                              .prompt_tokens = reward_model_tokens(*reward_model_, engine_context),
                                              .response_tokens = 1};
    judged_batch_ = trainer::largest_micro_batch(conversations, config.optimizer.batch.max_tokens_per_gpu);
  }
  recomputed_layers_ = config.optimizer.recompute_layers(model.num_layers);
  if (recomputed_layers_ < 0) {
    recomputed_layers_ =
        trainer::recomputed_layers_for(trained_model_, batch_.rows, config.optimizer.batch.activation_bytes);
  }
  const Size element = model::dtype_bytes(model.dtype);
  const Size weights = weights::store_bytes(layouts.weights, element);
  const Size trained = weights::store_bytes(layouts.trained, element);
  const trainer::OptimizerBytes optimizer = trainer::optimizer_bytes(layouts.trained, model.dtype, data_ranks);
  standing_[Tag::kWeights] = model.lora ? weights + trained : weights;
  if (role_ == Role::kRollout && config.async.is_live(config.colocate)) {
    // New weights of all ranks of the engine wait on its first one until its samplers pause.
    waiting_bytes_ = trained * model.shard.size;
    second_copy_bytes_ = bytes_of_second_copy(model, trained, footprint_, device);
    // It maps them or gets them in pieces, so on the host the second copy is what would wait.
    standing_[Tag::kWeights] += footprint_.shares_host_memory ? waiting_bytes_ : second_copy_bytes_;
  }
  const bool has_data_ranks = data_ranks > 1 && role_ != Role::kRollout;
  const int64_t communicators = (has_data_ranks ? 1 : 0) + (model.shard.is_whole() ? 0 : 1);
  standing_[Tag::kOverhead] = footprint_.context_bytes + footprint_.library_bytes +
                              communicators * footprint_.communicator_bytes +
                              (footprint_.shares_host_memory ? kProcessBytes : 0);
  if (role_ == Role::kRollout) return;  // the trainer's weights, which it maps to copy them, take addresses alone
  if (config.loss.needs_reference()) reference_bytes_ = weights;
  // The model without its adapter is the reference; one that follows the policy has an adapter of its own.
  if (config.loss.needs_reference() && is_reference_adapter()) {
    reference_bytes_ = reference_has_adapter() ? trained : Size(0);
  }
  // A reference that is an average keeps it in float32 on the host, unless its own weights are that.
  const bool is_float_on_host = element == base::kFloatBytes && (footprint_.shares_host_memory || offloads_reference());
  if (config.loss.ref_update_interval && config.loss.ref_mixup_alpha < 1.0 && !is_float_on_host) {
    average_bytes_ =
        weights::store_bytes(is_reference_adapter() ? layouts.trained : layouts.weights, base::kFloatBytes);
  }
  gradient_bytes_ = optimizer.gradient + trainer::gradient_scratch_bytes(layouts.trained, data_ranks, takes_several,
                                                                         config.optimizer.batch.gradient_sum_group);
  // Offloaded tensors lie in the host's memory, which may be the device's too.
  const bool is_host = footprint_.shares_host_memory;
  for (const model::ModelConfig& teacher : teachers_) {
    teacher_bytes_.push_back(weights::store_bytes(model::build_layout(teacher), element));
    if (offloads_teacher()) pinned_bytes_ += teacher_bytes_.back();
    if (!offloads_teacher() || is_host) standing_[Tag::kReference] += teacher_bytes_.back();
  }
  if (reward_model_) {
    reward_model_bytes_ = weights::store_bytes(model::build_layout(*reward_model_), element);
    if (offloads_reward_model()) pinned_bytes_ += reward_model_bytes_;
    if (!offloads_reward_model() || is_host) standing_[Tag::kReference] += reward_model_bytes_;
  }
  if (facts.gives_weights && is_host) standing_[Tag::kWeights] += bytes_of_other_parts(model);
  if (offloads_reference()) pinned_bytes_ += reference_bytes_;
  if (!offloads_reference() || is_host) standing_[Tag::kReference] += reference_bytes_;
  if (is_host) standing_[Tag::kReference] += average_bytes_;
  if (offloads_optimizer()) pinned_bytes_ += optimizer.master + optimizer.moments;
  if (!offloads_optimizer() || is_host) {
    standing_[Tag::kMaster] = optimizer.master;
    standing_[Tag::kMoments] = optimizer.moments;
  }
}

TagBytes MemoryEstimate::lasting() const {
  TagBytes lasting = standing_;
  lasting[Tag::kOverhead] += kernel_bytes();
  lasting[Tag::kStaging] = kStagingBytes;  // a checkpoint is written beside a rollout
  return lasting;
}

memory::MemoryPlan MemoryEstimate::plan(Size kv_bytes) const {
  memory::MemoryPlan plan;
  TagBytes load = standing_;
  load[Tag::kStaging] = kStagingBytes;
  plan.add(Phase::kLoad, "everything that lasts", load);

  TagBytes rollout = lasting();
  if (role_ == Role::kTrainer) {
    plan.add(Phase::kRollout, "others sample", rollout);
  } else {
    add_rollout(rollout, kv_bytes, plan);
  }
  TagBytes train = lasting();
  train[Tag::kStaging] = 0;
  if (role_ == Role::kRollout) {
    plan.add(Phase::kTrain, "others train", train);
  } else {
    add_training(train, plan);
  }
  return plan;
}

void MemoryEstimate::add_rollout(TagBytes rollout, Size kv_bytes, memory::MemoryPlan& plan) const {
  rollout[Tag::kKv] = kv_bytes;
  rollout::add_engine_peaks(
      model_,
      {.max_batch_tokens = std::min<Size>(config_.rollout.limits.max_batch_tokens, sequences_ * engine_context_),
       .max_running = config_.rollout.limits.most_decode_rows(sequences_),
       .recorded_rows = config_.rollout.limits.most_recorded_rows(),
       .largest_group = config_.rollout.n_samples_per_prompt,
       .context_tokens = engine_context_,
       .sharing_ranks =
           config_.mesh.rollout_expert_parallel && model_.experts ? Size(config_.mesh.num_ranks()) : Size(1),
       .shared_rows = rollout::most_shared_rows(config_.rollout.limits),
       .footprint = footprint_},
      rollout, plan);
}

void MemoryEstimate::add_training(TagBytes train, memory::MemoryPlan& plan) const {
  train[Tag::kGradients] = gradient_bytes_;
  trainer::TrainShape scores = train_shape();
  if (config_.loss.loss.get_mismatch_metrics) trainer::add_scoring_peaks(trained_model_, scores, train, plan);
  TagBytes scoring = train;
  scoring[Tag::kGradients] = 0;  // it comes before the first of them
  if (reward_model_) add_judging(scoring, plan);
  scores.batch = scored_batch_;
  if (config_.loss.loss.old_logprobs == "proximal") {
    trainer::add_scoring_peaks(trained_model_, scores, scoring, plan);
  }
  if (config_.loss.needs_reference()) {
    if (offloads_reference()) scoring[Tag::kReference] += memory::allocated_bytes(reference_bytes_);
    model::ModelConfig reference = reference_ ? model_in_training(config_, *reference_) : trained_model_;
    if (!reference_has_adapter()) reference.lora.reset();
    trainer::add_scoring_peaks(reference, scores, scoring, plan);
  }
  for (size_t i = 0; i < teachers_.size(); ++i) add_teacher_scores(i, scores, scoring, plan);
  if (config_.loss.loss.opd.has_loss()) add_distillation(train, plan);
  trainer::add_train_peaks(trained_model_, train_shape(), train, plan);
}

void MemoryEstimate::add_judging(TagBytes judging, memory::MemoryPlan& plan) const {
  if (offloads_reward_model()) judging[Tag::kReference] += memory::allocated_bytes(reward_model_bytes_);
  trainer::TrainShape shape = train_shape();
  shape.batch = judged_batch_;
  trainer::add_scoring_peaks(model_in_training(config_, *reward_model_), shape, judging, plan);
}

void MemoryEstimate::add_teacher_scores(size_t i, const trainer::TrainShape& scores, TagBytes scoring,
                                        memory::MemoryPlan& plan) const {
  scoring[Tag::kReference] = standing_[Tag::kReference];
  if (offloads_teacher()) scoring[Tag::kReference] += memory::allocated_bytes(teacher_bytes_[i]);
  trainer::add_scoring_peaks(model_in_training(config_, teachers_[i]), scores, scoring, plan);
}

void MemoryEstimate::add_distillation(TagBytes& train, memory::MemoryPlan& plan) const {
  for (size_t i = 0; i < teachers_.size(); ++i) {
    if (offloads_teacher()) train[Tag::kReference] += memory::allocated_bytes(teacher_bytes_[i]);
  }
  for (const model::ModelConfig& teacher : teachers_) {
    trainer::add_scoring_peaks(teacher, train_shape(), train, plan);
    train[Tag::kBlockScratch] += trainer::teacher_rows_bytes(teacher, batch_);
  }
}

trainer::TrainShape MemoryEstimate::train_shape() const {
  return {.batch = batch_,
          .recomputed_layers = recomputed_layers_,
          .logprob_chunk_rows = config_.optimizer.batch.logprob_chunk_rows,
          .has_entropy_term = config_.loss.loss.entropy_coef != 0.0,
          .balances = config_.optimizer.router.balances(),
          .footprint = footprint_,
          .trained = layouts_.trained,
          .offloads_optimizer = offloads_optimizer(),
          .data_ranks = data_ranks_,
          .teachers = config_.loss.loss.opd.has_loss() ? teachers_ : std::span<const model::ModelConfig>()};
}

Size MemoryEstimate::kernel_bytes() const {
  device::KeptLoad load;
  const bool samples = role_ != Role::kTrainer, trains = role_ != Role::kRollout;
  load.rows =
      std::max(trains ? batch_.rows : Size(0), samples ? Size(config_.rollout.limits.max_batch_tokens) : Size(0));
  load.logits_rows = trains ? std::min<Size>(config_.optimizer.batch.logprob_chunk_rows, batch_.targets) : Size(0);
  load.context = std::max(trains ? batch_.context_tokens : Size(0), samples ? engine_context_ : Size(0));
  load.trains = trains;
  const int64_t threads = config_.model.num_threads > 0 ? config_.model.num_threads : device::usable_cores();
  Size kept = model::ops_plan(footprint_, model_, model_.dtype)->kept(load, threads);
  for (const model::ModelConfig& teacher : trains ? teachers_ : std::span<const model::ModelConfig>()) {
    kept = std::max(kept, Size(model::ops_plan(footprint_, teacher, teacher.dtype)->kept(load, threads)));
  }
  if (trains && reward_model_) {
    load.rows = std::max(load.rows, judged_batch_.rows);
    load.context = std::max(load.context, judged_batch_.context_tokens);
    kept = std::max(kept, Size(model::ops_plan(footprint_, *reward_model_, reward_model_->dtype)->kept(load, threads)));
  }
  return kept;
}

}  // namespace tandem::plan
