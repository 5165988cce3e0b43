#include "run/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/machine_memory.h"
#include "device/block.h"
#include "device/ops_plan.h"
#include "model/model_plan.h"
#include "model/registry.h"
#include "rollout/rollout_plan.h"
#include "run/plan_changes.h"
#include "weights/safetensors.h"
#include "weights/weights_plan.h"

namespace tandem::run {

namespace {

using memory::Phase;
using memory::Tag;
using memory::TagBytes;
using weights::kStagingBytes;  // between files and memory

// The program, LibTorch, the text worker and the graders. 0.10 GiB is what bench/results/memory.md leaves for `tandem
// generate` once weights and touched keys and values are taken off; 0.06 GiB for two graders is a guess.
constexpr int64_t kProcessBytes = int64_t{160} << 20;
// Beside a CUDA context: kernels as they are loaded, cuBLAS's workspaces, what LibTorch's allocator rounds up. 404 MiB
// at most in bench/results/memory_plan_cuda.md.
constexpr int64_t kCudaLibraryBytes = int64_t{416} << 20;

struct Lengths {
  int64_t longest_prompt = 0, context = 0;
  bool is_assumed = false;
};

Lengths lengths(const TrainConfig& config, const model::ModelConfig& model, const PlanFacts& facts) {
  Lengths result;
  const int64_t limit = config.rollout.max_context_len > 0 ? config.rollout.max_context_len : model.max_positions;
  result.is_assumed = !facts.longest_prompt && config.data.max_prompt_len == 0;
  if (facts.longest_prompt) {
    result.longest_prompt = *facts.longest_prompt;
  } else if (config.data.max_prompt_len > 0) {
    result.longest_prompt = std::min(config.data.max_prompt_len, std::max<int64_t>(limit - 1, 1));
  } else {
    result.longest_prompt = std::max<int64_t>(limit - config.rollout.response_len(), 1);
  }
  result.context = choose_context_tokens(config.rollout, model, result.longest_prompt);
  return result;
}

// `tandem plan` need not be told how large a rollout is: as many samples as decode together.
int64_t samples_of_rollout(const TrainConfig& config) {
  return config.rollout_batch_size > 0 ? config.samples_per_rollout() : config.rollout.max_running;
}

int64_t samples_of_step(const TrainConfig& config) {
  return std::max<int64_t>(config.rollout_batch_size > 0
                               ? config.samples_per_step()
                               : config.global_batch_size.value_or(samples_of_rollout(config)),
                           1);
}

// Everything of a run but its keys and values; they are added to whatever phase they live in.
class Parts {
 public:
  // `engine_context` tokens of the longest sequence, `sequences` of them at once: what the engine is asked for.
  Parts(const TrainConfig& config, const model::ModelConfig& model, const Lengths& length, int64_t engine_context,
        int64_t sequences)
      : config_(config),
        model_(model),
        family_(device::ops_family(config.model.device)),
        engine_context_(engine_context),
        sequences_(sequences) {
    trainer::StepShape step = {.num_samples = samples_of_step(config),
                               .group_size = config.rollout.n_samples_per_prompt,
                               .prompt_tokens = length.longest_prompt,
                               .response_tokens = length.context - length.longest_prompt};
    batch_ = trainer::largest_micro_batch(step, config.optimizer.max_tokens_per_gpu);
    step.num_samples = samples_of_rollout(config);
    scored_batch_ = trainer::largest_micro_batch(step, config.optimizer.max_tokens_per_gpu);
    recomputed_layers_ = config.optimizer.recompute_layers(model.num_layers);
    if (recomputed_layers_ < 0) {
      recomputed_layers_ =
          trainer::recomputed_layers_for(model, model.dtype, batch_.rows, config.optimizer.activation_bytes);
    }
    const int64_t weights = weights::store_bytes(model::build_layout(model), model::dtype_bytes(model.dtype));
    const trainer::OptimizerBytes optimizer = trainer::optimizer_bytes(model, model.dtype);
    standing_[Tag::kWeights] = weights;
    reference_bytes_ = config.loss.needs_reference() ? weights : 0;
    gradient_bytes_ = optimizer.gradient;
    // What is offloaded lies in the host's memory, which is the device's too where that is the CPU.
    const bool is_host = family_ == device::OpsFamily::kCpu;
    if (offloads_reference()) pinned_bytes_ += reference_bytes_;
    if (!offloads_reference() || is_host) standing_[Tag::kReference] = reference_bytes_;
    if (offloads_optimizer()) pinned_bytes_ += trainer::offload_bytes(model, model.dtype).pinned_host;
    if (!offloads_optimizer() || is_host) {
      standing_[Tag::kMaster] = optimizer.master;
      standing_[Tag::kMoments] = optimizer.moments;
    }
    standing_[Tag::kOverhead] =
        family_ == device::OpsFamily::kCpu ? kProcessBytes : device::kCudaContextBytes + kCudaLibraryBytes;
  }

