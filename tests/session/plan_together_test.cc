// Checks that the ranks of a tensor-parallel group plan alike.
#include "session/plan_together.h"

#include <gtest/gtest.h>

#include "tandem/error.h"
#include "tests/device/ranks/thread_ranks.h"
#include "tests/plan/plan_case.h"

namespace tandem::session {
namespace {

// Returns the plans of two ranks with so many bytes each; both have as many KV blocks as they have room for.
std::vector<plan::TrainPlan> plans(int64_t bytes, int64_t bytes_of_other) {
  return device::on_thread_ranks(2, [&](device::Communicator& hosts) {
    config::TrainConfig config = plan::tiny_config();
    config.mesh.actor_num_gpus_per_node = config.mesh.tensor_model_parallel_size = 2;
    config.rollout_batch_size = 4096;
    config.rollout.limits.max_running = 4096;
    const model::ModelConfig part = model::shard_of(model::tiny_config(), {.rank = hosts.rank(), .size = 2});
    return plan_together(config, part, {.longest_prompt = 10},
                         {.bytes = hosts.rank() == 0 ? bytes : bytes_of_other, .name = "the device"}, hosts);
  });
}

TEST(PlanTogether, WhoHasMoreRoomHasAsManyBlocksAsTheOther) {
  constexpr int64_t kMiB = int64_t{1} << 20;
  const int64_t enough = plans(512 * kMiB, 512 * kMiB)[0].num_kv_blocks;
  for (const auto& [first, second] : {std::pair{512 * kMiB, 200 * kMiB}, {200 * kMiB, 512 * kMiB}}) {
    const std::vector<plan::TrainPlan> both = plans(first, second);
    EXPECT_EQ(both[0].num_kv_blocks, both[1].num_kv_blocks);
    EXPECT_LT(both[0].num_kv_blocks, enough);
    EXPECT_GT(both[0].num_kv_blocks, 0);
  }
}

TEST(PlanTogether, WhereOneDoesNotFitNeitherBegins) {
  EXPECT_THROW(plans(int64_t{1} << 30, int64_t{1} << 20), EnvironmentError);
}

}  // namespace
}  // namespace tandem::session
