// `tandem plan`: the memory plan of a training run, from config.json alone.
#include "plan/plan.h"

#include <cstdio>

#include "base/check.h"
#include "plan/plan_text.h"
#include "run/read_model.h"
#include "run/verbs.h"

namespace tandem::run {

int print_plan(const config::PlanConfig& config, const config::RunMode& /*mode*/) {
  // Of tensor ranks the last has the largest part: what is left of the vocabulary.
  const auto parts = static_cast<int>(config.train.mesh.tensor_model_parallel_size);
  const model::ModelConfig model =
      model::shard_of(read_model(config.train.model, config.train.lora), {.rank = parts - 1, .size = parts});
  const plan::PlanInputs facts;
  const plan::TrainPlan plan = plan::plan_training(config.train, model, facts, plan::device_memory(config.train));
  const std::string text =
      (config.json ? base::dump_json(plan::plan_json(plan, model)) : plan::plan_text(plan, model)) + "\n";
  TANDEM_ENV_CHECK(std::fputs(text.c_str(), stdout) >= 0 && std::fflush(stdout) == 0,
                   "standard output: cannot be written (closed pipe or full disk)");
  plan::check_fits(plan, config.train, model, facts);
  return 0;
}

}  // namespace tandem::run
