// `tandem plan` prints the memory plan of a training run, from config.json alone.
#include "plan/plan.h"

#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "base/standard_output.h"
#include "plan/failure_budget.h"
#include "plan/plan_changes.h"
#include "plan/plan_text.h"
#include "run/run_space.h"
#include "run/verbs.h"
#include "session/read_model.h"
#include "session/read_reference.h"
#include "session/read_reward_model.h"
#include "session/read_teachers.h"

namespace tandem::run {

namespace {

// Returns the roles that processes of the run have, each with its name.
std::vector<std::pair<const char*, plan::Role>> roles_of(const config::TrainConfig& config) {
  if (config.colocate || !config.mesh.rollout_num_gpus) return {{"", plan::Role::kBoth}};
  return {{"trainer", plan::Role::kTrainer}, {"rollout", plan::Role::kRollout}};
}

// The first trainer is planned: it also sends the weights of the others.
plan::PlanInputs facts_of(plan::Role role, const config::TrainConfig& config, const model::ModelConfig& model) {
  std::optional<model::ModelConfig> reference;
  if (config.loss.needs_reference() && !config.loss.ref_load.empty())
    reference = session::read_reference(config.loss.ref_load, model);
  return {.role = role,
          .gives_weights = role == plan::Role::kTrainer,
          .teachers = session::read_teachers(config.loss, model),
          .reference = reference,
          .reward_model = session::read_reward_model(config.reward, model)};
}

// The cost of a checkpoint is what the user measured, or its bytes at --save-bytes-per-second.
struct CheckpointCost {
  double seconds;
  std::string is_from;
};

CheckpointCost checkpoint_cost(const config::PlanConfig& config, const model::ModelConfig& model) {
  const config::FailureOptions& failures = config.failures;
  if (failures.checkpoint_seconds) return {*failures.checkpoint_seconds, "as given"};
  const int64_t bytes =
      checkpoint_space(model, 0, 0, 1, 0, saved_reference_element_bytes(config.train.loss, model.dtype)).checkpoints;
  return {static_cast<double>(bytes) / static_cast<double>(failures.save_bytes_per_second),
          fmt::format("{} at {:.3g} GB/s, as if training waited for all of it", plan::gib_text(bytes),
                      static_cast<double>(failures.save_bytes_per_second) / 1e9)};
}

// Returns what --hosts asks for, as text and as JSON.
std::pair<std::string, base::Json> failure_plan(const config::PlanConfig& config, const model::ModelConfig& model) {
  const config::FailureOptions& failures = config.failures;
  const CheckpointCost cost = checkpoint_cost(config, model);
  const plan::FailureBudget budget = plan::failure_budget({.hosts = *failures.hosts,
                                                           .devices = config.train.num_processes(),
                                                           .training_devices = config.train.mesh.num_ranks(),
                                                           .run_hours = 24.0 * failures.run_days,
                                                           .hours_between_failures = failures.hours_between_failures,
                                                           .checkpoint_seconds = cost.seconds,
                                                           .restart_seconds = 60.0 * failures.restart_minutes,
                                                           .repair_hours = failures.repair_hours,
                                                           .step_seconds = failures.step_seconds});
  return {plan::budget_text(budget, cost.is_from), plan::budget_json(budget)};
}

}  // namespace

int print_plan(const config::PlanConfig& config, const config::RunMode& /*mode*/) {
  config.train.check_shape();
  config.failures.check(config.train.num_processes());
  // The last rank of a tensor-parallel group has the largest part: it holds the remainder of the vocabulary.
  const auto parts = static_cast<int>(config.train.mesh.tensor_model_parallel_size);
  const model::ModelConfig model =
      model::shard_of(session::read_model(config.train.model, config.train.lora, config.train.optimizer),
                      {.rank = parts - 1, .size = parts});
  const plan::DeviceMemory device = plan::device_memory(config.train);
  base::Json json = base::Json::object();
  std::string text;
  for (const auto& [name, role] : roles_of(config.train)) {
    const plan::TrainPlan plan = plan::plan_training(config.train, model, facts_of(role, config.train, model), device);
    if (*name == 0) {
      json = plan::plan_json(plan, model);
    } else {
      json[name] = plan::plan_json(plan, model);
      text += fmt::format("{}a process that {}\n", text.empty() ? "" : "\n\n",
                          role == plan::Role::kTrainer ? "trains" : "only samples");
    }
    text += plan::plan_text(plan, model);
  }
  if (config.failures.hosts) {
    const auto [said, facts] = failure_plan(config, model);
    text += "\n\n" + said;
    json["failures"] = facts;
  }
  base::write_to_standard_output((config.json ? base::dump_json(json) : text) + "\n");
  for (const auto& [name, role] : roles_of(config.train)) {
    const plan::TrainPlan plan = plan::plan_training(config.train, model, facts_of(role, config.train, model), device);
    plan::check_fits(plan, config.train, model, facts_of(role, config.train, model));
  }
  return 0;
}

}  // namespace tandem::run
