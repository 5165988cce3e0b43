// The memory plan of a training run: the bytes that each module states, added up, and the keys and values that fit into
// what is left. Arithmetic on a configuration: no device, no weights, no torch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "config/train_config.h"
#include "device/vmm.h"
#include "memory/memory_plan.h"
#include "model/config.h"
#include "tandem/error.h"
#include "trainer/trainer_plan.h"

namespace tandem::plan {

// What a process of a run does: all of it, or, where others sample, one of the two.
enum class Role : uint8_t { kBoth, kTrainer, kRollout };

// What is known of the process, of the data, and of how caches are kept.
struct PlanInputs {
  // Tokens; nullopt: as many as --rollout-max-prompt-len allows, or where that is not given, the context.
  std::optional<int64_t> longest_prompt = {};
  int64_t eval_context_tokens = 0;  // of the longest sequence of an evaluation, prompt and completion
  int64_t eval_sequences = 0;       // of its largest data set
  Role role = Role::kBoth;
  // It gives weights to processes that only sample. Where others hold parts of the model, it keeps copies of those on
  // the CPU; a GPU maps them.
  bool gives_weights = false;
};

struct DeviceMemory {
  int64_t bytes = 0;       // 0: not known; everything fits
  std::string name = {};   // "this machine (MemTotal)"
  bool is_shared = false;  // with the rest of a machine: keys and values then stay within kMaxAutomaticKvBytes
};

// --device-memory-bytes; or the machine's memory for --device cpu; or what a GPU was asked for (device::device_bytes),
// and where it was not, 0.
DeviceMemory device_memory(const config::TrainConfig& config, std::optional<device::DeviceBytes> measured = {});

struct TrainPlan {
  memory::MemoryPlan memory;  // of one rank; all take the same
  DeviceMemory device;
  int64_t num_ranks = 1, num_data_ranks = 1;

  int64_t longest_prompt = 0;  // tokens
  bool prompt_is_assumed = false;
  int64_t context_tokens = 0;  // of the longest sequence that the engine samples
  Role role = Role::kBoth;
  trainer::MicroBatchShape micro_batch;
  int64_t recomputed_layers = 0;

  // What rollout and training take turns in: the larger of what they need, --arena-slack, and whole extents.
  int64_t arena_bytes = 0;
  int64_t extent_bytes = 0;

  int64_t kv_cache_bytes = 0;    // --kv-cache-bytes, or what was chosen
  int64_t num_kv_blocks = 0;     // in them: what the engine is told
  int64_t kv_tokens = 0;         // that its blocks hold
  int64_t kv_completions = 0;    // that it holds at once, each as long as the context, none sharing its prompt
  int64_t persistent_bytes = 0;  // beside the arena, in the phase that has most of it
  int64_t host_bytes = 0;        // of the host beside a device: 0 where the device is the host
  int64_t host_pinned_bytes = 0;

  // What the device has, as far as that is known.
  int64_t limit_bytes() const;
  // The most at once: what lasts and the whole arena.
  int64_t peak_bytes() const;
  // By how much the peak is above it; 0: the plan fits.
  int64_t missing_bytes() const;
  bool fits() const { return missing_bytes() == 0; }
};

// The model as trainer and reference compute it, of the one that the engine computes: --sequence-parallel is theirs.
model::ModelConfig model_in_training(const config::TrainConfig& config, const model::ModelConfig& engine_model);

// UserError where lengths contradict each other (choose_context_tokens) or one sequence exceeds --kv-cache-bytes.
TrainPlan plan_training(const config::TrainConfig& config, const model::ModelConfig& model, const PlanInputs& facts,
                        const DeviceMemory& device);

// A run is refused for its memory. what() names all changes that would make it fit, cheapest_change() the first alone.
class DoesNotFit : public UserError {
 public:
  DoesNotFit(const std::string& message, std::string needs, std::string flags, std::string change)
      : UserError(message), needs_(std::move(needs)), flags_(std::move(flags)), cheapest_change_(std::move(change)) {}

  const std::string& needs() const { return needs_; }  // "this run needs 2.10 GiB in the train phase ..."
  const std::string& flags() const { return flags_; }  // of that change, as they are typed; empty: nothing helps
  const std::string& cheapest_change() const { return cheapest_change_; }  // the flags and what they cost

 private:
  std::string needs_, flags_, cheapest_change_;
};

// DoesNotFit, in one line, where the plan does not fit: by how much, and the cheapest changes that make it fit.
void check_fits(const TrainPlan& plan, const config::TrainConfig& config, const model::ModelConfig& model,
                const PlanInputs& facts);

// plan_training(), checked: what `tandem train` asks before it loads anything.
TrainPlan plan_or_refuse(const config::TrainConfig& config, const model::ModelConfig& model, const PlanInputs& facts,
                         const DeviceMemory& device);

}  // namespace tandem::plan
