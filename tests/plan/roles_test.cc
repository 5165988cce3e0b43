// A process that does half of a run takes less memory, because other processes do the other half.
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <random>

#include "plan/plan.h"
#include "tests/plan/plan_case.h"

namespace tandem::plan {
namespace {

using memory::Phase;
using memory::Tag;

constexpr std::array kPhases = {Phase::kLoad, Phase::kRollout, Phase::kTrain};
constexpr std::array kOfTraining = {Tag::kReference,   Tag::kMaster,       Tag::kMoments,
                                    Tag::kGradients,   Tag::kBatch,        Tag::kBlockInputs,
                                    Tag::kBlockGraphs, Tag::kBlockScratch, Tag::kHead};
constexpr std::array kOfSampling = {Tag::kKv, Tag::kEngineScratch, Tag::kGraphs};

TrainPlan plan_of(PlanCase drawn, Role role) {
  drawn.facts.role = role;
  return plan_training(drawn.config, drawn.model, drawn.facts, {});
}

// Each drawn run is planned twice: for a process that does all of it, and for one with that role.
void for_each_drawn(Role role, const std::function<void(const TrainPlan& both, const TrainPlan& half)>& look) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (int draw = 0; draw < 100 && !testing::Test::HasFailure(); ++draw) {
    SCOPED_TRACE("draw " + std::to_string(draw));
    const PlanCase drawn = random_case(random);
    look(plan_of(drawn, Role::kBoth), plan_of(drawn, role));
  }
}

TEST(PlanRoles, AProcessThatOnlySamplesHasNothingOfATrainer) {
  for_each_drawn(Role::kRollout, [](const TrainPlan& both, const TrainPlan& worker) {
    for (const Phase phase : kPhases) {
      for (const Tag tag : kOfTraining) EXPECT_EQ(worker.memory.bytes(tag, phase), 0) << memory::to_string(tag);
      EXPECT_EQ(worker.memory.bytes(Tag::kWeights, phase), both.memory.bytes(Tag::kWeights, phase));
    }
    for (const Tag tag : kOfSampling) {
      EXPECT_EQ(worker.memory.bytes(tag, Phase::kRollout), both.memory.bytes(tag, Phase::kRollout))
          << memory::to_string(tag);
    }
    EXPECT_EQ(worker.num_kv_blocks, both.num_kv_blocks);
    EXPECT_EQ(worker.host_pinned_bytes, 0);
    EXPECT_LT(worker.peak_bytes(), both.peak_bytes());
  });
}

TEST(PlanRoles, ATrainerForWhichOthersSampleHasNoEngine) {
  for_each_drawn(Role::kTrainer, [](const TrainPlan& both, const TrainPlan& trainer) {
    for (const Phase phase : kPhases) {
      for (const Tag tag : kOfSampling) EXPECT_EQ(trainer.memory.bytes(tag, phase), 0) << memory::to_string(tag);
    }
    for (const Tag tag : kOfTraining) {
      EXPECT_EQ(trainer.memory.bytes(tag, Phase::kTrain), both.memory.bytes(tag, Phase::kTrain))
          << memory::to_string(tag);
    }
    EXPECT_EQ(trainer.num_kv_blocks, 0);
    EXPECT_LE(trainer.peak_bytes(), both.peak_bytes());
  });
}

}  // namespace
}  // namespace tandem::plan
