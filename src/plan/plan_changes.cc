#include "plan/plan_changes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>

#include "base/check.h"
#include "device/backends.h"
#include "plan/kv_size.h"
#include "rollout/rollout_plan.h"

namespace tandem::plan {

namespace {

// A change costs a share of a step's time, of which sampling and training take half each. These shares order changes
// and are judgement, not measured; but kForwardShare follows from arithmetic, and kOffloaded is by how much longer
// training was in bench/results/large_job.md.
constexpr double kTrainShare = 0.5, kRolloutShare = 0.5;
constexpr double kForwardShare = 1.0 / 3.0;  // of forward and backward: what running all blocks twice adds
constexpr double kTokensHalved = 0.02;       // of training: more micro-batches, each adding to all gradients
constexpr double kChunkHalved = 0.01;        // of training: the head's matrix is read once a chunk
constexpr double kOffloaded = 0.03;          // of training: an update streams masters and moments
constexpr double kBatchHalved = 0.02;        // of sampling: more forwards for the prompts
// A cache that takes what is left should hold so many completions, where the batch has them and memory allows: with
// fewer, sampling reads all weights for each token of a few.
constexpr int64_t kUsefulCompletions = 16;
constexpr double kRowsGathered = 0.02;  // of training: rows that are gathered once more for each product's gradient
constexpr double kBfloat16 = -0.3;      // half the bytes, and the faster matrix units

struct Candidate {
  config::TrainConfig config;
  model::ModelConfig model;
};

// A flag that can be moved. Step 1 is the mildest, num_steps the strongest, and memory falls from step to step.
struct Knob {
  bool changes_results = false;
  int64_t num_steps = 0;
  std::function<std::string(int64_t step, Candidate& candidate)> apply;  // returns the flags
  std::function<double(int64_t step)> slowdown;
};

// The values descend: 15/16 of `from`, 14/16, ... to a half, and so on from there, down to `least`. All are multiples
// of `unit`.
std::vector<int64_t> halvings(int64_t from, int64_t least, int64_t unit) {
  std::vector<int64_t> values;
  const auto add = [&](int64_t value) {
    value = std::max(value / unit * unit, least);
    if (value < (values.empty() ? from : values.back())) values.push_back(value);
  };
  for (int64_t octave = from; octave > least; octave /= 2) {
    for (int64_t part = 15; part >= 8; --part) add(octave / 16 * part + octave % 16 * part / 16);
  }
  add(least);
  return values;
}

double halvings(int64_t from, int64_t to) { return std::log2(static_cast<double>(from) / static_cast<double>(to)); }

// This lever lowers one number of the configuration.
Knob lowering(const std::string& flag, const std::vector<int64_t>& values,
              const std::function<void(config::TrainConfig&, int64_t)>& set,
              const std::function<double(int64_t)>& slowdown, bool changes_results = false) {
  Knob lever;
  lever.changes_results = changes_results;
  lever.num_steps = static_cast<int64_t>(values.size());
  lever.apply = [flag, values, set](int64_t step, Candidate& candidate) {
    const int64_t value = values[static_cast<size_t>(step - 1)];
    set(candidate.config, value);
    return fmt::format("--{} {}", flag, value);
  };
  lever.slowdown = [values, slowdown](int64_t step) { return slowdown(values[static_cast<size_t>(step - 1)]); };
  return lever;
}

Knob recomputing(int64_t num_layers, int64_t already) {
  Knob lever;
  lever.num_steps = num_layers - 1 - already;  // the last one saves nothing: one graph is needed anyway
  lever.apply = [already](int64_t step, Candidate& candidate) {
    candidate.config.optimizer.recompute_granularity = "full";
    candidate.config.optimizer.recompute_num_layers = already + step;
    return fmt::format("--recompute-granularity full --recompute-num-layers {}", already + step);
  };
  lever.slowdown = [num_layers](int64_t step) {
    return kTrainShare * kForwardShare * static_cast<double>(step) / static_cast<double>(num_layers);
  };
  return lever;
}

Knob one_step(const std::string& flags, bool changes_results, double slowdown,
              const std::function<void(Candidate&)>& set) {
  Knob lever;
  lever.changes_results = changes_results;
  lever.num_steps = 1;
  lever.apply = [flags, set](int64_t, Candidate& candidate) {
    set(candidate);
    return flags;
  };
  lever.slowdown = [slowdown](int64_t) { return slowdown; };
  return lever;
}

std::vector<Knob> memory_knobs(const Candidate& start, const TrainPlan& plan) {
  const config::TrainConfig& config = start.config;
  std::vector<Knob> levers;
  levers.push_back(recomputing(start.model.num_layers, plan.recomputed_layers));

  const int64_t tokens = config.optimizer.batch.max_tokens_per_gpu;
  levers.push_back(lowering(
      "max-tokens-per-gpu", halvings(tokens, std::min<int64_t>(tokens, 256), 64),
      [](config::TrainConfig& c, int64_t value) { c.optimizer.batch.max_tokens_per_gpu = value; },
      [tokens](int64_t value) { return kTrainShare * kTokensHalved * halvings(tokens, value); }));

  const int64_t chunk = config.optimizer.batch.logprob_chunk_rows;
  levers.push_back(lowering(
      "logprob-chunk-rows", halvings(chunk, std::min<int64_t>(chunk, 64), 16),
      [](config::TrainConfig& c, int64_t value) { c.optimizer.batch.logprob_chunk_rows = value; },
      [chunk](int64_t value) { return kTrainShare * kChunkHalved * halvings(chunk, value); }));

  const int64_t batch = config.rollout.limits.max_batch_tokens;
  levers.push_back(lowering(
      "rollout-max-batch-tokens", halvings(batch, std::min<int64_t>(batch, 256), 64),
      [](config::TrainConfig& c, int64_t value) { c.rollout.limits.max_batch_tokens = value; },
      [batch](int64_t value) { return kRolloutShare * kBatchHalved * halvings(batch, value); }));

  // A KV cache of automatic size has shrunk by itself already, to one sequence if need be.
  if (const int64_t kv = config.rollout.kv_cache_bytes; kv > 0) {
    const int64_t block = rollout::kv_block_bytes(start.model);
    const int64_t one = sequence_kv_bytes(start.model, config.rollout.limits, plan.context_tokens);
    const double useful = static_cast<double>(std::min(kv, one * config.rollout.limits.max_running));
    levers.push_back(lowering(
        "kv-cache-bytes", halvings(kv, std::min(kv, one), block),
        [](config::TrainConfig& c, int64_t value) { c.rollout.kv_cache_bytes = value; },
        // A decode of fewer sequences reads all weights as well, so time goes up as their number goes down.
        [useful](int64_t value) { return kRolloutShare * std::max(useful / static_cast<double>(value) - 1.0, 0.0); }));
  }

  // Offloading saves nothing where the host's memory is the device's.
  const bool has_host = !device::footprint_of(config.model.device).shares_host_memory;
  if (has_host && !config.memory.offloads_optimizer()) {
    levers.push_back(one_step("--offload-optimizer", false, kTrainShare * kOffloaded,
                              [](Candidate& c) { c.config.memory.offload_optimizer = true; }));
  }
  // The base of an adapter is a reference that takes no memory of its own.
  const bool is_base = start.model.lora && config.loss.ref_load.empty();
  if (has_host && config.loss.needs_reference() && !is_base && !config.memory.offloads_reference()) {
    levers.push_back(one_step("--offload-reference", false, kTrainShare * kOffloaded / 3,
                              [](Candidate& c) { c.config.memory.offload_reference = true; }));
  }
  if (has_host && config.loss.loss.opd.is_on && !config.memory.offloads_teacher()) {
    levers.push_back(one_step("--offload-teacher", false, kTrainShare * kOffloaded / 3,
                              [](Candidate& c) { c.config.memory.offload_teacher = true; }));
  }
  if (has_host && !config.reward.rm_model.empty() && !config.memory.offloads_rm_model()) {
    levers.push_back(one_step("--offload-rm-model", false, kTrainShare * kOffloaded / 3,
                              [](Candidate& c) { c.config.memory.offload_rm_model = true; }));
  }
  if (config.loss.needs_reference()) {
    const bool is_in_reward = config.loss.loss.kl_coef > 0.0;
    const char* const change = !is_in_reward             ? "--no-use-kl-loss --kl-loss-coef 0"
                               : config.loss.use_kl_loss ? "--no-use-kl-loss --kl-coef 0"
                                                         : "--kl-coef 0";
    levers.push_back(one_step(change, true, -kTrainShare * kForwardShare, [](Candidate& c) {
      c.config.loss.use_kl_loss = false;
      c.config.loss.loss.kl_loss_coef = c.config.loss.loss.kl_coef = 0.0;
    }));
  }
  if (config.mesh.tensor_model_parallel_size > 1 && !config.mesh.sequence_parallel) {
    levers.push_back(one_step("--sequence-parallel", true, kTrainShare * kRowsGathered,
                              [](Candidate& c) { c.config.mesh.sequence_parallel = true; }));
  }
  if (start.model.dtype == model::Dtype::kFloat32) {
    levers.push_back(one_step("--dtype bfloat16", true, kBfloat16, [](Candidate& c) {
      c.config.model.dtype = "bfloat16";
      c.model.dtype = model::Dtype::kBFloat16;
    }));
  }
  // Everything is planned for the longest sequence, so shorter ones help.
  if (plan.prompt_is_assumed || config.data.max_prompt_len > 0) {
    const int64_t prompt = plan.longest_prompt;
    levers.push_back(lowering(
        "rollout-max-prompt-len", halvings(prompt, std::min<int64_t>(prompt, 128), 16),
        [](config::TrainConfig& c, int64_t value) { c.data.max_prompt_len = value; }, [](int64_t) { return 0.0; },
        true));
  }
  const int64_t response = std::min(config.rollout.response_len(), plan.context_tokens);
  const int64_t shortest = std::max<int64_t>(64, config.loss.loss.overlong_buffer_tokens);
  levers.push_back(lowering(
      "rollout-max-response-len", halvings(response, std::min(response, shortest), 16),
      [](config::TrainConfig& c, int64_t value) { c.rollout.max_response_len = value; }, [](int64_t) { return 0.0; },
      true));
  std::erase_if(levers, [](const Knob& lever) { return lever.num_steps <= 0; });
  return levers;
}

class Search {
 public:
  Search(const Candidate& start, const PlanInputs& facts, const DeviceMemory& device)
      : start_(start), layouts_(start.model), facts_(facts), device_(device) {
    const TrainPlan plan = plan_training(start.config, start.model, layouts_, facts, device);
    TANDEM_CHECK(!plan.fits(), "a plan that fits needs no change");
    levers_ = memory_knobs(start_, plan);
  }

