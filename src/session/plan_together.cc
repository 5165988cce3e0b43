#include "session/plan_together.h"

#include <algorithm>
#include <string>
#include <vector>

#include "session/together.h"

namespace tandem::session {

plan::TrainPlan plan_together(const config::TrainConfig& config, const model::ModelConfig& model,
                              const plan::PlanInputs& facts, const plan::DeviceMemory& device,
                              device::Communicator& hosts) {
  plan::TrainPlan plan;
  const std::vector<std::string> kv_bytes = together(hosts, [&] {
    plan = plan::plan_or_refuse(config, model, facts, device);
    return std::to_string(plan.kv_cache_bytes);
  });
  int64_t least = plan.kv_cache_bytes;
  for (const std::string& of_rank : kv_bytes) least = std::min<int64_t>(least, std::stoll(of_rank));
  if (plan.kv_cache_bytes == least) return plan;
  config::TrainConfig agreed = config;
  agreed.rollout.kv_cache_bytes = least;
  return plan::plan_or_refuse(agreed, model, facts, device);
}

}  // namespace tandem::session
