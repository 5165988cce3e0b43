// `tandem plan` prints the memory plan of a training run, from config.json alone.
#include "plan/plan.h"

#include <fmt/format.h>

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "plan/plan_text.h"
#include "run/verbs.h"
#include "session/read_model.h"

namespace tandem::run {

namespace {

// Returns the roles that processes of the run have, each with its name.
std::vector<std::pair<const char*, plan::Role>> roles_of(const config::TrainConfig& config) {
  if (config.colocate) return {{"", plan::Role::kBoth}};
  return {{"trainer", plan::Role::kTrainer}, {"rollout", plan::Role::kRollout}};
}

// The first trainer is planned: it also sends the weights of the others.
plan::PlanInputs facts_of(plan::Role role) { return {.role = role, .gives_weights = role == plan::Role::kTrainer}; }

}  // namespace

int print_plan(const config::PlanConfig& config, const config::RunMode& /*mode*/) {
  // The last rank of a tensor-parallel group has the largest part: it holds the remainder of the vocabulary.
  const auto parts = static_cast<int>(config.train.mesh.tensor_model_parallel_size);
  const model::ModelConfig model =
      model::shard_of(session::read_model(config.train.model, config.train.lora), {.rank = parts - 1, .size = parts});
  const plan::DeviceMemory device = plan::device_memory(config.train);
  base::Json json = base::Json::object();
  std::string text;
  for (const auto& [name, role] : roles_of(config.train)) {
    const plan::TrainPlan plan = plan::plan_training(config.train, model, facts_of(role), device);
    if (*name == 0) {
      json = plan::plan_json(plan, model);
    } else {
      json[name] = plan::plan_json(plan, model);
      text += fmt::format("{}a process that {}\n", text.empty() ? "" : "\n\n",
                          role == plan::Role::kTrainer ? "trains" : "only samples");
    }
    text += plan::plan_text(plan, model);
  }
  text = (config.json ? base::dump_json(json) : text) + "\n";
  TANDEM_ENV_CHECK(std::fputs(text.c_str(), stdout) >= 0 && std::fflush(stdout) == 0,
                   "standard output: cannot be written (closed pipe or full disk)");
  for (const auto& [name, role] : roles_of(config.train)) {
    const plan::TrainPlan plan = plan::plan_training(config.train, model, facts_of(role), device);
    plan::check_fits(plan, config.train, model, facts_of(role));
  }
  return 0;
}

}  // namespace tandem::run