  std::vector<PlanChange> run(size_t count) {
    const config::TrainConfig& config = start_.config;
    const int64_t samples =
        config.rollout_batch_size > 0 ? config.samples_at_once() : config.rollout.limits.max_running;
    const int64_t useful = std::min({kUsefulCompletions, samples, config.rollout.limits.max_running});
    least_completions_ = config.rollout.kv_cache_bytes == 0 ? useful : 1;
    while (true) {
      changes_.clear();
      found_.clear();
      solved_.clear();
      search(count);
      // A cache of fewer completions at once is better than other results.
      const bool keeps_results = !std::ranges::all_of(changes_, &PlanChange::changes_results);
      if (keeps_results || least_completions_ == 1) break;
      least_completions_ = std::max<int64_t>(least_completions_ / 4, 1);
    }
    std::stable_sort(changes_.begin(), changes_.end(), [](const PlanChange& a, const PlanChange& b) {
      return a.changes_results != b.changes_results ? b.changes_results : a.slowdown < b.slowdown;
    });
    if (changes_.size() > count) changes_.resize(count);
    return std::move(changes_);
  }

 private:
  using Steps = std::vector<int64_t>;  // of each lever; 0: as it is

  void search(size_t count) {
    std::vector<size_t> chosen;
    for (size_t size = 1; size <= std::min<size_t>(3, levers_.size()); ++size) {
      visit_subsets(size, 0, chosen);
      if (changes_.size() >= count) break;
    }
    mix(count);
    if (changes_.empty() && levers_.size() > 3) {
      for (size_t i = 0; i < levers_.size(); ++i) chosen.push_back(i);
      try_subset(chosen);
    }
  }