  const trainer::MicroBatchShape& batch() const { return batch_; }
  int64_t recomputed_layers() const { return recomputed_layers_; }
  device::OpsFamily family() const { return family_; }
  int64_t pinned_bytes() const { return pinned_bytes_; }

  // What lasts through rollouts and training, beside the arena.
  TagBytes lasting() const {
    TagBytes lasting = standing_;
    lasting[Tag::kOverhead] += kernel_bytes();
    lasting[Tag::kStaging] = kStagingBytes;  // a checkpoint is written beside a rollout
    return lasting;
  }

  memory::MemoryPlan plan(int64_t kv_bytes) const {
    memory::MemoryPlan plan;
    TagBytes load = standing_;
    load[Tag::kStaging] = kStagingBytes;
    plan.add(Phase::kLoad, "everything that lasts", load);

    TagBytes rollout = lasting();
    rollout[Tag::kKv] = kv_bytes;
    rollout::add_engine_moments(
        model_, model_.dtype,
        {.max_batch_tokens = std::min(config_.rollout.max_batch_tokens, sequences_ * engine_context_),
         .max_running = std::min(config_.rollout.max_running, sequences_),
         .context_tokens = engine_context_,
         .family = family_},
        rollout, plan);

    TagBytes train = lasting();
    train[Tag::kStaging] = 0;
    train[Tag::kGradients] = gradient_bytes_;
    trainer::TrainShape scores = train_shape();
    if (config_.loss.loss.get_mismatch_metrics) trainer::add_scoring_moments(model_, model_.dtype, scores, train, plan);
    if (config_.loss.needs_reference()) {
      TagBytes scoring = train;
      scoring[Tag::kGradients] = 0;  // it comes before the first of them
      if (offloads_reference()) scoring[Tag::kReference] += memory::allocated_bytes(reference_bytes_);
      scores.batch = scored_batch_;
      trainer::add_scoring_moments(model_, model_.dtype, scores, scoring, plan);
    }
    trainer::add_train_moments(model_, model_.dtype, train_shape(), train, plan);
    return plan;
  }

 private:
  bool offloads_reference() const { return config_.memory.offloads_reference(); }
  bool offloads_optimizer() const { return config_.memory.offloads_optimizer(); }

  trainer::TrainShape train_shape() const {
    return {.batch = batch_,
            .recomputed_layers = recomputed_layers_,
            .logprob_chunk_rows = config_.optimizer.logprob_chunk_rows,
            .has_entropy_term = config_.loss.loss.entropy_coef != 0.0,
            .family = family_,
            .offloads_optimizer = offloads_optimizer()};
  }

  // What the CPU's kernels keep once both phases have run.
  int64_t kernel_bytes() const {
    if (family_ != device::OpsFamily::kCpu) return 0;
    device::CpuLoad load;
    load.rows = std::max(batch_.rows, config_.rollout.max_batch_tokens);
    load.logits_rows = std::min(config_.optimizer.logprob_chunk_rows, batch_.targets);
    load.context = std::max(batch_.context_tokens, engine_context_);
    load.trains = true;
    const int64_t threads = config_.model.num_threads > 0 ? config_.model.num_threads
                                                          : std::max<int64_t>(std::thread::hardware_concurrency(), 1);
    return device::cpu_kernel_bytes(model::ops_shape(model_), load, threads);
  }

