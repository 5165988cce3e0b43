// The memory plan of a training run: the bytes that each module states, added up, and the keys and values that fit into
// what is left. Arithmetic on a configuration: no device, no weights, no torch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "config/train_config.h"
#include "device/vmm.h"
#include "memory/memory_plan.h"
#include "model/config.h"
#include "tandem/error.h"
#include "trainer/trainer_plan.h"
#include "weights/layout.h"

namespace tandem::plan {

// The part of a run that a process does: all of it, or, where other processes sample, training or sampling alone.
enum class Role : uint8_t { kBoth, kTrainer, kRollout };

// The plan depends on these facts about the process and the data, beside configuration and model.
struct PlanInputs {
  // It counts tokens. nullopt stands for as many as --rollout-max-prompt-len allows, or where that is not given, the
  // context.
  std::optional<int64_t> longest_prompt = {};
  std::string longest_place = {};               // FILE:LINE of that prompt, "" if it is not known
  std::optional<int64_t> shortest_prompt = {};  // nullopt stands for 1
  int64_t eval_context_tokens = 0;              // of the longest sequence of an evaluation, prompt and completion
  int64_t eval_sequences = 0;                   // of its largest data set
  Role role = Role::kBoth;
  // The process gives weights to rollout workers. Where other ranks hold parts of the model, it keeps copies of those
  // if its device is the host; other devices map them.
  bool gives_weights = false;
  // The teachers of --use-opd, each this rank's part of it, in the run's dtype.
  std::vector<model::ModelConfig> teachers = {};
  // The model of --ref-load, this rank's part of it in the run's dtype, while its weights are its own: it may compute
  // otherwise than the policy.
  std::optional<model::ModelConfig> reference = {};
  // The run resumes with a reference that has followed the policy, whether it goes on following it or not.
  bool resumes_reference = false;
  // The decoder of --rm-model, this rank's part of it in the run's dtype.
  std::optional<model::ModelConfig> reward_model = {};
};

struct DeviceMemory {
  int64_t bytes = 0;       // 0: not known; everything fits
  std::string name = {};   // "this machine (MemTotal)"
  bool is_shared = false;  // with the rest of a machine: keys and values then stay within kMaxAutomaticKvBytes
};

// The device's memory is what --device-memory-bytes says, or the machine's where the device is the host, or what the
// device itself answered (device::device_bytes). Where it was not asked, its size is not known.
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

  // Rollout and training take turns in the arena. It has the larger of what they need and --arena-slack, in whole
  // extents.
  int64_t arena_bytes = 0;
  int64_t extent_bytes = 0;

  int64_t kv_cache_bytes = 0;    // --kv-cache-bytes, or what was chosen
  int64_t num_kv_blocks = 0;     // in them: what the engine is told
  int64_t kv_tokens = 0;         // that its blocks hold
  int64_t kv_completions = 0;    // that it holds at once, each as long as the context, none sharing its prompt
  int64_t persistent_bytes = 0;  // beside the arena, in the phase that has most of it
  int64_t host_bytes = 0;        // of the host beside a device: 0 where the device is the host
  int64_t host_pinned_bytes = 0;
  // The device has so much, of what lasts, for a second copy of the trained weights: a process that only samples, and
  // maps the trainers' memory, copies new weights into it while it samples. 0: it copies them while it stands still.
  int64_t second_copy_bytes = 0;

  // This is what the device has; where that is not known, there is no limit.
  int64_t limit_bytes() const;
  // The most that is taken at once is what lasts and the whole arena.
  int64_t peak_bytes() const;
  // The peak is above the limit by so much; 0 means that the plan fits.
  int64_t missing_bytes() const;
  bool fits() const { return missing_bytes() == 0; }
};

// Returns the longest conversation that --rm-model scores, in tokens of its own tokenizer, where the longest sequence
// of the policy has `context_tokens`: twice as many, and 1024 for its chat template, or its context if that is less.
int64_t reward_model_tokens(const model::ModelConfig& reward_model, int64_t context_tokens);

// Trainer and reference compute the engine's model with one difference: --sequence-parallel holds for them alone.
model::ModelConfig model_in_training(const config::TrainConfig& config, const model::ModelConfig& engine_model);

// The layouts that a plan of a model reads. A sparse model has tens of thousands of slices, which take longer to make
// than a plan. They do not depend on the dtype.
struct ModelLayouts {
  explicit ModelLayouts(const model::ModelConfig& model);
  weights::Layout weights, trained;
};

// It throws a UserError where lengths contradict each other (choose_context_tokens) or one sequence exceeds
// --kv-cache-bytes. The second is for many plans of one model, whose layouts it is given.
TrainPlan plan_training(const config::TrainConfig& config, const model::ModelConfig& model, const PlanInputs& facts,
                        const DeviceMemory& device);
TrainPlan plan_training(const config::TrainConfig& config, const model::ModelConfig& model, const ModelLayouts& layouts,
                        const PlanInputs& facts, const DeviceMemory& device);

// The run is refused for its memory. what() names all changes that would make it fit, cheapest_change() the first
// alone.
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

// It throws DoesNotFit where the plan does not fit. The one line of the message says by how much, and the cheapest
// changes that make it fit.
void check_fits(const TrainPlan& plan, const config::TrainConfig& config, const model::ModelConfig& model,
                const PlanInputs& facts);

// `tandem train` calls this before it loads anything: plan_training(), then check_fits().
TrainPlan plan_or_refuse(const config::TrainConfig& config, const model::ModelConfig& model, const PlanInputs& facts,
                         const DeviceMemory& device);

}  // namespace tandem::plan