  void visit_subsets(size_t size, size_t begin, std::vector<size_t>& chosen) {
    if (chosen.size() == size) {
      try_subset(chosen);
      return;
    }
    for (size_t i = begin; i < levers_.size(); ++i) {
      chosen.push_back(i);
      visit_subsets(size, i + 1, chosen);
      chosen.pop_back();
    }
  }

  // All levers of the subset go as far as they can; then each is moved back as far as the plan still fits, the
  // costliest first.
  void try_subset(const std::vector<size_t>& subset) {
    for (const std::vector<size_t>& solved : solved_) {
      if (std::ranges::includes(subset, solved)) return;  // fewer flags are enough
    }
    Steps steps(levers_.size(), 0);
    for (const size_t i : subset) steps[i] = levers_[i].num_steps;
    if (!plan(steps)) return;
    std::vector<size_t> order = subset;
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      return levers_[a].slowdown(levers_[a].num_steps) > levers_[b].slowdown(levers_[b].num_steps);
    });
    for (const size_t i : order) move_back(i, steps);
    add(steps);
    solved_.push_back(subset);
  }

  // Adds mixed changes, for plans that few flags help: one flag goes half as far as it would need to alone, and another
  // gives what is then missing.
  void mix(size_t count) {
    const std::vector<Steps> alone = found_;
    for (const Steps& one : alone) {
      const auto main =
          static_cast<size_t>(std::ranges::find_if(one, [](int64_t step) { return step > 1; }) - one.begin());
      if (main == one.size()) continue;
      for (size_t other = 0; other < levers_.size() && changes_.size() < count; ++other) {
        Steps steps = one;
        steps[main] = one[main] / 2;
        if (other == main || one[other] > 0) continue;
        steps[other] = levers_[other].num_steps;
        if (!plan(steps)) continue;
        move_back(other, steps);
        add(steps);
      }
    }
  }