  const TrainConfig& config_;
  const model::ModelConfig& model_;
  device::OpsFamily family_;
  int64_t engine_context_, sequences_;
  trainer::MicroBatchShape batch_;         // of an optimizer step
  trainer::MicroBatchShape scored_batch_;  // of a whole rollout
  int64_t recomputed_layers_ = 0;
  int64_t gradient_bytes_ = 0, reference_bytes_ = 0, pinned_bytes_ = 0;
  TagBytes standing_;
};

// Extents so large that there are at most 128 of them: few calls of the driver, few descriptors on the CPU, and less
// than a hundredth lost to the last one.
int64_t extent_bytes_for(int64_t arena_bytes) {
  constexpr int64_t kSmallest = int64_t{2} << 20, kLargest = int64_t{512} << 20, kMostExtents = 128;
  int64_t extent_bytes = kSmallest;
  while (extent_bytes < kLargest && arena_bytes > kMostExtents * extent_bytes) extent_bytes *= 2;
  return extent_bytes;
}

// What holes between tensors take of an arena, with best fit: 2 % where tensors are alike, which those of the CPU are;
// up to 11 % where temporaries are large beside it, but 5 % were enough from the 0.6B model on (docs/MEMORY.md).
int64_t with_slack(int64_t bytes, const TrainConfig& config) {
  constexpr double kShare = 0.05, kSmallShare = 0.15, kSmall = 256.0 * (1 << 20);
  const auto of = static_cast<double>(bytes);
  double slack = config.memory.arena_slack.value_or(kShare) * of;
  if (!config.memory.arena_slack && device::ops_family(config.model.device) != device::OpsFamily::kCpu) {
    slack = std::max(slack, std::min(kSmallShare * of, kSmall));
  }
  return bytes + static_cast<int64_t>(slack);
}

// Keys and values are one piece: the holes are between all else.
void add_arena(TrainPlan& plan, const TrainConfig& config) {
  const int64_t kv_bytes = plan.memory.bytes(Tag::kKv, Phase::kRollout);
  const int64_t rollout = plan.memory.bytes(Phase::kRollout) - plan.lasting_bytes - kv_bytes;
  const int64_t train = plan.memory.bytes(Phase::kTrain) - (plan.lasting_bytes - kStagingBytes);
  const int64_t bytes = std::max(kv_bytes + with_slack(rollout, config), with_slack(train, config));
  plan.extent_bytes = extent_bytes_for(bytes);
  plan.arena_bytes = (bytes + plan.extent_bytes - 1) / plan.extent_bytes * plan.extent_bytes;
}

// What the phases in which keys and values live leave of the device, --gpu-memory-utilization and
// --train-memory-margin-bytes taken off; no limit where the device is not known.
int64_t bytes_left_for_kv(const TrainPlan& without_kv, const TrainConfig& config) {
  const int64_t device_bytes = without_kv.device.bytes;
  if (device_bytes == 0) return std::numeric_limits<int64_t>::max();
  const memory::MemoryPlan& memory = without_kv.memory;
  const auto usable = static_cast<int64_t>(config.memory.gpu_memory_utilization * static_cast<double>(device_bytes));
  const int64_t while_training = device_bytes - config.memory.train_memory_margin_bytes;
  // Whole extents of what is left beside that which lasts; the rest of the rollout needs some of them.
  const int64_t arena = std::max<int64_t>(std::min(usable, while_training) - without_kv.lasting_bytes, 0);
  const int64_t extent_bytes = extent_bytes_for(arena);
  const int64_t scratch = memory.bytes(Phase::kRollout) - without_kv.lasting_bytes;
  return std::max<int64_t>(arena / extent_bytes * extent_bytes - with_slack(scratch, config), 0);
}

}  // namespace

DeviceMemory device_memory(const TrainConfig& config, std::optional<device::DeviceBytes> measured) {
  if (config.memory.device_memory_bytes > 0) {
    return {.bytes = config.memory.device_memory_bytes, .name = "the device (--device-memory-bytes)"};
  }
  if (measured) return {.bytes = measured->free, .name = config.model.device + " (its free memory)"};
  if (device::ops_family(config.model.device) != device::OpsFamily::kCpu) {
    return {.name = config.model.device + ", whose size is not known (--device-memory-bytes)"};
  }
  const base::MachineMemory machine = base::machine_memory();
  return {.bytes = machine.bytes, .name = fmt::format("this machine ({})", machine.limited_by), .is_shared = true};
}

int64_t TrainPlan::limit_bytes() const { return device.bytes > 0 ? device.bytes : std::numeric_limits<int64_t>::max(); }

int64_t TrainPlan::peak_bytes() const { return std::max(memory.bytes(Phase::kLoad), lasting_bytes) + arena_bytes; }

int64_t TrainPlan::missing_bytes() const { return std::max<int64_t>(peak_bytes() - limit_bytes(), 0); }

TrainPlan plan_training(const TrainConfig& config, const model::ModelConfig& model, const PlanFacts& facts,
                        const DeviceMemory& device) {
  const Lengths length = lengths(config, model, facts);
  TrainPlan plan;
  plan.device = device;
  plan.longest_prompt = length.longest_prompt;
  plan.prompt_is_assumed = length.is_assumed;
  plan.context_tokens = std::max(length.context, facts.eval_context_tokens);
  const int64_t sequences = std::max(samples_of_rollout(config), facts.eval_sequences);
  const Parts parts(config, model, length, plan.context_tokens, sequences);
  plan.micro_batch = parts.batch();
  plan.recomputed_layers = parts.recomputed_layers();

  plan.lasting_bytes = parts.lasting().total();
  plan.memory = parts.plan(/*kv_bytes=*/0);
  const bool takes_what_is_left = device.bytes > 0 && !device.is_shared;
  const int64_t wanted = choose_kv_bytes(config.rollout, model, sequences, plan.context_tokens,
                                         takes_what_is_left ? device.bytes : kMaxAutomaticKvBytes);
  const int64_t one = sequence_kv_bytes(model, plan.context_tokens);
  plan.kv_cache_bytes =
      config.rollout.kv_cache_bytes > 0 ? wanted : std::max(one, std::min(wanted, bytes_left_for_kv(plan, config)));
  const int64_t element_bytes = model::dtype_bytes(model.dtype);
  const int64_t blocks = rollout::num_kv_blocks(model, element_bytes, plan.kv_cache_bytes);
  plan.kv_tokens = blocks * device::kBlockTokens;
  plan.kv_completions = std::min(plan.kv_cache_bytes / one, config.rollout.max_running);
  plan.memory = parts.plan(blocks * rollout::kv_block_bytes(model, element_bytes));
  add_arena(plan, config);
  if (parts.family() != device::OpsFamily::kCpu) plan.host_bytes = kProcessBytes + kStagingBytes + parts.pinned_bytes();
  plan.host_pinned_bytes = parts.pinned_bytes();
  return plan;
}

void check_fits(const TrainPlan& plan, const TrainConfig& config, const model::ModelConfig& model,
                const PlanFacts& facts) {
  if (plan.fits()) return;
  const std::vector<PlanChange> changes = cheapest_changes(config, model, facts, plan.device);
  std::string remedy;
  for (const PlanChange& change : changes) remedy += (remedy.empty() ? "" : "; or ") + to_string(change);
  if (remedy.empty()) {
    remedy = "no batch size, recomputation, offloading or dtype makes it fit: take a smaller model or a larger device";
  } else {
    remedy = "give " + remedy;
  }
  const Phase peak = plan.memory.peak_phase();
  throw UserError(fmt::format("this run needs {} in the {} phase ({}), and {} has {}: {}", gib_text(plan.peak_bytes()),
                              memory::to_string(peak), plan.memory.moment(peak), plan.device.name,
                              gib_text(plan.limit_bytes()), remedy));
}

TrainPlan fitting_plan(const TrainConfig& config, const model::ModelConfig& model, const PlanFacts& facts,
                       const DeviceMemory& device) {
  TrainPlan plan = plan_training(config, model, facts, device);
  check_fits(plan, config, model, facts);
  return plan;
}

}  // namespace tandem::run
