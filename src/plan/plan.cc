#include "plan/plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <vector>

#include "base/machine_memory.h"
#include "base/size.h"
#include "device/backends.h"
#include "model/lora.h"
#include "model/registry.h"
#include "plan/kv_size.h"
#include "plan/memory_estimate.h"
#include "plan/plan_changes.h"
#include "rollout/rollout_plan.h"
#include "weights/safetensors.h"

namespace tandem::plan {

namespace {

using base::Size;
using memory::Phase;
using memory::Tag;
using weights::kStagingBytes;  // between files and memory

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
