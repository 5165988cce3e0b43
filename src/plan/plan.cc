#include "plan/plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <span>
#include <vector>

#include "base/check.h"
#include "base/machine_memory.h"
#include "base/size.h"
#include "device/backends.h"
#include "device/block.h"
#include "device/thread_pool.h"
#include "model/lora.h"
#include "model/model_plan.h"
#include "model/registry.h"
#include "plan/kv_size.h"
#include "plan/plan_changes.h"
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

// The program, LibTorch, the text worker and the graders take so much. 0.10 GiB is what bench/results/memory.md leaves
// for `tandem generate` once weights and touched keys and values are taken off; 0.06 GiB for two graders is a guess.
constexpr int64_t kProcessBytes = int64_t{160} << 20;

struct Lengths {
  Size longest_prompt = 0, context = 0;
  Size longest_response = 0;  // behind the shortest prompt
  bool is_assumed = false;
};

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

// `tandem plan` need not be told how large a rollout is. It then has as many samples as decode together.
Size samples_of_rollout(const config::TrainConfig& config) {
  return config.rollout_batch_size > 0 ? config.samples_per_rollout() : config.rollout.limits.max_running;
}

Size samples_at_once(const config::TrainConfig& config) {
  return config.rollout_batch_size > 0 ? config.samples_at_once() : config.rollout.limits.max_running;
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

// This adds up everything of a run but its keys and values, which plan() is told.
class MemoryEstimate {
 public:
  // The engine is asked for `sequences` at once, the longest of `engine_context` tokens.
  MemoryEstimate(const config::TrainConfig& config, const model::ModelConfig& model, const ModelLayouts& layouts,
                 const Lengths& length, Size engine_context, Size sequences, int64_t data_ranks,
                 const PlanInputs& facts, const DeviceMemory& device)
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
    const bool is_float_on_host =
        element == base::kFloatBytes && (footprint_.shares_host_memory || offloads_reference());
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

  const trainer::MicroBatchShape& batch() const { return batch_; }
  Size recomputed_layers() const { return recomputed_layers_; }
  const device::Footprint& footprint() const { return footprint_; }
  Size pinned_bytes() const { return pinned_bytes_; }
  Size waiting_bytes() const { return waiting_bytes_; }
  Size second_copy_bytes() const { return second_copy_bytes_; }
  // Returns what the average of a reference takes of the host, beside what is on the device.
  Size average_bytes() const { return average_bytes_; }

  // These bytes last through rollouts and training, beside the arena.
  TagBytes lasting() const {
    TagBytes lasting = standing_;
    lasting[Tag::kOverhead] += kernel_bytes();
    lasting[Tag::kStaging] = kStagingBytes;  // a checkpoint is written beside a rollout
    return lasting;
  }

  memory::MemoryPlan plan(Size kv_bytes) const {
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

 private:
  void add_rollout(TagBytes rollout, Size kv_bytes, memory::MemoryPlan& plan) const {
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

  void add_training(TagBytes train, memory::MemoryPlan& plan) const {
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

  // The reward model scores a rollout, or what an evaluation has sampled.
  void add_judging(TagBytes judging, memory::MemoryPlan& plan) const {
    if (offloads_reward_model()) judging[Tag::kReference] += memory::allocated_bytes(reward_model_bytes_);
    trainer::TrainShape shape = train_shape();
    shape.batch = judged_batch_;
    trainer::add_scoring_peaks(model_in_training(config_, *reward_model_), shape, judging, plan);
  }

  // Teachers score a rollout one after the other.
  void add_teacher_scores(size_t i, const trainer::TrainShape& scores, TagBytes scoring,
                          memory::MemoryPlan& plan) const {
    scoring[Tag::kReference] = standing_[Tag::kReference];
    if (offloads_teacher()) scoring[Tag::kReference] += memory::allocated_bytes(teacher_bytes_[i]);
    trainer::add_scoring_peaks(model_in_training(config_, teachers_[i]), scores, scoring, plan);
  }

  // For the loss of the whole distributions all teachers are on the device while steps are taken. They run over a
  // micro-batch before the trained model does, and what they give stays until its logits are differentiated.
  void add_distillation(TagBytes& train, memory::MemoryPlan& plan) const {
    for (size_t i = 0; i < teachers_.size(); ++i) {
      if (offloads_teacher()) train[Tag::kReference] += memory::allocated_bytes(teacher_bytes_[i]);
    }
    for (const model::ModelConfig& teacher : teachers_) {
      trainer::add_scoring_peaks(teacher, train_shape(), train, plan);
      train[Tag::kBlockScratch] += trainer::teacher_rows_bytes(teacher, batch_);
    }
  }

  bool is_reference_adapter() const { return model_.lora && config_.loss.ref_load.empty(); }
  // Nothing but a copy of the policy has one.
  bool reference_has_adapter() const {
    return is_reference_adapter() && (config_.loss.ref_update_interval || resumes_reference_);
  }
  bool offloads_reference() const { return config_.memory.offloads_reference() && !is_reference_adapter(); }
  bool offloads_optimizer() const { return config_.memory.offloads_optimizer(); }
  bool offloads_teacher() const { return config_.memory.offloads_teacher(); }
  bool offloads_reward_model() const { return config_.memory.offloads_rm_model(); }

  trainer::TrainShape train_shape() const {
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

  // Operations keep so much once both phases have run.
  Size kernel_bytes() const {
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
      kept =
          std::max(kept, Size(model::ops_plan(footprint_, *reward_model_, reward_model_->dtype)->kept(load, threads)));
    }
    return kept;
  }

  const config::TrainConfig& config_;
  const model::ModelConfig& model_;
  const ModelLayouts& layouts_;
  const model::ModelConfig trained_model_;
  const Role role_;
  const std::optional<model::ModelConfig> reference_;
  const bool resumes_reference_;
  const std::span<const model::ModelConfig> teachers_;
  const std::optional<model::ModelConfig> reward_model_;
  const int64_t data_ranks_;
  const device::Footprint& footprint_;
  Size engine_context_, sequences_;
  trainer::MicroBatchShape batch_;         // of an optimizer step
  trainer::MicroBatchShape scored_batch_;  // of a whole rollout
  trainer::MicroBatchShape judged_batch_;  // of a rollout's conversations, as the reward model reads them
  Size recomputed_layers_ = 0;
  Size gradient_bytes_ = 0, reference_bytes_ = 0, average_bytes_ = 0, pinned_bytes_ = 0, waiting_bytes_ = 0;
  Size second_copy_bytes_ = 0;
  std::vector<Size> teacher_bytes_;  // of the weights of each
  Size reward_model_bytes_ = 0;
  TagBytes standing_;
};

// Extents are so large that there are at most 128 of them. That means few calls of the driver, few descriptors on the
// CPU, and less than a hundredth lost to the last one.
Size extent_bytes_for(Size arena_bytes) {
  constexpr int64_t kSmallest = int64_t{2} << 20, kLargest = int64_t{512} << 20, kMostExtents = 128;
  Size extent_bytes = kSmallest;
  while (extent_bytes < kLargest && arena_bytes > kMostExtents * extent_bytes) extent_bytes *= 2;
  return extent_bytes;
}

// Holes between tensors take a share of an arena, with best fit: 2 % where tensors are alike, as on the CPU with models
// that are not tiny; up to 11 % where temporaries are large beside it, but 5 % were enough from the 0.6B model on
// (docs/MEMORY.md). Beside an adapter's gradients, which are small, temporaries are nearly all of the arena. The arena
// of a tiny model has few tensors, and any share of it may be less than one.
Size with_slack(Size bytes, const config::TrainConfig& config) {
  constexpr double kShare = 0.05, kSmallShare = 0.15, kMiB = 1 << 20, kSmall = 256.0 * kMiB, kTiny = 8.0 * kMiB;
  const auto of = static_cast<double>(bytes);
  if (config.memory.arena_slack) return bytes + Size::from(*config.memory.arena_slack * of);
  const bool are_alike = !device::footprint_of(config.model.device).has_large_temporaries && !config.lora.rank;
  const double least = are_alike ? kTiny : std::max(4.0 * kTiny, std::min(kSmallShare * of, kSmall));
  return bytes + Size::from(std::max(kShare * of, least));
}

// Keys and values are one piece, so the holes are between all else.
void add_arena(TrainPlan& plan, const config::TrainConfig& config) {
  const Size kv_bytes = plan.memory.bytes(Tag::kKv, Phase::kRollout);
  const Size rollout = plan.memory.bytes(Phase::kRollout) - plan.persistent_bytes - kv_bytes;
  const Size train = plan.memory.bytes(Phase::kTrain) - (plan.persistent_bytes - kStagingBytes);
  const Size bytes = std::max(kv_bytes + with_slack(rollout, config), with_slack(train, config));
  plan.extent_bytes = extent_bytes_for(bytes);
  plan.arena_bytes = (bytes + plan.extent_bytes - 1) / plan.extent_bytes * plan.extent_bytes;
}

// The rest of the plan leaves so much of the device for keys and values, once --gpu-memory-utilization and
// --train-memory-margin-bytes are taken off. There is no limit where the device's size is not known.
Size bytes_left_for_kv(const TrainPlan& without_kv, const config::TrainConfig& config) {
  const Size device_bytes = without_kv.device.bytes;
  if (device_bytes == 0) return std::numeric_limits<int64_t>::max();
  const memory::MemoryPlan& memory = without_kv.memory;
  // A double does not hold every number of bytes, so the product may be above them.
  const Size usable = std::min(Size(device_bytes),
                               Size::from(config.memory.gpu_memory_utilization * static_cast<double>(device_bytes)));
  const Size while_training = device_bytes - config.memory.train_memory_margin_bytes;
  // The arena gets whole extents of what is left beside the lasting bytes, and the rest of the rollout needs some.
  const Size arena = std::max<Size>(std::min(usable, while_training) - without_kv.persistent_bytes, 0);
  const Size extent_bytes = extent_bytes_for(arena);
  const Size scratch = memory.bytes(Phase::kRollout) - without_kv.persistent_bytes;
  return std::max<Size>(arena / extent_bytes * extent_bytes - with_slack(scratch, config), 0);
}

// This gives keys and values what the rest of the plan leaves.
void choose_kv(TrainPlan& plan, const MemoryEstimate& parts, const config::TrainConfig& config,
               const model::ModelConfig& model, Size sequences) {
  const bool takes_what_is_left = plan.device.bytes > 0 && !plan.device.is_shared;
  const Size wanted = choose_kv_bytes(config.rollout, model, sequences, plan.context_tokens,
                                      takes_what_is_left ? plan.device.bytes : kMaxAutomaticKvBytes);
  const Size one = sequence_kv_bytes(model, config.rollout.limits, plan.context_tokens);
  plan.kv_cache_bytes =
      config.rollout.kv_cache_bytes > 0 ? wanted : std::max(one, std::min(wanted, bytes_left_for_kv(plan, config)));
  const Size blocks = rollout::num_kv_blocks(model, plan.kv_cache_bytes);
  plan.num_kv_blocks = blocks;
  plan.kv_tokens = rollout::kv_tokens(model, blocks);
  plan.kv_completions = std::min<Size>(plan.kv_cache_bytes / one, config.rollout.limits.max_running);
  plan.memory = parts.plan(blocks * rollout::kv_block_bytes(model));
}

TrainPlan planned(const config::TrainConfig& config, const model::ModelConfig& model, const ModelLayouts& layouts,
                  const PlanInputs& facts, const DeviceMemory& device) {
  const Lengths length = lengths(config, model, facts);
  TrainPlan plan;
  plan.device = device;
  plan.role = facts.role;
  plan.num_ranks = config.mesh.num_ranks();
  plan.num_data_ranks = config.mesh.num_data_ranks();
  plan.longest_prompt = length.longest_prompt;
  plan.prompt_is_assumed = length.is_assumed;
  plan.context_tokens = std::max<Size>(length.context, facts.eval_context_tokens);
  const Size sequences = std::max<Size>(samples_at_once(config), facts.eval_sequences);
  const MemoryEstimate parts(config, model, layouts, length, plan.context_tokens, sequences,
                             config.mesh.num_data_ranks(), facts, device);
  plan.micro_batch = parts.batch();
  plan.recomputed_layers = parts.recomputed_layers();

  plan.persistent_bytes = parts.lasting().total();
  plan.memory = parts.plan(/*kv_bytes=*/0);
  if (facts.role != Role::kTrainer) choose_kv(plan, parts, config, model, sequences);
  add_arena(plan, config);
  if (!parts.footprint().shares_host_memory) {
    plan.host_bytes =
        kProcessBytes + kStagingBytes + parts.pinned_bytes() + parts.waiting_bytes() + parts.average_bytes();
  }
  plan.host_pinned_bytes = parts.pinned_bytes();
  plan.second_copy_bytes = parts.second_copy_bytes();
  return plan;
}

// A flag that a size grows with.
struct GrowingFlag {
  const char* flag;
  int64_t value;
  std::function<void(config::TrainConfig&)> make_small;
};
std::vector<GrowingFlag> growing_flags_of(const config::TrainConfig& config) {
  return {
      {"rollout-batch-size", config.rollout_batch_size, [](config::TrainConfig& c) { c.rollout_batch_size = 1; }},
      {"over-sampling-batch-size", config.over_sampling_batch_size.value_or(0),
       [](config::TrainConfig& c) { c.over_sampling_batch_size.reset(); }},
      {"n-samples-per-prompt", config.rollout.n_samples_per_prompt,
       [](config::TrainConfig& c) { c.rollout.n_samples_per_prompt = 1; }},
      {"rollout-max-response-len", config.rollout.response_len(),
       [](config::TrainConfig& c) { c.rollout.max_response_len = 1; }},
      {"rollout-max-prompt-len", config.data.max_prompt_len, [](config::TrainConfig& c) { c.data.max_prompt_len = 1; }},
      {"max-tokens-per-gpu", config.optimizer.batch.max_tokens_per_gpu,
       [](config::TrainConfig& c) { c.optimizer.batch.max_tokens_per_gpu = 1; }},
      {"logprob-chunk-rows", config.optimizer.batch.logprob_chunk_rows,
       [](config::TrainConfig& c) { c.optimizer.batch.logprob_chunk_rows = 1; }},
      {"rollout-max-batch-tokens", config.rollout.limits.max_batch_tokens,
       [](config::TrainConfig& c) { c.rollout.limits.max_batch_tokens = 1; }},
      {"rollout-max-running", config.rollout.limits.max_running,
       [](config::TrainConfig& c) { c.rollout.limits.max_running = 1; }},
      {"kv-cache-bytes", config.rollout.kv_cache_bytes, [](config::TrainConfig& c) { c.rollout.kv_cache_bytes = 0; }},
      {"device-memory-bytes", config.memory.device_memory_bytes, [](config::TrainConfig&) {}},
  };
}

bool leaves_64_bits(const config::TrainConfig& config, const model::ModelConfig& model, const ModelLayouts& layouts,
                    const PlanInputs& facts, const DeviceMemory& device) {
  try {
    planned(config, model, layouts, facts, device);
  } catch (const base::SizeOverflow&) {
    return true;
  } catch (const UserError&) {  // the small flag contradicts another; sizes are not to blame
  }
  return false;
}

// The error names each flag that alone, made small, keeps the sizes within 64 bits. Where there is none, it names all
// large flags and the model.
[[noreturn]] void refuse_sizes(const config::TrainConfig& config, const model::ModelConfig& model,
                               const ModelLayouts& layouts, const PlanInputs& facts, const DeviceMemory& device) {
  constexpr int64_t kLarge = int64_t{1} << 20;
  std::vector<std::string> alone, large;
  for (const GrowingFlag& knob : growing_flags_of(config)) {
    config::TrainConfig smaller = config;
    knob.make_small(smaller);
    const std::string flag = fmt::format("--{} {}", knob.flag, knob.value);
    if (knob.value > 1 && !leaves_64_bits(smaller, model, layouts, facts, device)) alone.push_back(flag);
    if (knob.value >= kLarge) large.push_back(flag);
  }
  const std::string flags =
      fmt::format("{}", fmt::join(alone.empty() ? large : alone, alone.empty() ? " and " : " or "));
  throw UserError(fmt::format(
      "the sizes of this run are more than 64 bits hold: {}{}{}/config.json is of another size than it should be "
      "(num_hidden_layers {}, hidden_size {}, intermediate_size {}, vocab_size {}, max_position_embeddings {})",
      flags.empty() ? "" : "lower ", flags,
      flags.empty() ? config.model.hf_checkpoint : "; or " + config.model.hf_checkpoint, model.num_layers, model.hidden,
      model.mlp, model.vocab, model.max_positions));
}

}  // namespace

DeviceMemory device_memory(const config::TrainConfig& config, std::optional<device::DeviceBytes> measured) {
  if (config.memory.device_memory_bytes > 0) {
    return {.bytes = config.memory.device_memory_bytes, .name = "the device (--device-memory-bytes)"};
  }
  if (measured) return {.bytes = measured->free, .name = config.model.device + " (its free memory)"};
  if (!device::footprint_of(config.model.device).shares_host_memory) {
    return {.name = config.model.device + ", whose size is not known (--device-memory-bytes)"};
  }
  const base::MachineMemory machine = base::machine_memory();
  // All ranks and rollout workers of the machine share its memory.
  const int64_t ranks = config.mesh.actor_num_gpus_per_node + config.mesh.num_workers(config.colocate);
  const std::string share = ranks > 1 ? fmt::format("a share of 1/{} of ", ranks) : "";
  return {.bytes = machine.bytes / ranks,
          .name = fmt::format("{}this machine ({})", share, machine.limited_by),
          .is_shared = true};
}

int64_t reward_model_tokens(const model::ModelConfig& reward_model, int64_t context_tokens) {
  constexpr int64_t kTemplateTokens = 1024;
  return std::min<int64_t>(reward_model.max_positions, Size(2) * context_tokens + kTemplateTokens);
}

model::ModelConfig model_in_training(const config::TrainConfig& config, const model::ModelConfig& engine_model) {
  model::ModelConfig model = engine_model;
  model.shard.sequence_parallel = config.mesh.sequence_parallel;
  return model;
}

int64_t TrainPlan::limit_bytes() const { return device.bytes > 0 ? device.bytes : std::numeric_limits<int64_t>::max(); }

int64_t TrainPlan::peak_bytes() const {
  return Size(std::max(memory.bytes(Phase::kLoad), persistent_bytes)) + arena_bytes;
}

int64_t TrainPlan::missing_bytes() const { return std::max<int64_t>(peak_bytes() - limit_bytes(), 0); }

ModelLayouts::ModelLayouts(const model::ModelConfig& model)
    : weights(model::build_layout(model)), trained(model.lora ? model::adapter_layout(model) : weights) {}

TrainPlan plan_training(const config::TrainConfig& config, const model::ModelConfig& model, const PlanInputs& facts,
                        const DeviceMemory& device) {
  return plan_training(config, model, ModelLayouts(model), facts, device);
}

TrainPlan plan_training(const config::TrainConfig& config, const model::ModelConfig& model, const ModelLayouts& layouts,
                        const PlanInputs& facts, const DeviceMemory& device) {
  try {
    return planned(config, model, layouts, facts, device);
  } catch (const base::SizeOverflow&) {
    refuse_sizes(config, model, layouts, facts, device);
  }
}

namespace {

// Returns "give --lora-rank 16, ... or " where that fits, else "". It trains something else, so it is no change among
// others.
std::string adapter_that_fits(const config::TrainConfig& config, const model::ModelConfig& model,
                              const PlanInputs& facts, const DeviceMemory& device) {
  constexpr int64_t kRank = 16;
  if (model.lora || !model.shard.is_whole()) return "";
  config::TrainConfig with_adapter = config;
  with_adapter.lora.rank = kRank;
  model::ModelConfig adapted = model;
  adapted.lora = {
      .rank = kRank, .alpha = config::kDefaultLoraAlpha, .target_modules = model::all_linear_modules(model)};
  const TrainPlan plan = plan_training(with_adapter, adapted, facts, device);
  if (!plan.fits()) return "";
  return fmt::format("give --lora-rank {}, which trains an adapter ({}), or ", kRank, gib_text(plan.peak_bytes()));
}

}  // namespace

void check_fits(const TrainPlan& plan, const config::TrainConfig& config, const model::ModelConfig& model,
                const PlanInputs& facts) {
  if (plan.fits()) return;
  const std::vector<PlanChange> changes = cheapest_changes(config, model, facts, plan.device);
  std::string remedy;
  for (const PlanChange& change : changes) remedy += (remedy.empty() ? "" : "; or ") + to_string(change);
  if (remedy.empty()) {
    remedy = "no batch size, recomputation, offloading or dtype makes it fit: " +
             adapter_that_fits(config, model, facts, plan.device) + "take a smaller model or a larger device";
  } else {
    remedy = "give " + remedy;
  }
  const Phase peak = plan.memory.peak_phase();
  const std::string needs =
      fmt::format("this run needs {} in the {} phase ({}), and {} has {}", gib_text(plan.peak_bytes()),
                  memory::to_string(peak), plan.memory.peak_name(peak), plan.device.name, gib_text(plan.limit_bytes()));
  throw DoesNotFit(fmt::format("{}: {}", needs, remedy), needs, changes.empty() ? "" : changes.front().flags,
                   changes.empty() ? "" : to_string(changes.front()));
}

TrainPlan plan_or_refuse(const config::TrainConfig& config, const model::ModelConfig& model, const PlanInputs& facts,
                         const DeviceMemory& device) {
  TrainPlan plan = plan_training(config, model, facts, device);
  check_fits(plan, config, model, facts);
  return plan;
}

}  // namespace tandem::plan