  // This finds the fewest steps of one lever with which the plan still fits.
  void move_back(size_t lever, Steps& steps) const {
    int64_t too_mild = 0, enough = steps[lever];
    while (too_mild + 1 < enough) {
      steps[lever] = (too_mild + enough) / 2;
      (plan(steps) ? enough : too_mild) = steps[lever];
    }
    steps[lever] = enough;
  }

  void add(const Steps& steps) {
    const std::optional<TrainPlan> found = plan(steps);
    TANDEM_CHECK(found.has_value(), "a change that fitted no longer does");
    PlanChange change;
    Candidate candidate = start_;
    for (size_t i = 0; i < steps.size(); ++i) {
      if (steps[i] == 0) continue;
      change.flags += (change.flags.empty() ? "" : " ") + levers_[i].apply(steps[i], candidate);
      change.slowdown += levers_[i].slowdown(steps[i]);
      change.changes_results |= levers_[i].changes_results;
    }
    change.peak_bytes = found->peak_bytes();
    change.kv_completions = found->kv_completions;
    change.config = candidate.config;
    change.model = candidate.model;
    changes_.push_back(std::move(change));
    found_.push_back(steps);
  }

  // The plan with these steps is given if it fits.
  std::optional<TrainPlan> plan(const Steps& steps) const {
    Candidate candidate = start_;
    for (size_t i = 0; i < steps.size(); ++i) {
      if (steps[i] > 0) levers_[i].apply(steps[i], candidate);
    }
    try {
      TrainPlan plan = plan_training(candidate.config, candidate.model, layouts_, facts_, device_);
      if (plan.fits() && plan.kv_completions >= least_completions_) return plan;
    } catch (const UserError&) {  // lengths that no longer go together
    }
    return std::nullopt;
  }

  const Candidate start_;
  const ModelLayouts layouts_;  // of all candidates' models, which differ in their dtype alone
  const PlanInputs facts_;
  const DeviceMemory device_;
  int64_t least_completions_ = 0;
  std::vector<Knob> levers_;
  std::vector<PlanChange> changes_;
  std::vector<Steps> found_;  // of each change
  std::vector<std::vector<size_t>> solved_;
};

}  // namespace

std::vector<PlanChange> cheapest_changes(const config::TrainConfig& config, const model::ModelConfig& model,
                                         const PlanInputs& facts, const DeviceMemory& device, size_t count) {
  return Search({config, model}, facts, device).run(count);
}

std::string to_string(const PlanChange& change) {
  const auto percent = static_cast<int64_t>(std::lround(100.0 * change.slowdown));
  std::string cost =
      percent == 0 ? "no slower" : fmt::format("about {} % {}", std::abs(percent), percent > 0 ? "slower" : "faster");
  if (change.changes_results) cost += ", other results";
  return fmt::format("{} ({}, {}, KV for {} completions)", change.flags, gib_text(change.peak_bytes), cost,
                     change.kv_completions);
}

std::string gib_text(int64_t bytes) {
  return fmt::format("{:.2f} GiB", static_cast<double>(bytes) / static_cast<double>(int64_t{1} << 30));
}

}  // namespace tandem::plan
