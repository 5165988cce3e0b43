#include "plan/plan_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "model/lora.h"
#include "plan/plan_changes.h"

namespace tandem::plan {

namespace {

using memory::Phase;
using memory::Tag;

constexpr std::array<Phase, memory::kNumPhases> kPhases = {Phase::kLoad, Phase::kRollout, Phase::kTrain};

// A whole table has one unit.
struct Unit {
  const char* name;
  double bytes;
};

// Returns GiB, unless the largest phase has less than one.
Unit unit_of(const memory::MemoryPlan& memory) {
  int64_t most = 0;
  for (const Phase phase : kPhases) most = std::max(most, memory.bytes(phase));
  return most < int64_t{1} << 30 ? Unit{"MiB", 1 << 20} : Unit{"GiB", 1 << 30};
}

// Bytes are shown with two decimals; a number that is not 0 is never shown as 0.
std::string cell(int64_t bytes, const Unit& unit) {
  if (bytes == 0) return "-";
  const double value = static_cast<double>(bytes) / unit.bytes;
  return value < 0.005 ? fmt::format("<0.01 {}", unit.name) : fmt::format("{:.2f} {}", value, unit.name);
}

template <typename CellOf>
std::string row(const std::string& name, CellOf cell_of) {
  std::string line = fmt::format("{:<16}", name);
  for (const Phase phase : kPhases) line += fmt::format("{:>12}", cell_of(phase));
  return line + "\n";
}

std::string ranks_sentence(const TrainPlan& plan) {
  if (plan.num_ranks == 1) return "";
  return fmt::format("ranks         {}, and each takes this much; {}\n", plan.num_ranks,
                     plan.num_data_ranks == 1 ? "one copy of the model between them"
                                              : fmt::format("{} copies of the model, which share the optimizer's state",
                                                            plan.num_data_ranks));
}

// This line is for a process that only samples.
std::string engine_sentence(const model::ModelConfig& model) {
  if (model.shard.is_whole()) return "";
  return fmt::format(
      "engine        of {} such processes, and each takes this much; one copy of the model between them\n",
      model.shard.size);
}

std::string shape_sentences(const TrainPlan& plan, const model::ModelConfig& model) {
  std::string text = plan.role == Role::kRollout ? engine_sentence(model) : ranks_sentence(plan);
  text += fmt::format("sequences     {} tokens at most, prompts {}{}\n", plan.context_tokens, plan.longest_prompt,
                      plan.prompt_is_assumed ? " (assumed: give --rollout-max-prompt-len)" : "");
  if (plan.role != Role::kRollout)
    text += fmt::format("micro-batch   {} rows, {} targets; {} of {} layers are recomputed\n",
                        int64_t{plan.micro_batch.rows}, int64_t{plan.micro_batch.targets}, plan.recomputed_layers,
                        model.num_layers);
  const char* const what_for = plan.role == Role::kBoth      ? "in which rollout and training take turns"
                               : plan.role == Role::kTrainer ? "of training"
                                                             : "of rollouts";
  text += fmt::format("arena         {}, {}: {} extents of {:.0f} MiB\n", gib_text(plan.arena_bytes), what_for,
                      plan.arena_bytes / plan.extent_bytes, static_cast<double>(plan.extent_bytes) / (1 << 20));
  if (plan.role != Role::kTrainer)
    text += fmt::format("KV            {} = {} tokens; completions of the longest sequence at once: {}\n",
                        gib_text(plan.kv_cache_bytes), plan.kv_tokens, plan.kv_completions);
  if (plan.second_copy_bytes > 0 && plan.host_bytes > 0)
    text += fmt::format("second copy   {} of the weights: new ones are copied into it while the engine samples\n",
                        gib_text(plan.second_copy_bytes));
  text += plan.host_bytes > 0
              ? fmt::format("host          {} beside the device, {} of it pinned\n", gib_text(plan.host_bytes),
                            gib_text(plan.host_pinned_bytes))
              : fmt::format("host          is the device; {} pinned\n", gib_text(plan.host_pinned_bytes));
  return text;
}

}  // namespace

std::string plan_text(const TrainPlan& plan, const model::ModelConfig& model) {
  const memory::MemoryPlan& memory = plan.memory;
  const Unit unit = unit_of(memory);
  std::string text = row("tag", [](Phase phase) { return std::string(memory::to_string(phase)); });
  for (int i = 0; i < memory::kNumTags; ++i) {
    const auto tag = static_cast<Tag>(i);
    int64_t most = 0;
    for (const Phase phase : kPhases) most = std::max(most, memory.bytes(tag, phase));
    if (most > 0)
      text += row(memory::to_string(tag), [&](Phase phase) { return cell(memory.bytes(tag, phase), unit); });
  }
  text += row("total", [&](Phase phase) { return cell(memory.bytes(phase), unit); });
  text +=
      "(Each row is that tag's maximum in the phase. The total is the maximum of their sum, which is smaller where "
      "not\n"
      "all of them are alive together.)\n\n";
  text += shape_sentences(plan, model);
  const Phase peak = memory.peak_phase();
  text += fmt::format("peak          {} in the {} phase: {}\n", gib_text(plan.peak_bytes()), memory::to_string(peak),
                      memory.peak_name(peak));
  if (plan.device.bytes == 0) return text + fmt::format("device        {}", plan.device.name);
  return text + fmt::format("device        {}: {}, {:.0f} % of it at the peak{}", plan.device.name,
                            gib_text(plan.device.bytes),
                            100.0 * static_cast<double>(plan.peak_bytes()) / static_cast<double>(plan.device.bytes),
                            plan.fits() ? "" : fmt::format("; does not fit, by {}", gib_text(plan.missing_bytes())));
}

base::Json plan_json(const TrainPlan& plan, const model::ModelConfig& model) {
  const memory::MemoryPlan& memory = plan.memory;
  base::Json rank = base::Json::object();
  rank["rank"] = 0;
  for (const Phase phase : kPhases) {
    base::Json tags = base::Json::object();
    for (int i = 0; i < memory::kNumTags; ++i) {
      tags[memory::to_string(static_cast<Tag>(i))] = memory.bytes(static_cast<Tag>(i), phase);
    }
    rank["phases"][memory::to_string(phase)] = {
        {"tags", tags}, {"at_once", memory.bytes(phase)}, {"moment", memory.peak_name(phase)}};
  }
  rank["host_bytes"] = plan.host_bytes;
  rank["host_pinned_bytes"] = plan.host_pinned_bytes;
  base::Json json = base::Json::object();
  json["parameters"] = model.num_parameters();
  if (model.lora) json["trained_parameters"] = model::trained_layout(model).num_elements();
  json["dtype"] = model.dtype_name();
  json["ranks"] = base::Json::array({rank});
  json["kv"] = {{"bytes", plan.kv_cache_bytes}, {"tokens", plan.kv_tokens}, {"completions", plan.kv_completions}};
  json["sequence"] = {{"context_tokens", plan.context_tokens},
                      {"prompt_tokens", plan.longest_prompt},
                      {"prompt_is_assumed", plan.prompt_is_assumed}};
  json["micro_batch"] = {{"rows", int64_t{plan.micro_batch.rows}},
                         {"targets", int64_t{plan.micro_batch.targets}},
                         {"kv_blocks", int64_t{plan.micro_batch.kv_blocks}},
                         {"recomputed_layers", plan.recomputed_layers}};
  json["arena"] = {{"bytes", plan.arena_bytes}, {"extent_bytes", plan.extent_bytes}};
  json["peak"] = {{"bytes", plan.peak_bytes()},
                  {"phase", memory::to_string(memory.peak_phase())},
                  {"moment", memory.peak_name(memory.peak_phase())}};
  json["device"] = {{"name", plan.device.name}, {"bytes", plan.device.bytes}};
  json["missing_bytes"] = plan.missing_bytes();
  json["fits"] = plan.fits();
  json["num_ranks"] = plan.num_ranks;
  json["num_data_ranks"] = plan.num_data_ranks;
  return json;
}

}  // namespace tandem::plan
